"""Mutations of the checker of token networks, and of the code that compiles them."""

from __future__ import annotations

from mutations.mutation import Mutation

RULES = "tests/check/test_token_rules.py"
CHECK = "tests/check/test_tokens.py"
HEADS, STATES, TOP = (f"attnc/check/{name}.py" for name in ("token_heads", "token_states", "tokens"))
ANCHORS, FLOATS = (f"attnc/check/token_{name}.py" for name in ("anchors", "floats"))
PAIRS, SIZES = "attnc/check/token_pairs.py", "tests/check/test_token_sizes.py"
BY_ANCHORS, BY_FLOATS = (f"tests/check/test_token_{name}.py" for name in ("anchors", "floats"))
POSITIONS = "tests/program/test_token_positions.py"
LOWER = "attnc/lower/tokens.py"
FRONT = "tests/frontends/test_tokens.py"
NETWORK = "tests/network/test_tokens.py"

TOKENS = [
    Mutation(
        "tokens: True and 1", "attnc/frontends/tokens/builder.py", "        text = repr(node)\n",
        '        text = repr(node).replace("True", "1").replace("False", "0")\n', "True is taken for 1",
        (f"{FRONT}::test_true_and_1_are_different_values",),
    ),
    Mutation(
        "tokens: BOS", HEADS, "        self._check_bos(head)\n", "",
        "BOS may attend to data", (f"{RULES}::test_bos_must_attend_to_itself_unless_a_mask_makes_it",),
    ),
    Mutation(
        "tokens: BOS of a causal program", HEADS, "        self._check_bos(head)\n",
        "        if not self.program.causal:\n            self._check_bos(head)\n", "the score of BOS may overflow",
        (f"{RULES}::test_the_score_of_bos_is_finite_in_causal_programs_too",),
    ),
    Mutation(
        "tokens: order of preferences", HEADS, "else self._by_size(node.prefer, pairs.key)",
        "else self.meaning.place(node.prefer, pairs.key)", "places are taken for the order of values",
        (f"{RULES}::test_a_vocabulary_of_numbers_need_not_be_sorted",),
    ),
    Mutation(
        "tokens: all ranks before", PAIRS, "np.maximum.accumulate(highest, axis=1)[:, :-1]", "highest[:, :-1]",
        "a key need beat only those of the rank before", (f"{SIZES}::test_the_order_of_selected_keys",),
    ),
    Mutation(
        "tokens: steps of nodes", HEADS, 'if role.kind in ("step", "anchor") and role.node is not None:', "if False:",
        "a step may name a node", (f"{RULES}::test_a_step_proves_nothing_of_a_node",),
    ),
    Mutation(
        "tokens: steps near 0", HEADS, "up, down = np.asarray(s.lo[:, 0] >= self.gap, bool)",
        "up, down = np.asarray(s.lo[:, 0] >= 1, bool)", "a step may be near its threshold",
        (f"{RULES}::test_scores_of_a_step_keep_their_distance",),
    ),
    Mutation(
        "tokens: values of a step", HEADS, "if self._keys(head, states).any() or v.errors is not None or v.values.any():",
        "if v.errors is not None or v.values.any():", "keys of a step may score",
        (f"{RULES}::test_values_of_a_step_and_of_a_count_are_0_at_data",),
    ),
    Mutation(
        "tokens: ties of a count", HEADS, "if ((pairs.scores.values != pairs.bos.values) & pairs.hits).any():", "if False:",
        "selected keys need not tie with BOS", (f"{RULES}::test_ties_of_a_count_are_exact",),
    ),
    Mutation(
        "tokens: ties of a mean", HEADS, "            check_ties(pairs)\n", "", "a mean may be uneven",
        (f"{RULES}::test_selected_keys_tie_in_a_mean",),
    ),
    Mutation(
        "tokens: default of a mean", HEADS, "if any(int(result[c]) != node.default for c in columns):", "if False:",
        "a mean may have another default", (f"{RULES}::test_means_have_their_default_and_their_values",),
    ),
    Mutation(
        "tokens: values of a mean", HEADS, "if not bool(np.all(v.values[:, used][:, 0] == expected)):", "if False:",
        "a mean may be of other values", (f"{RULES}::test_means_have_their_default_and_their_values",),
    ),
    Mutation(
        "tokens: one key", HEADS, "if not zero and not one_index(pairs):", "if False:", "several keys may be selected",
        (f"{RULES}::test_the_order_of_ties_is_that_of_the_program",),
    ),
    Mutation(
        "tokens: a key exists", HEADS, "                check_exists(pairs, self.program.causal)\n", "",
        "there may be no key", (f"{RULES}::test_a_default_is_needed_unless_there_is_always_a_key",),
    ),
    Mutation(
        "tokens: encoding", HEADS, "            if (rows != first).any():", "            if False:",
        "the value may depend on other things", (f"{RULES}::test_values_are_those_of_the_node",),
    ),
    Mutation(
        "tokens: written twice", STATES, "        if coordinate in self.written:", "        if False:",
        "two heads may write a coordinate", (f"{RULES}::test_a_coordinate_is_written_once",),
    ),
    Mutation(
        "tokens: whole numbers", STATES, "if whole_product(np.abs(x), np.abs(whole)).max(initial=0) >= self.limit:", "if False:",
        "whole numbers may exceed 1/u", (f"{RULES}::test_whole_numbers_stay_below_the_limit",),
    ),
    Mutation(
        "tokens: rounding of products", STATES, "errors @ abs(exact) + self.rounding(sizes, terms))", "errors @ abs(exact))",
        "products do not round", (f"{RULES}::test_errors_of_products_contain_what_runs_and_are_not_wide",),
    ),
    Mutation(
        "tokens: errors of inputs", STATES, "errors @ abs(exact) + self.rounding(sizes, terms))", "self.rounding(sizes, terms))",
        "inputs of products are exact", (f"{RULES}::test_errors_of_products_contain_what_runs_and_are_not_wide",),
    ),
    Mutation(
        "tokens: underflow", STATES, " + (2 * terms + 1) * Fraction(self.arithmetic.tiny)", "", "nothing underflows",
        (f"{RULES}::test_underflow_and_overflow_are_counted",),
    ),
    Mutation(
        "tokens: logits", TOP, "if least is None or not least > 0:", "if least is None or not least > -2:",
        "logits may tie", (f"{RULES}::test_logits_that_tie_are_refused",),
    ),
    Mutation(
        "tokens: defined", TOP, "            if node.default is None or not one:", "            if False:",
        "a selection without a head may be undefined", (f"{FRONT}::test_what_cannot_be_proved_is_refused",),
    ),
    Mutation(
        "tokens: domain of the certificate", TOP, "if certificate.holds_for != domain or certificate.dtype != numbers.dtype:",
        "if certificate.dtype != numbers.dtype:", "the domain is not compared",
        (f"{CHECK}::test_forged_certificates_are_not_confirmed",),
    ),
    Mutation(
        "tokens: digests of the certificate", TOP, "    if changed:\n        raise CheckError(",
        "    if False:\n        raise CheckError(", "a certificate fits any numbers",
        (f"{CHECK}::test_forged_certificates_are_not_confirmed",),
    ),
    Mutation(
        "tokens: margin", TOP, 'if certificate.facts["margin"] > proof.margin:', "if False:", "any margin may be stated",
        (f"{CHECK}::test_forged_certificates_are_not_confirmed",),
    ),
    Mutation(
        "tokens: states", TOP, 'or certificate.facts["states"] != proof.states:', "or False:",
        "any number of states may be stated",
        (f"{CHECK}::test_forged_certificates_are_not_confirmed",),
    ),
    Mutation(
        "tokens: mask of lengths", "attnc/network/tokens.py", "hidden = (at > lengths[:, None])[:, None, None]",
        "hidden = (at > lengths.max())[None, None, None]", "padding is attended to", (f"{NETWORK}::test_batches_and_padding",),
    ),
    Mutation(
        "tokens: padding", "attnc/network/tokens.py",
        "        for layer in self._layers()[:layers]:\n            x = layer(x, hidden).masked_fill(padding, 0)\n",
        "        for layer in self._layers()[:layers]:\n            x = layer(x, hidden)\n", "padding may be infinite or NaN",
        (f"{NETWORK}::test_padding_is_0_before_every_layer",),
    ),
    Mutation(
        "tokens: other layers", "attnc/network/tokens.py", "len(layers) < len(parts) or ", "",
        "layers of another class are passed over", (f"{NETWORK}::test_other_parts_are_noticed",),
    ),
    Mutation(
        "tokens: several dtypes", "attnc/network/tokens.py", "if len(dtypes) > 1:", "if False:",
        "embeddings of float64 in a network of float32 are executed in float64",
        (f"{NETWORK}::test_tensors_of_several_dtypes_end_the_certificate",),
    ),
    Mutation(
        "tokens: replaced domains", "attnc/records/tokens.py", "repr(program.domains) == repr(fresh.domains)",
        "program.domains == fresh.domains", "values 1 and 0 are taken for True and False",
        (f"{NETWORK}::test_a_changed_program_ends_the_certificate",),
    ),
    Mutation(
        "tokens: level of BOS", LOWER, "return _joined(pairs), unit * len(node.where) - gap",
        "return _joined(pairs), unit * len(node.where)",
        "BOS ties with selected keys", (f"{FRONT}::test_expressions",),
    ),
    Mutation(
        "tokens: anchors that are seen", HEADS, "if (best > seen_at_least(self.meaning, states)).any():", "if False:",
        "an anchor may be absent", (f"{BY_ANCHORS}::test_an_anchor_that_may_be_absent_is_refused",),
    ),
    Mutation(
        "tokens: BOS among anchors", HEADS,
        "if winners(self.stream, self.stream.read_bos(head.query, rounded=True), keys)[0] != 0:", "if False:",
        "BOS may attend to data", (f"{BY_ANCHORS}::test_conditions",),
    ),
    Mutation(
        "tokens: values of anchors", HEADS, "if reads_index_alone(self.stream, head.value) else None", "if True else None",
        "values of anchors may depend on tokens", (f"{BY_ANCHORS}::test_conditions",),
    ),
    Mutation(
        "tokens: keys of anchors", ANCHORS, "    if not reads_index_alone(stream, matrix):\n", "    if False:\n",
        "keys of anchors may depend on tokens", (f"{BY_ANCHORS}::test_conditions",),
    ),
    Mutation(
        "tokens: terms of anchors", ANCHORS, "if terms.max(initial=0) > 1 or", "if", "keys of anchors are rounded",
        (f"{BY_ANCHORS}::test_conditions",),
    ),
    Mutation(
        "tokens: rounding of anchors", ANCHORS, "lead * gamma.denominator - gamma.numerator * rounding >=",
        "lead * gamma.denominator >=", "scores of anchors do not round", (f"{BY_ANCHORS}::test_rounding_of_scores_counts",),
    ),
    Mutation(
        "tokens: errors of queries of anchors", ANCHORS, "[:, None] - scores - apart", "[:, None] - scores",
        "queries of anchors are exact", (f"{BY_ANCHORS}::test_winners_by_fractions",),
    ),
    Mutation(
        "tokens: counts that a query sees", ANCHORS, "np.maximum(found, counts[places])", "np.maximum(found, counts[places] + 1)",
        "a query sees more than it counts", (f"{BY_ANCHORS}::test_what_a_query_sees",),
    ),
    Mutation(
        "tokens: overflow of float64 enclosures", FLOATS, "np.where(safe, radius * _UP, np.inf)", "radius * _UP",
        "scores of steps may overflow", (f"{BY_FLOATS}::test_a_product_that_overflows_is_not_decided",),
    ),
    Mutation(
        "tokens: rounding of float64 enclosures", FLOATS, "radius += sizes * _lost(stream, terms) + ", "radius += ",
        "products of steps do not round", (f"{BY_FLOATS}::test_they_contain_the_rational_bounds",),
    ),
    Mutation(
        "tokens: states that stand for others", STATES, "joint = np.zeros(states.count, np.int64) if label is None else label",
        "joint = np.zeros(states.count, np.int64)", "other outputs count as the same", (f"{CHECK}",),
    ),
    Mutation(
        "tokens: last of positions", "attnc/program/tokens/positions.py", "values[last if node.tie == \"last\" else first]",
        "values[first]", "the first key is taken for the last",
        (f"{POSITIONS}::test_random_programs_are_those_of_the_interpreter",),
    ),
    Mutation(
        "tokens: additions to a program", "attnc/records/tokens.py",
        'same = set(known) <= {*(f.name for f in fields(TokenProgram)), "domains", *DERIVED, *CACHED}', "same = True",
        "methods of a program may be replaced", (f"{NETWORK}::test_a_changed_program_ends_the_certificate",),
    ),
]  # fmt: skip
