"""Mutations of the translation of modules into programs, and of the guard that runs both."""

from __future__ import annotations

from mutations.mutation import Mutation

TRANSLATE = "attnc/frontends/translate.py"
OPERATIONS = "attnc/frontends/operations.py"
ACTIVATIONS = "attnc/frontends/activations.py"
MODULE = "attnc/frontends/module.py"
BUILDER = "attnc/frontends/builder.py"
MEMORY = "attnc/frontends/memory.py"
COMPARISON = "attnc/frontends/comparison.py"
POINTS = "attnc/frontends/probe_points.py"

FORWARDS = "tests/frontends/test_refusals.py::test_forwards"
CHANGED = "tests/frontends/test_activations.py::test_attributes_that_were_changed_are_read"
REFUSED = "tests/frontends/test_activations.py::test_refused"
SOFTPLUS = "tests/frontends/test_activations.py::test_softplus_says_how_far_torch_is_from_it"
EXACT = "tests/frontends/test_activations.py::test_what_is_put_together_is_exact"
SAYS = "tests/frontends/test_module.py::test_what_a_forward_may_say"
IN_PLACE = "tests/frontends/test_module.py::test_changes_in_place_reach_every_reader"
TOLD = "tests/frontends/test_translate.py"
SEEN = "tests/frontends/test_comparison.py::test_changes_that_only_some_calls_show"
SMALL = "tests/frontends/test_comparison.py::test_a_small_difference_of_a_weight_is_seen"

BORDERS_COMPILE = [
    Mutation(
        "activations: ends of hardtanh",
        ACTIVATIONS,
        'lo, hi = finite(min_val, "min_val"), finite(max_val, "max_val")',
        "lo, hi = 0.0, 6.0",
        "nn.ReLU6 is a clip to [0, 6], whatever its attributes are",
        (CHANGED,),
    ),
    Mutation(
        "activations: slope of leaky relu",
        ACTIVATIONS,
        'return functions.leaky_relu(finite(negative_slope, "negative_slope"))',
        "return functions.leaky_relu(0.01)",
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
        'return functions.elu(finite(alpha, "alpha"))',
        "return functions.elu()",
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
        "deviation = upper((-arb(limit)).exp().log1p() / arb(steep))",
        "deviation = lower((-arb(limit)).exp().log1p() / arb(steep))",
        "how far torch is from softplus is rounded down",
        (SOFTPLUS,),
    ),
    Mutation(
        "activations: where softplus turns linear",
        ACTIVATIONS,
        "beyond = lower(arb(limit) / arb(steep))",
        "beyond = lower(arb(limit))",
        "beta does not move the threshold",
        (SOFTPLUS,),
    ),
    Mutation(
        "activations: threshold",
        ACTIVATIONS,
        '    if finite(threshold, "threshold") != 0 or finite(value, "value") != 0:',
        "    if False:",
        "every threshold is the relu",
        (REFUSED,),
    ),
    Mutation(
        "activations: one end of a clamp",
        ACTIVATIONS,
        'if min is not None and max is None and finite(min, "min") == 0:',
        "if min is not None and max is None:",
        "clamp(min=1) is the relu",
        (TOLD,),
    ),
    Mutation(
        "activations: slopes of channels",
        BUILDER,
        "            if c.tensor.numel() != 1:\n",
        "            if False:\n",
        "the slopes of channels are one",
        (REFUSED,),
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
        "        training is not False\n        or not isinstance(running_mean, Constant)\n",
        "        not isinstance(running_mean, Constant)\n",
        "a batch norm in training has running statistics",
        (TOLD,),
        equivalent="torch refuses a batch of one in training, and that the batch size decides is refused",
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
        MEMORY,
        "    for changed in changed_tensors(graph, maybe=True):\n",
        "    for changed in ():\n",
        "a forward that changes its input is accepted",
        (FORWARDS,),
    ),
    Mutation(
        "translate: changes of the model",
        TRANSLATE,
        "        if changes and not created:\n",
        "        if False:\n",
        "a forward that changes the model's numbers is accepted",
        (FORWARDS,),
    ),
    Mutation(
        "translate: memory that may be shared",
        MEMORY,
        "        if (reader, read) not in always:\n",
        "        if False:\n",
        "whether a copy was made does not matter",
        (FORWARDS, "tests/frontends/test_refusals.py::test_memory_that_may_be_shared"),
    ),
    Mutation(
        "translate: arguments that are not known",
        TRANSLATE,
        "if key not in supported and not everything and (key not in defaults or value != defaults[key]):",
        "if False:",
        "arguments that the translation does not know are ignored",
        (TOLD,),
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
        "capture: aliases",
        "attnc/frontends/capture.py",
        "if (functional or pure) and overwrites(exported.graph):",
        "if functional and overwrites(exported.graph):",
        "a change in place is not seen under other names of the memory",
        (IN_PLACE,),
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
        "module: every way",
        MODULE,
        "ways = [(example, True), (other, False), (example, False), (other, True)]",
        "ways = [(example, True), (other, False)]",
        "what a module does without gradients on contiguous input is not read",
        (FORWARDS,),
    ),
    Mutation(
        "module: input that requires gradients",
        MODULE,
        "        ways.append((tracked, True))\n",
        "        pass\n",
        "what a module does to input that requires gradients is not read",
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
        ("tests/frontends/test_comparison.py::test_a_forward_that_knows_that_it_is_recorded",),
    ),
    Mutation(
        "agree: tolerance",
        COMPARISON,
        "TOLERANCES = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}",
        "TOLERANCES = {torch.float64: (1e-1, 1e-2), torch.float32: (1e-1, 1e-2)}",
        "the guard allows differences of a tenth",
        (SMALL,),
    ),
    Mutation(
        "agree: NaN",
        COMPARISON,
        "off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)",
        "off = gap.reshape(len(gap), -1).max(1) > allowed",
        "NaN differs from nothing",
        (SEEN,),
    ),
    Mutation(
        "agree: grad modes",
        COMPARISON,
        "        for grad in (False, True)\n        for strides",
        "        for grad in (False,)\n        for strides",
        "the guard runs without gradients only",
        (SEEN,),
    ),
    Mutation(
        "agree: strided input",
        COMPARISON,
        "given = strided(given) if way.strided else given",
        "pass",
        "the guard runs on contiguous input only",
        (SEEN,),
    ),
    Mutation(
        "agree: single points",
        COMPARISON,
        "for size in [1] * SINGLES + [2, 3]:",
        "for size in [2, 3]:",
        "the guard never runs a batch of one",
        (SEEN,),
    ),
    Mutation(
        "agree: its own dtype",
        COMPARISON,
        "for dtype in dict.fromkeys((torch.float64, model_dtype(model))):",
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
        ("tests/frontends/test_comparison.py::test_the_ends_of_the_box_are_among_the_points",),
    ),
    Mutation(
        "points: kinks",
        POINTS,
        "            if min(at_start[i], at_end[i]) < target < max(at_start[i], at_end[i]):",
        "            if False:",
        "the guard does not look for kinks",
        ("tests/frontends/test_comparison.py::test_the_points_reach_kinks_and_ends",),
    ),
    Mutation(
        "points: drawn anew",
        "attnc/frontends/comparison.py",
        "draw = np.random.default_rng()",
        "draw = np.random.default_rng(0)",
        "the guard runs at the same points each time",
        ("tests/frontends/test_comparison.py::test_the_guard_draws_other_points_each_time",),
    ),
]
