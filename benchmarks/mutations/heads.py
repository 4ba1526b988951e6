"""Mutations of the prover of single heads and of sums of heads."""

from __future__ import annotations

from mutations.mutation import Mutation

SHARP = "tests/soundness/test_sharp.py"
SUPNORM = "tests/prove/test_supnorm.py"
CHECK = "tests/check/test_head.py"
ROUNDING = "tests/prove/test_rounding.py"
CELLS = "tests/prove/test_cells.py"
STRETCHES = "tests/prove/test_stretches.py"
TERMS = f"{SHARP}::test_terms_are_needed"
WIDTHS = f"{SHARP}::test_cells_of_any_width_contain_the_truth"
RANGE = f"{SHARP}::test_what_may_overflow_is_seen_by_both"

HEADS = [
    Mutation(
        "rounding: product of the query",
        "attnc/prove/rounding.py",
        "product = arb(0) if gain == 1 else u * abs(gain * s)",
        "product = arb(0)",
        "gain·s is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: sum of the query",
        "attnc/prove/rounding.py",
        "added = arb(0) if offset == 0 else u * (total + product + tau)",
        "added = arb(0)",
        "adding the offset is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: error of the query enters the score",
        "attnc/prove/rounding.py",
        "entering = abs(slope) * x_error",
        "entering = arb(0)",
        "|κ| times the query's error is dropped from the score",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: product of the score",
        "attnc/prove/rounding.py",
        "multiplied = arb(0) if _scales(slope) else u * (abs(slope * x) + entering)",
        "multiplied = arb(0)",
        "κx is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: powers of two",
        "attnc/prove/rounding.py",
        "abs(math.frexp(float(slope))[0]) in (0.0, 0.5)",
        "abs(math.frexp(float(slope))[0]) in (0.0, 0.5, 0.75)",
        "a product with 3·2^k is taken to be exact",
        (f"{SHARP}::test_the_score_of_a_key_errs_by_no_more_than_is_said", ROUNDING),
    ),
    Mutation(
        "rounding: sum of the score",
        "attnc/prove/rounding.py",
        "added = arb(0) if intercept == 0 else u * (abs(score) + product)",
        "added = arb(0)",
        "κx + c is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: exp",
        "attnc/prove/rounding.py",
        """+ tau).exp() * (one + a.exp_units * u) - one
        for lead""",
        """+ tau).exp() - one
        for lead""",
        "exp is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: difference from the largest score",
        "attnc/prove/rounding.py",
        "(e + u * (abs(lead) + e + top) + tau).exp()",
        "(e + tau).exp()",
        "z - max z is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: far keys",
        "attnc/prove/rounding.py",
        """ + far_off * (
        far_value + abs(output)
    )""",
        "",
        "executed weights of far keys move nothing",
        (ROUNDING,),
    ),
    Mutation(
        "rounding: denominator",
        "attnc/prove/rounding.py",
        "return (moved / remaining + factor * mass / remaining",
        "return (moved + factor * mass",
        "the executed denominator is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: a token that attends to itself",
        "attnc/prove/rounding.py",
        "roundings = total_anchors + a.division_units + (2 if gated else 0)",
        "roundings = total_anchors + a.division_units",
        "the two roundings of own·s + constant are dropped",
        (ROUNDING,),
    ),
    Mutation(
        "rounding: sums over the anchors",
        "attnc/prove/rounding.py",
        "roundings = total_anchors + a.division_units + (2 if gated else 0)",
        "roundings = a.division_units + (2 if gated else 0)",
        "the weighted sum of p values is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: sum of the exponentials",
        "attnc/prove/rounding.py",
        "factor = (one + u) ** roundings / (one - total_anchors * u) - one",
        "factor = (one + u) ** roundings - one",
        "the denominator's sum of p terms is taken to be exact",
        (ROUNDING, TERMS),
    ),
    Mutation(
        "rounding: underflow",
        "attnc/prove/rounding.py",
        " + 3 * tau * (all_sizes + total_anchors + 1)).upper()",
        ").upper()",
        "products that are flushed to zero cost nothing",
        (ROUNDING,),
    ),
    Mutation(
        "rounding: sum over heads",
        "attnc/prove/rounding.py",
        "(grown * carried + (grown - 1) * size + 2 * len(outputs) * tau)",
        "(grown * carried + 2 * len(outputs) * tau)",
        "the output projection is taken to be exact",
        (ROUNDING,),
    ),
    Mutation(
        "rounding: errors of heads",
        "attnc/prove/rounding.py",
        "(grown * carried + (grown - 1) * size + 2 * len(outputs) * tau)",
        "((grown - 1) * size + 2 * len(outputs) * tau)",
        "errors of the heads do not pass the output projection",
        (ROUNDING,),
    ),
    Mutation(
        "cells: radius",
        "attnc/prove/cells.py",
        "return (arb(self.b) - m).max(m - arb(self.a)).upper()",
        "return (arb(self.b) - m).min(m - arb(self.a)).upper()",
        "a cell does not reach its farther end",
        (CELLS,),
    ),
    Mutation(
        "cells: far keys on the whole cell",
        "attnc/prove/cells.py",
        "far = np.maximum(*leads) + doubt + 2 * eta < -(distance + 1)",
        "far = np.minimum(*leads) + doubt + 2 * eta < -(distance + 1)",
        "a key that is far at one end is dropped on the whole cell",
        (CELLS, WIDTHS),
    ),
    Mutation(
        "cells: far keys as executed",
        "attnc/prove/cells.py",
        "far = np.maximum(*leads) + doubt + 2 * eta < -(distance + 1)",
        "far = np.maximum(*leads) + doubt < -(distance + 1)",
        "a key is dropped though executed scores may bring it near",
        (CELLS,),
    ),
    Mutation(
        "cells: weight of far keys",
        "attnc/prove/cells.py",
        "far = far_keys * (-arb(distance)).exp() * (far_value + abs(value_range))",
        "far = arb(0)",
        "far keys add nothing, however large their values",
        (CELLS,),
    ),
    Mutation(
        "cells: remainder of the range",
        "attnc/prove/cells.py",
        "for j in range(1, order)), arb(0)) + abs(last) * r**order",
        "for j in range(1, order)), arb(0))",
        "the range of a head on a cell ignores the remainder",
        (CELLS, WIDTHS),
    ),
    Mutation(
        "cells: subnormal numbers",
        "attnc/prove/cells.py",
        "return any(numbers.smallest(name) < a.tiny for name in TENSORS)",
        "return False",
        "stored numbers that are flushed to zero are accepted",
        (f"{SUPNORM}::test_subnormal_numbers_prove_nothing", RANGE),
    ),
    Mutation(
        "cells: overflow of scores",
        "attnc/prove/cells.py",
        "if not all(size < limit for size in [x, total, outer, *scores]):",
        "if not all(size < limit for size in [x, total, outer]):",
        "scores that overflow are accepted",
        (RANGE, f"{SUPNORM}::test_overflowing_scores_prove_nothing"),
    ),
    Mutation(
        "supnorm: remainder",
        "attnc/prove/supnorm.py",
        "for j in range(order)), arb(0)) + abs(last) * r**order + far",
        "for j in range(order)), arb(0)) + far",
        "the Taylor series ends without a remainder",
        (WIDTHS,),
    ),
    Mutation(
        "supnorm: far keys",
        "attnc/prove/supnorm.py",
        "arb(0)) + abs(last) * r**order + far",
        "arb(0)) + abs(last) * r**order",
        "far keys are missing from the approximation",
        (CELLS,),
    ),
    Mutation(
        "supnorm: hidden kinks",
        "attnc/prove/supnorm.py",
        "if not model.overlaps(value):",
        "if False:",
        "an enclosure that contradicts itself is accepted",
        (f"{SUPNORM}::test_an_enclosure_with_a_hidden_kink_is_caught",),
    ),
    Mutation(
        "supnorm: worst cell",
        "attnc/prove/supnorm.py",
        "max(worst.bound, found.total),",
        "min(worst.bound, found.total) or found.total,",
        "the bound is that of the best cell",
        (f"{STRETCHES}::test_every_stretch_is_proved",),
    ),
    Mutation(
        "supnorm: last cell",
        "attnc/prove/supnorm.py",
        "for i in range(count)] + [hi]",
        "for i in range(count)]",
        "the last cell of every piece is not looked at",
        (f"{STRETCHES}::test_every_stretch_is_proved",),
    ),
    Mutation(
        "supnorm: jumps",
        "attnc/prove/supnorm.py",
        """    if jump is not None:
        raise FunctionError(""",
        """    if jump is not None and jump != jump:
        raise FunctionError(""",
        "a jump between two pieces is accepted",
        (f"{CHECK}::test_a_jump_is_never_proved",),
    ),
    Mutation(
        "supnorm: cells without a bound",
        "attnc/prove/supnorm.py",
        "    if len(models) < numbers.heads or target is None or target_cell is None:\n"
        "        return CellBound(math.inf, math.inf, math.inf, 0.0)",
        "    if len(models) < numbers.heads or target is None or target_cell is None:\n"
        "        return CellBound(0.0, 0.0, 0.0, 0.0)",
        "a cell of which nothing is known counts as proved",
        (CELLS,),
    ),
    Mutation(
        "supnorm: what is attained",
        "attnc/prove/supnorm.py",
        "attained = max(0.0, lower(abs(difference[0]) - far))",
        "attained = max(0.0, upper(abs(difference[0]) + far) * 1.01)",
        "the lower end claims more than is attained",
        (f"{SUPNORM}::test_attained_is_really_attained",),
    ),
    Mutation(
        "stretches: size of silent heads",
        "attnc/prove/stretches.py",
        "upper(arb(part.bound) + leak + extra)",
        "upper(arb(part.bound) + extra)",
        "silent heads add nothing to the bound",
        (STRETCHES,),
    ),
    Mutation(
        "stretches: rounding of silent heads",
        "attnc/prove/stretches.py",
        "extra = (1 + gamma) * errors + gamma",
        "extra = gamma",
        "silent heads do not round",
        (STRETCHES,),
    ),
    Mutation(
        "stretches: sum over all heads",
        "attnc/prove/stretches.py",
        "gamma * (arb(part.rounding) + averaged)",
        "gamma * arb(part.rounding)",
        "the sum over silent heads is taken to be exact",
        (STRETCHES,),
    ),
    Mutation(
        "stretches: silent heads",
        "attnc/prove/stretches.py",
        "return len(model.keys.constant) == 1 and model.keys.own[0] == 0 and model.keys.constant[0] == 0",
        "return len(model.keys.constant) == 1 and model.keys.own[0] == 0",
        "a head that returns a constant counts as silent",
        (STRETCHES,),
    ),
    Mutation(
        "stretches: last stretch",
        "attnc/prove/stretches.py",
        "*(x for x in ends if domain.lo < x < domain.hi), domain.hi]",
        "*(x for x in ends if domain.lo < x < domain.hi)]",
        "the last stretch is not looked at",
        (STRETCHES,),
    ),
]
