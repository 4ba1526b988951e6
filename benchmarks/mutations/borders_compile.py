"""Mutations of the translation of modules into programs, and of the guard that runs both."""

from __future__ import annotations

from mutations.mutation import Mutation

TRANSLATE = "attnc/frontends/translate.py"
OPERATIONS = "attnc/frontends/operations.py"
ACTIVATIONS = "attnc/frontends/activations.py"
MODULE = "attnc/frontends/module.py"
AGREE = "attnc/frontends/agree.py"
POINTS = "attnc/frontends/points.py"

FORWARDS = "tests/frontends/test_refusals.py::test_forwards"
CHANGED = "tests/frontends/test_activations.py::test_attributes_that_were_changed_are_read"
REFUSED = "tests/frontends/test_activations.py::test_refused"
SOFTPLUS = "tests/frontends/test_activations.py::test_softplus_says_how_far_torch_is_from_it"
EXACT = "tests/frontends/test_activations.py::test_what_is_put_together_is_exact"
SAYS = "tests/frontends/test_module.py::test_what_a_forward_may_say"
IN_PLACE = "tests/frontends/test_module.py::test_changes_in_place_reach_every_reader"
TOLD = "tests/frontends/test_translate.py"
SEEN = "tests/frontends/test_agree.py::test_changes_that_only_some_calls_show"
SMALL = "tests/frontends/test_agree.py::test_a_small_difference_of_a_weight_is_seen"

