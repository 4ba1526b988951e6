"""Mutations of the checker of single heads and of sums of heads."""

from __future__ import annotations

from mutations.mutation import Mutation

SHARP = "tests/soundness/test_sharp.py"
CHECK = "tests/check/test_head.py"
ROUNDING = "tests/prove/test_rounding.py"
CELLS = "tests/prove/test_cells.py"
TERMS = f"{SHARP}::test_terms_are_needed"
WIDTHS = f"{SHARP}::test_cells_of_any_width_contain_the_truth"
RANGE = f"{SHARP}::test_what_may_overflow_is_seen_by_both"

CHECK_HEADS = [
    Mutation(
        "check_cell: dropped keys",
        "attnc/check/cell.py",
        "abs(last) * half**ORDER) + dropped",
        "abs(last) * half**ORDER)",
        "keys that are dropped add nothing to the approximation",
        (CELLS,),
    ),
    Mutation(
        "check_cell: remainder",
        "attnc/check/cell.py",
        "taylor = sum((abs(point[j]) * half**j for j in range(ORDER)), abs(last) * half**ORDER)",
        "taylor = sum((abs(point[j]) * half**j for j in range(ORDER)), arb(0))",
        "the checker's Taylor series ends without a remainder",
        (WIDTHS,),
    ),
    Mutation(
        "check_cell: product of the score",
        "attnc/check/cell.py",
        "off_product = arb(0) if _is_power_of_two(k) else u",
        "off_product = arb(0)",
        "the checker takes κx to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "check_cell: sum of the score",
        "attnc/check/cell.py",
        "off_sum = arb(0) if c == 0 else u",
        "off_sum = arb(0)",
        "the checker takes κx + c to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "check_cell: exp",
        "attnc/check/cell.py",
        "+ tau).exp() * (1 + units * u) - 1",
        "+ tau).exp() - 1",
        "the checker takes exp to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "check_cell: a token that attends to itself",
        "attnc/check/cell.py",
        "turns = self.p + self.a.division_units + (2 if self.value[:, 0].any() else 0)",
        "turns = self.p + self.a.division_units",
        "the checker drops the two roundings of own·s + constant",
        (ROUNDING,),
    ),
    Mutation(
        "check_cell: sum over heads",
        "attnc/check/cell.py",
        "total += abs(w) * (growth * part.rounding(s) + (growth - 1) * abs(part.output))",
        "total += abs(w) * growth * part.rounding(s)",
        "the checker takes the output projection to be exact",
        (ROUNDING,),
    ),
    Mutation(
        "check_cell: size of silent heads",
        "attnc/check/cell.py",
        "size = size + weight * largest",
        "size = size",
        "in the checker, silent heads add nothing",
        (CELLS,),
    ),
    Mutation(
        "check_cell: rounding of silent heads",
        "attnc/check/cell.py",
        "rounding = rounding + weight * (growth * part.rounding(s) + (growth - 1) * largest)",
        "rounding = rounding",
        "in the checker, silent heads do not round",
        (CELLS,),
    ),
    Mutation(
        "check_cell: silent heads",
        "attnc/check/cell.py",
        "return kept == [top] and not numbers.value[h, top].any()",
        "return kept == [top]",
        "in the checker, a head that returns a constant counts as silent",
        (CELLS,),
    ),
    Mutation(
        "check_cell: weight of the heads",
        "attnc/check/cell.py",
        "surplus = sum(weights, arb(-1))",
        "surplus = arb(0)",
        "output weights are taken to add up to 1",
        (CELLS,),
    ),
    Mutation(
        "check_cell: keys kept on the whole cell",
        "attnc/check/cell.py",
        "lead = lead + np.abs(slope - slope[top]) * abs(gain) * half * 1.0000001",
        "lead = lead + 0.0",
        "a key that is far at the centre is dropped on the whole cell",
        (CELLS, WIDTHS),
    ),
    Mutation(
        "check_cell: subnormal numbers",
        "attnc/check/cell.py",
        "return not ((flat != 0) & (np.abs(flat) < a.tiny)).any()",
        "return True",
        "the checker accepts stored numbers that are flushed to zero",
        (RANGE,),
    ),
    Mutation(
        "check_cell: overflow of scores",
        "attnc/check/cell.py",
        "if not all(abs(arb(k)) * x + abs(arb(c)) < limit for k, c in numbers.key[h]):",
        "if False:",
        "the checker accepts scores that overflow",
        (RANGE,),
    ),
    Mutation(
        "check: digests",
        "attnc/check/head.py",
        "changed = [name for name in TENSORS if found[name] != certificate.digests[name]]",
        "changed = []",
        "changed numbers are not noticed",
        (f"{CHECK}::test_a_changed_parameter_is_named",),
    ),
    Mutation(
        "check: another function",
        "attnc/check/head.py",
        "if not f.provable or label != name:",
        "if not f.provable:",
        "a certificate is checked against another function than its own",
        (f"{CHECK}::test_user_functions_need_to_be_known",),
    ),
    Mutation(
        "check: arithmetic of the machine",
        "attnc/check/head.py",
        """    if broken is not None:
        return Verdict""",
        """    if broken is not None and not broken:
        return Verdict""",
        "a machine that breaks the assumptions is accepted",
        (f"{CHECK}::test_arithmetic_that_breaks_the_assumptions_is_unknown",),
    ),
    Mutation(
        "check: bound",
        "attnc/check/head.py",
        "and error.approximation + error.rounding <= arb(certificate.bound)",
        "and True",
        "the bound itself is not compared with the proof",
        (f"{CHECK}::test_the_proof_itself_fails_where_the_claim_is_false",),
    ),
    Mutation(
        "check: rounding",
        "attnc/check/head.py",
        "and error.rounding <= arb(certificate.rounding)",
        "and True",
        "the term of rounding is not compared with the proof",
        (f"{CHECK}::test_the_proof_itself_fails_where_the_claim_is_false",),
    ),
    Mutation(
        "check: unknown becomes proved",
        "attnc/check/head.py",
        "return Verdict(Status.UNKNOWN, reason, bound, cells=done)",
        "return Verdict(Status.PROVED, reason, bound, cells=done)",
        "a search that was given up counts as a proof",
        (f"{CHECK}::test_the_proof_itself_fails_where_the_claim_is_false",),
    ),
    Mutation(
        "check: last cells",
        "attnc/check/head.py",
        "stack += [(x, y, piece.branch, all_active(numbers)) for x, y in pairwise(edges)]",
        "stack += [(x, y, piece.branch, all_active(numbers)) for x, y in pairwise(edges[:-1])]",
        "the last cell of every piece is not checked",
        (f"{CHECK}::test_every_cell_of_the_domain_is_proved",),
    ),
    Mutation(
        "check: outputs that are not finite",
        "attnc/check/head.py",
        "            error = error_of(y, f.value(s))\n",
        "            error = error_of(y if abs(y) < 1e300 else 0.0, f.value(s)) if y == y else arb(0)\n",
        "a module that returns NaN passes the attack",
        (f"{CHECK}::test_a_module_that_returns_no_number_is_refuted",),
    ),
    Mutation(
        "check: attack of the module",
        "attnc/check/head.py",
        "for s, *ys in zip(points.tolist(), *(y.tolist() for y in outputs), strict=True):",
        "for s, *ys in zip(points.tolist(), *(y.tolist() for y in outputs[:1]), strict=True):",
        "the module that runs is not compared",
        (f"{CHECK}::test_the_module_that_runs_is_attacked_too",),
    ),
    Mutation(
        "check: witness",
        "attnc/check/head.py",
        "    _check_witness(numbers, certificate, f)\n",
        "",
        "a false witness is passed over",
        (f"{CHECK}::test_a_false_witness_is_not_passed_over",),
    ),
]
