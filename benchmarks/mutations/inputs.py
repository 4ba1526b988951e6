"""Errors in certificates for given inputs."""

from __future__ import annotations

from mutations.mutation import Mutation

PRODUCT = "attnc/program/integer_product.py"
PRODUCTS = "tests/program/test_integer_product.py"
GRAPH = "attnc/frontends/exact.py"
MEANINGS = "attnc/frontends/exact_operations.py"
GRAPHS = "tests/frontends/test_exact.py"
INPUT = "attnc/pretrained/for_input.py"
MODELS = "tests/pretrained/test_for_input.py"

ALTERED = f"{MODELS}::test_a_converted_part_that_runs_as_something_else_is_refused"

INPUTS = [
    Mutation(
        "inputs: parts that do not run",
        INPUT,
        "if site is None:\n",
        "if site is None:\n            continue\n        if False:\n",
        "a part that was replaced or skipped is left out",
        (ALTERED,),
    ),
    Mutation(
        "inputs: hooks on parts",
        INPUT,
        "if (reason := ask(module)) is not None:",
        "if False:",
        "hooks on converted parts are not noticed",
        (ALTERED,),
    ),
    Mutation(
        "inputs: threads that flush",
        "attnc/network/certified.py",
        "torch.get_num_threads() * _PER_THREAD",
        "1",
        "only the calling thread is asked",
        ("tests/network/test_certified.py::test_every_thread_of_torch_is_asked_whether_it_flushes_subnormal_numbers",),
    ),
    Mutation(
        "inputs: rounding of a ball",
        PRODUCT,
        "(mid[1] < e) - _floor",
        "-_floor",
        "the rounding of middles to the grid is lost",
        (f"{PRODUCTS}::test_roundings_that_nothing_else_covers",),
    ),
    Mutation(
        "inputs: rest of a weight",
        PRODUCT,
        "lost = 0 if whole else",
        "lost = 0 if True else",
        "digits beyond the precision are lost",
        (f"{PRODUCTS}::test_exact_numbers_have_exact_products",),
    ),
    Mutation(
        "inputs: radius",
        PRODUCT,
        "-(-r >> s) for r in row",
        "r >> s for r in row",
        "radii are rounded down",
        (f"{PRODUCTS}::test_roundings_that_nothing_else_covers",),
    ),
    Mutation(
        "inputs: accumulation",
        GRAPH,
        ' or given.get("accumulate")',
        "",
        "places of numbers are added up",
        (f"{GRAPHS}::test_unknown_operations_are_refused_by_name",),
    ),
    Mutation(
        "inputs: integers from activations",
        GRAPH,
        "if _is_real(node) and node in self.given:",
        "if False:",
        "integers that depend on rounded activations are taken for exact",
        (f"{GRAPHS}::test_unknown_operations_are_refused_by_name",),
    ),
    Mutation(
        "inputs: masks",
        MEANINGS,
        "scores = scores + to_balls(attn_mask)",
        "scores = scores + 0 * to_balls(attn_mask)",
        "float masks are ignored",
        (f"{GRAPHS}::test_attention",),
    ),
    Mutation(
        "inputs: digests",
        INPUT,
        "records[claim.name])) is not None:",
        "records[claim.name])) is None and reason:",
        "changed weights are taken for the original's",
        (f"{MODELS}::test_altered_weights_are_refused",),
    ),
    Mutation(
        "inputs: margin",
        INPUT,
        "others = torch.nextafter(y + bound, up)",
        "others = torch.nextafter(y, up)",
        "a margin covers the bound of the largest number alone",
        (f"{MODELS}::test_a_margin_that_is_too_small_proves_nothing",),
    ),
    Mutation(
        "inputs: distance",
        "attnc/network/certified.py",
        "upper(abs(arb(y) - z))",
        "abs(float((arb(y) - z).mid()))",
        "bounds are not rounded up",
        ("tests/network/test_certified.py::test_distances_are_rounded_up",),
    ),
]  # fmt: skip