BORDERS_COMPILE = [
    Mutation(
        "activations: ends of hardtanh",
        ACTIVATIONS,
        'ends = b.number(min_val, "min_val"), b.number(max_val, "max_val")',
        "ends = (0.0, 6.0)",
        "nn.ReLU6 is a clip to [0, 6], whatever its attributes are",
        (CHANGED,),
    ),
    Mutation(
        "activations: slope of leaky relu",
        ACTIVATIONS,
        'return b.apply(input, _made(functions.leaky_relu, b.number(negative_slope, "negative_slope")))',
        "return b.apply(input, functions.leaky_relu(0.01))",
        "every slope is 0.01",
        (CHANGED,),
    ),
    Mutation(
        "activations: form of gelu",
        ACTIVATIONS,
        'functions.gelu() if approximate == "none" else functions.gelu_tanh()',
        "functions.gelu()",
        "gelu by tanh is gelu",
        (CHANGED,),
    ),
    Mutation(
        "activations: alpha of elu",
        ACTIVATIONS,
        'return b.apply(input, _made(functions.elu, b.number(alpha, "alpha")))',
        "return b.apply(input, functions.elu())",
        "every alpha is 1",
        (CHANGED,),
    ),
    Mutation(
        "activations: threshold of softplus",
        ACTIVATIONS,
        "    if threshold == math.inf:\n",
        "    if True:\n",
        "softplus is smooth beyond its threshold",
        (SOFTPLUS,),
    ),
    Mutation(
        "activations: deviation of softplus",
        ACTIVATIONS,
        "deviation = upper((-arb(limit)).exp().log1p() / arb(beta))",
        "deviation = lower((-arb(limit)).exp().log1p() / arb(beta))",
        "how far torch is from softplus is rounded down",
        (SOFTPLUS,),
    ),
    Mutation(
        "activations: where softplus turns linear",
        ACTIVATIONS,
        "beyond = lower(arb(limit) / arb(beta))",
        "beyond = lower(arb(limit))",
        "beta does not move the threshold",
        (SOFTPLUS,),
    ),
    Mutation(
        "activations: threshold",
        ACTIVATIONS,
        'if b.number(threshold, "threshold") != 0 or b.number(value, "value") != 0:',
        "if False:",
        "every threshold is the relu",
        (REFUSED,),
    ),
    Mutation(
        "activations: one end of a clamp",
        ACTIVATIONS,
        'if min is not None and max is None and b.number(min, "min") == 0:',
        "if min is not None and max is None:",
        "clamp(min=1) is the relu",
        ("tests/frontends/test_activations.py::test_refused_functions",),
    ),
    Mutation(
        "activations: slopes of channels",
        ACTIVATIONS,
        "if not isinstance(weight, Constant) or weight.tensor.numel() != 1:",
        "if False:",
        "the slopes of channels are one",
        (REFUSED,),
    ),
    Mutation(
        "activations: selu",
        ACTIVATIONS,
        "return b.scaled(b.apply(input, functions.elu(SELU_ALPHA)), SELU_SCALE)",
        "return b.apply(input, functions.elu(SELU_ALPHA))",
        "selu is not scaled",
        (EXACT,),
    ),
    Mutation(
        "operations: alpha",
        OPERATIONS,
        'factor = sign * b.number(alpha, "alpha")',
        "factor = sign",
        "add(x, y, alpha=2) is x + y",
        (SAYS, TOLD),
    ),
    Mutation(
        "operations: order of a difference",
        OPERATIONS,
        "return add(b, other, input, alpha, sign=-1.0)",
        "return add(b, input, other, alpha, sign=-1.0)",
        "1 - x is x - 1",
        (SAYS, TOLD),
    ),
    Mutation(
        "operations: random dropout",
        OPERATIONS,
        "if train is not False and p != 0:",
        "if False:",
        "dropout that draws random numbers does nothing",
        (TOLD,),
    ),
    Mutation(
        "operations: statistics of the batch",
        OPERATIONS,
        "if training is not False:",
        "if False:",
        "a batch norm in training has running statistics",
        (TOLD,),
    ),
    Mutation(
        "operations: softsign",
        OPERATIONS,
        'return isinstance(inner, Pointwise) and inner.function.label == "abs" and inner.input == x.index',
        'return isinstance(inner, Pointwise) and inner.function.label == "abs"',
        "x/(1 + |y|) is softsign",
        (FORWARDS,),
    ),
    Mutation(
        "translate: casts",
        TRANSLATE,
        "        if fake.dtype is not own:",
        "        if False:",
        "a value that was rounded to 16 bits is the value",
        (FORWARDS, TOLD),
    ),
    Mutation(
        "translate: changes of the input",
        TRANSLATE,
        "            if self._family(first) == 0:",
        "            if False:",
        "a forward that changes its input is accepted",
        (FORWARDS,),
    ),
    Mutation(
        "translate: changes of the model",
        TRANSLATE,
        "        if changes and not made:",
        "        if False:",
        "a forward that changes the model's numbers is accepted",
        (FORWARDS,),
    ),
    Mutation(
        "translate: aliases",
        TRANSLATE,
        "            if value.storage == old.storage:",
        "            if value is old:",
        "other names of memory that was changed keep the old numbers",
        (IN_PLACE,),
    ),
    Mutation(
        "translate: memory that may be shared",
        TRANSLATE,
        "                self._known[node] = _STALE",
        "                pass",
        "whether a copy was made does not matter",
        (FORWARDS, "tests/frontends/test_refusals.py::test_memory_that_may_be_shared"),
    ),
    Mutation(
        "translate: arguments that are not known",
        TRANSLATE,
        "if name not in takes and not everything and (name not in defaults or value != defaults[name]):",
        "if False:",
        "arguments that the translation does not know are ignored",
        (TOLD,),
    ),
    Mutation(
        "translate: dead code that writes",
        TRANSLATE,
        "        or written(node)\n",
        "",
        "a refused change in place is passed over where nothing reads its result",
        (FORWARDS,),
    ),
    Mutation(
        "translate: random numbers",
        TRANSLATE,
        "if torch.Tag.nondeterministic_seeded in target.tags:",
        "if False:",
        "numbers that were drawn once are constants",
        (FORWARDS,),
    ),
    Mutation(
        "module: second recording",
        MODULE,
        "    for other in found[1:]:",
        "    for other in ():",
        "what a module does without gradients, or on strided input, is not read",
        (FORWARDS,),
    ),
    Mutation(
        "module: the batch size",
        MODULE,
        "    if assumed:\n",
        "    if False:\n",
        "the batch size may decide what is computed",
        (FORWARDS,),
    ),
    Mutation(
        "module: guard",
        MODULE,
        "problems += [found] if found else []",
        "pass",
        "what the guard finds is ignored",
        ("tests/frontends/test_agree.py::test_a_forward_that_knows_that_it_is_recorded",),
    ),
    Mutation(
        "agree: tolerance",
        AGREE,
        "TOLERANCES = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}",
        "TOLERANCES = {torch.float64: (1e-1, 1e-2), torch.float32: (1e-1, 1e-2)}",
        "the guard allows differences of a tenth",
        (SMALL,),
    ),
    Mutation(
        "agree: NaN",
        AGREE,
        "off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)",
        "off = gap.reshape(len(gap), -1).max(1) > allowed",
        "NaN differs from nothing",
        (SEEN,),
    ),
    Mutation(
        "agree: grad modes",
        AGREE,
        "with torch.set_grad_enabled(way.grad), torch.random",
        "with torch.set_grad_enabled(False), torch.random",
        "the guard runs without gradients only",
        (SEEN,),
    ),
    Mutation(
        "agree: strided input",
        AGREE,
        "return _numbers(model(strided(given) if way.strided else given))",
        "return _numbers(model(given))",
        "the guard runs on contiguous input only",
        (SEEN,),
    ),
    Mutation(
        "agree: single points",
        AGREE,
        "for size in [1] * SINGLES + [2, 3]:",
        "for size in [2, 3]:",
        "the guard never runs a batch of one",
        (SEEN,),
    ),
    Mutation(
        "agree: its own dtype",
        AGREE,
        "for dtype in dict.fromkeys((torch.float64, _own(model))):",
        "for dtype in (torch.float64,):",
        "the guard runs in float64 only",
        (SEEN,),
    ),
    Mutation(
        "points: ends of the box",
        POINTS,
        "parts += [corners, inside, mixed, lo[None], hi[None]]",
        "parts += [inside]",
        "the guard does not run at the corners of the box",
        (SEEN,),
    ),
    Mutation(
        "points: kinks",
        POINTS,
        "            if min(at_start[i], at_end[i]) < target < max(at_start[i], at_end[i]):",
        "            if False:",
        "the guard does not look for kinks",
        ("tests/frontends/test_agree.py::test_the_points_reach_kinks_and_ends",),
    ),
    Mutation(
        "points: drawn anew",
        "attnc/frontends/agree.py",
        "draw = np.random.default_rng()",
        "draw = np.random.default_rng(0)",
        "the guard runs at the same points each time",
        ("tests/frontends/test_agree.py::test_the_guard_draws_other_points_each_time",),
    ),
]
