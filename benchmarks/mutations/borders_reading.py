"""Mutations of how executed graphs are captured, and how their operations are read."""

from __future__ import annotations

from mutations.mutation import Mutation

CAPTURE = "attnc/frontends/capture.py"
OPS = "attnc/frontends/transformers/ops.py"
EXPRESSIONS = "attnc/frontends/transformers/expressions.py"
READING = "attnc/frontends/transformers/reading.py"

TEST_CAPTURE = "tests/frontends/test_capture.py"
READS = "tests/frontends/test_reading.py"
COMPUTED = f"{READS}::test_what_makes_other_numbers"
FUNCTION = f"{READS}::test_which_function_it_is"
ELEMENTWISE = f"{READS}::test_what_is_not_one_function_of_every_number"
NO_NORM = f"{READS}::test_what_is_not_known_to_be_a_norm"
GATED = f"{READS}::test_products_that_are_no_gated_block"
GRAD = f"{READS}::test_a_forward_that_depends_on_the_grad_mode_is_refused"

BORDERS_READING = [
    Mutation(
        "capture: fast path",
        CAPTURE,
        "torch.backends.mha.set_fastpath_enabled(False)",
        "pass",
        "torch's encoder layers are recorded as one fused operation",
        (f"{TEST_CAPTURE}::test_the_fused_encoder_is_recorded_in_parts",),
        equivalent="torch 2.13 leaves the fast path by itself while it exports, as a torch function mode is on",
    ),
    Mutation(
        "capture: memory that is changed",
        CAPTURE,
        "        if stale:\n            return True",
        "        if stale:\n            return False",
        "what was changed in place under another name is read as it was before",
        (f"{READS}::test_a_change_in_place_of_what_another_reads_is_read",),
    ),
    Mutation(
        "capture: views",
        CAPTURE,
        "return first if aliased or composite else None",
        "return None",
        "no operation shares memory with another",
        (f"{READS}::test_a_change_in_place_of_what_another_reads_is_read",),
    ),
    Mutation(
        "capture: grad mode",
        CAPTURE,
        "with torch.set_grad_enabled(grad), torch.autocast",
        "with torch.set_grad_enabled(True), torch.autocast",
        "every recording is one with gradients",
        (GRAD, f"{TEST_CAPTURE}::test_the_grad_mode_is_the_one_that_was_asked_for"),
    ),
    Mutation(
        "capture: autocast",
        CAPTURE,
        'torch.autocast("cpu", enabled=False):\n            try',
        'torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu")):\n            try',
        "what is recorded depends on autocast around it",
        ("tests/frontends/test_module.py::test_autocast_around_it_does_not_matter",),
    ),
    Mutation(
        "capture: sizes 0 and 1",
        CAPTURE,
        "with patch(backed_size_oblivious=True):",
        "with patch(backed_size_oblivious=False):",
        "a branch on a batch of one is not seen",
        (f"{TEST_CAPTURE}::test_what_is_assumed_about_a_dynamic_size",),
    ),
    Mutation(
        "ops: dropout in training",
        OPS,
        'return source if arguments(node).get("train") is False else None',
        "return source",
        "dropout that draws random numbers changes nothing",
        (COMPUTED, ELEMENTWISE),
    ),
    Mutation(
        "ops: casts",
        OPS,
        "return source if same or (casts and wide) else None",
        "return source",
        "casts to 16 bits change nothing",
        (COMPUTED, ELEMENTWISE),
    ),
    Mutation(
        "ops: casts between float32 and float64",
        OPS,
        "return source if same or (casts and wide) else None",
        "return source if same or wide else None",
        "a cast from float64 to float32 and back changes nothing",
        (f"{READS}::test_casts_count_only_where_they_may",),
    ),
    Mutation(
        "ops: bits read as other numbers",
        OPS,
        "    if not same:",
        "    if False:",
        "x.view(dtype) changes nothing",
        (COMPUTED, ELEMENTWISE),
    ),
    Mutation(
        "ops: reshapes of the last axis",
        OPS,
        "if not before or not after or before[-1] != after[-1]:",
        "if not before or not after:",
        "vectors that are cut into parts are the same vectors",
        (COMPUTED,),
    ),
    Mutation(
        "ops: a transposed last axis",
        OPS,
        'return last not in {int(given["dim0"]) % (last + 1), int(given["dim1"]) % (last + 1)}',
        "return True",
        "columns count as rows",
        (COMPUTED, NO_NORM),
    ),
    Mutation(
        "ops: a permuted last axis",
        OPS,
        'return int(given["dims"][-1]) % (last + 1) == last',
        "return True",
        "columns count as rows",
        (COMPUTED,),
    ),
    Mutation(
        "ops: a slice of the last axis",
        OPS,
        'return int(given["dim"]) % (last + 1) != last',
        "return True",
        "a part of a vector counts as the vector",
        (COMPUTED,),
    ),
    Mutation(
        "ops: rows",
        OPS,
        "if known in _RESHAPES or (rows and known in _ROWS):",
        "if known in _RESHAPES or known in _ROWS:",
        "reordered vectors count as the same, token by token",
        (f"{READS}::test_vectors_may_be_reordered_where_only_their_set_matters",),
    ),
    Mutation(
        "expressions: ends of a clip",
        EXPRESSIONS,
        'return _clipped(inner(x), (0.0, 6.0) if op == "relu6" else ends, node)',
        "return _clipped(inner(x), (0.0, 6.0), node)",
        "every clip is a relu6",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: one end of a clip",
        EXPRESSIONS,
        "return None if None in e[2:] else",
        'return "relu" if None in e[2:] else',
        "a clip with one end is the relu",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: threshold",
        EXPRESSIONS,
        'if op == "threshold" and given["threshold"] == 0 == given["value"]:',
        'if op == "threshold":',
        "every threshold is the relu",
        (ELEMENTWISE,),
    ),
    Mutation(
        "expressions: threshold of softplus",
        EXPRESSIONS,
        'return f"softplus({e[2]!r})" if e[3] == math.inf else None',
        'return f"softplus({e[2]!r})"',
        "softplus is smooth beyond its threshold, where torch returns its input",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: scales of elu",
        EXPRESSIONS,
        'return f"elu({e[2]!r})" if e[3:] == (1.0, 1.0) else None',
        'return f"elu({e[2]!r})"',
        "the scales of elu are ignored",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: form of gelu",
        EXPRESSIONS,
        'return {"none": "gelu", "tanh": "gelu_tanh"}.get(e[2])',
        'return "gelu"',
        "gelu by tanh is gelu",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: power",
        EXPRESSIONS,
        'return ("square", inner(x)) if power == 2 else ("pow", inner(x), float(power))',
        'return ("square", inner(x))',
        "every power is the square",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: broadcasting",
        EXPRESSIONS,
        'return same and given.get("alpha", 1) == 1',
        'return given.get("alpha", 1) == 1',
        "a product with one number for all neurons is a product neuron by neuron",
        (GATED,),
    ),
    Mutation(
        "expressions: alpha",
        EXPRESSIONS,
        'return same and given.get("alpha", 1) == 1 and',
        "return same and",
        "add(s, t, alpha=2) is s + t",
        (ELEMENTWISE,),
    ),
    Mutation(
        "expressions: rounded quotients",
        EXPRESSIONS,
        'and given.get("rounding_mode") is None',
        "",
        "a quotient that is rounded to an integer is a quotient",
        (ELEMENTWISE,),
    ),
    Mutation(
        "expressions: function of another argument",
        EXPRESSIONS,
        'op, simple = e[0], len(e) > 1 and e[1] == ("s", 0)',
        "op, simple = e[0], len(e) > 1",
        "tanh(2s) is tanh",
        (FUNCTION,),
    ),
    Mutation(
        "reading: gated maps exchanged",
        READING,
        "used = used if bare[0][1] == 1 else used[::-1]",
        "used = used if bare[0][1] == 0 else used[::-1]",
        "the map of the activation and the other one are exchanged",
        (f"{READS}::test_the_map_of_the_activation_comes_first",),
    ),
    Mutation(
        "reading: two inputs of a gated block",
        READING,
        "    if ops.origin(used[0].input) is not ops.origin(used[1].input):\n        return None\n    swapped",
        "    swapped",
        "two maps of different inputs are a gated block",
        (f"{READS}::test_maps_of_two_inputs_are_left_alone_beside_blocks",),
    ),
    Mutation(
        "reading: addmm with factors",
        READING,
        'elif known == "addmm" and given["beta"] == given["alpha"] == 1:',
        'elif known == "addmm":',
        "the factors of addmm are ignored",
        (f"{READS}::test_factors_of_a_map",),
    ),
    Mutation(
        "reading: bilinear",
        READING,
        'activation = None if _mentions(expression, ("s", 1)) else function_of(expression)',
        'activation = "silu" if _mentions(expression, ("s", 1)) else function_of(expression)',
        "what is not understood of two maps is a silu",
        (GATED,),
    ),
]
