"""Mutations of how executed graphs are captured, and how their operations are read."""

from __future__ import annotations

from mutations.mutation import Mutation

ALTERED = "tests/pretrained/test_altered.py::test_alterations_are_refused"
CAPTURE = "attnc/frontends/capture.py"
OPS = "attnc/frontends/aten.py"
ACTIVATIONS = "attnc/frontends/activations.py"
EXPRESSIONS = "attnc/frontends/transformers/expressions.py"
READING = "attnc/frontends/transformers/blocks.py"
VIEWS = "attnc/frontends/views.py"
ATTENTION = "attnc/frontends/attention.py"

TEST_CAPTURE = "tests/frontends/test_capture.py"
READS = "tests/frontends/test_reading.py"
COMPUTED = f"{READS}::test_what_makes_other_numbers"
FUNCTION = f"{READS}::test_which_function_it_is"
ELEMENTWISE = f"{READS}::test_what_is_not_one_function_of_every_number"
NO_NORM = f"{READS}::test_what_is_not_known_to_be_a_norm"
GATED = f"{READS}::test_products_that_are_no_gated_block"
GRAD = f"{READS}::test_a_forward_that_depends_on_the_grad_mode_is_refused"
TEST_VIEWS = "tests/frontends/test_views.py"
MIXED = f"{TEST_VIEWS}::test_what_mixes_tokens_or_inputs_is_refused"
PAIRS = f"{TEST_VIEWS}::test_pairs_and_constants_follow_the_order_of_the_tensor"

BORDERS_READING = [
    Mutation(
        "capture: fast path",
        CAPTURE,
        "        fused_path(False),\n",
        "",
        "torch's encoder layers are recorded as one fused operation",
        (f"{TEST_CAPTURE}::test_the_fused_encoder_is_recorded_in_parts",),
        equivalent="torch 2.13 leaves the fast path by itself while it exports, as a torch function mode is on",
    ),
    Mutation(
        "memory: memory that is changed",
        OPS,
        "        for target in written(node):  # the names",
        "        for target in ():  # the names",
        "what was changed in place under another name is read as it was before",
        (f"{READS}::test_a_change_in_place_of_what_another_reads_is_read",),
    ),
    Mutation(
        "memory: views",
        OPS,
        "for read in _shared(node, maybe):",
        "for read in ():",
        "no operation shares memory with another",
        (f"{READS}::test_a_change_in_place_of_what_another_reads_is_read",),
    ),
    Mutation(
        "memory: operations that may return their input",
        OPS,
        "return node.all_input_nodes if maybe and composite",
        "return [] if maybe and composite",
        "einsum and others never share memory with their input",
        (f"{ALTERED}[between norm and block: by_einsum]",),
        equivalent="the guard, which looks at what enters the block, refuses such a model too",
    ),
    Mutation(
        "memory: dropout",
        OPS,
        ' or known.endswith("dropout")',
        "",
        "outside of training, dropout makes a copy",
        (f"{ALTERED}[between norm and block: by_dropout]",),
        equivalent="dropout is a composite operation, which counts as one that may return its input; and the guard refuses",
    ),
    Mutation(
        "memory: tensors that are changed",
        OPS,
        'node.op == "placeholder" and memory[node] in targets',
        "False",
        "a forward that changes its own numbers is taken for one that computes",
        ("tests/frontends/test_capture.py::test_tensors_that_a_forward_changes_are_named",),
    ),
    Mutation(
        "capture: inference mode",
        CAPTURE,
        'asked = ((torch, "is_inference_mode_enabled"), (torch,',
        "asked = ((torch,",
        "a forward may ask whether inference mode is on",
        ("tests/frontends/test_capture.py::test_a_forward_that_asks_for_inference_mode_is_refused",),
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
        'known = {"backed_size_oblivious": True}',
        'known = {"backed_size_oblivious": False}',
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
        "(rows and known in _ROWS)",
        "(known in _ROWS)",
        "reordered vectors count as the same, token by token",
        (f"{READS}::test_vectors_may_be_reordered_where_only_their_set_matters",),
    ),
    Mutation(
        "expressions: ends of a clip",
        ACTIVATIONS,
        'lo, hi = finite(min_val, "min_val"), finite(max_val, "max_val")',
        "lo, hi = 0.0, 6.0",
        "every clip is a relu6",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: one end of a clip",
        ACTIVATIONS,
        '        raise RefusedError("has one end: clamp(min, max) and clamp(min=0) are accepted")',
        "        return functions.relu()",
        "a clip with one end is the relu",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: threshold",
        ACTIVATIONS,
        '    if finite(threshold, "threshold") != 0 or finite(value, "value") != 0:',
        "    if False:",
        "every threshold is the relu",
        (ELEMENTWISE,),
    ),
    Mutation(
        "expressions: threshold of softplus",
        EXPRESSIONS,
        "if found.deviation == 0:",
        "if True:",
        "softplus is smooth beyond its threshold, where torch returns its input",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: scales of elu",
        ACTIVATIONS,
        "    if scale != 1 or input_scale != 1:",
        "    if False:",
        "the scales of elu are ignored",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: form of gelu",
        ACTIVATIONS,
        'return functions.gelu() if approximate == "none" else functions.gelu_tanh()',
        "return functions.gelu()",
        "gelu by tanh is gelu",
        (FUNCTION,),
    ),
    Mutation(
        "expressions: power",
        ACTIVATIONS,
        '    if finite(exponent, "exponent") not in (1, 2):',
        "    if False:",
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
        'if expression[1:] == (("s", 0),) else None',
        "if len(expression) == 2 else None",
        "tanh(2s) is tanh",
        (FUNCTION,),
    ),
    Mutation(
        "reading: gated maps exchanged",
        READING,
        "used = used if index == 1 else used[::-1]",
        "used = used if index == 0 else used[::-1]",
        "the map of the activation and the other one are exchanged",
        (f"{READS}::test_the_map_of_the_activation_comes_first",),
    ),
    Mutation(
        "reading: two inputs of a gated block",
        READING,
        "        if aten.origin(used[0].input) is not aten.origin(used[1].input):\n            return None\n        split",
        "        split",
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
        'activation = None if _contains(e, ("s", 1)) else function_of(e)',
        'activation = "silu" if _contains(e, ("s", 1)) else function_of(e)',
        "what is not understood of two maps is a silu",
        (GATED,),
    ),
    Mutation(
        "views: arrangements that differ",
        VIEWS,
        "for part in (tokens, features, signs)):",
        "for part in (signs,)):",
        "each token, or each input of a batch, may be arranged in its own way",
        (MIXED,),
    ),
    Mutation(
        "views: pairs",
        VIEWS,
        "if x.value.shape != y.value.shape or not torch.equal(x.index, y.index):",
        "if x.value.shape != y.value.shape:",
        "tokens are added to other tokens",
        (PAIRS,),
    ),
    Mutation(
        "views: signs of rows",
        VIEWS,
        "bias=None if step.bias is None else step.bias[at] * sign",
        "bias=None if step.bias is None else step.bias[at]",
        "the bias of an affine map keeps its sign where its rows do not",
        (f"{TEST_VIEWS}::test_features_of_an_affine_map_are_rows_of_it",),
    ),
    Mutation(
        "views: constants of a batch",
        VIEWS,
        "if bool((each != each[:1]).any()):",
        "if False:",
        "constants that differ between the inputs of a batch are those of the first",
        (PAIRS,),
    ),
    Mutation(
        "attention: axes",
        ATTENTION,
        "or not torch.equal(found.index, _places(batch, heads, n, d)):",
        "or False:",
        "attention over another axis, or to tokens in another order, is read as attention over the tokens",
        ("tests/frontends/test_whole.py::test_what_is_not_attention_is_refused_by_name",),
    ),
]
