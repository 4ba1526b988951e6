"""Mutations of tracing, of Taylor models and of the bounds of lattice networks."""

from __future__ import annotations

from mutations.mutation import Mutation

TAYLOR, FUNCTIONS = "attnc/prove/taylor.py", "attnc/prove/taylor_functions.py"
DEFINED, ROOTS = "attnc/prove/defined.py", ("tests/prove/test_defined.py",)
LATTICE, BOUND = "attnc/prove/lattice.py", "attnc/prove/lattice_bound.py"
ROUNDING, GRADIENT = "attnc/prove/lattice_rounding.py", "attnc/prove/gradient.py"
TAPE, TRACE = "attnc/frontends/tape.py", "attnc/frontends/trace.py"

CONTAINED = "tests/prove/test_taylor.py::test_operations_are_contained"
NETWORK = "tests/prove/test_lattice_bound.py::test_models_of_the_network_are_contained"
OFFSETS = "tests/prove/test_lattice_bound.py::test_offsets_that_are_no_sums_over_the_axes"
EXECUTED = "tests/prove/test_lattice_bound.py::test_rounding_is_bounded"
COVER = "tests/prove/test_lattice_bound.py::test_cells_cover_the_box_also_after_splits"
SLOPES = "tests/prove/test_gradient.py"
TRACED = "tests/frontends/test_trace.py"

TRACED_FUNCTIONS = [
    Mutation(
        "Taylor models: what a product cuts off",
        TAYLOR,
        "                tail += na[p] * behind[max(0, most - p + 1)]",
        "                tail += 0.0",
        "terms above the degree are dropped",
        (CONTAINED,),
    ),
    Mutation(
        "Taylor models: radius of a product",
        TAYLOR,
        "r = tail + size_a * b.r + size_b * a.r + a.r * b.r",
        "r = tail + a.r * b.r",
        "the radius of a factor is not multiplied by the other factor",
        (CONTAINED,),
    ),
    Mutation(
        "Taylor models: remainder of a composition",
        TAYLOR,
        "(found.r + error + slope * self.r + rest)",
        "(found.r + error + slope * self.r)",
        "the remainder of Taylor's theorem is left out",
        (CONTAINED,),
    ),
    Mutation(
        "Taylor models: deviation of a chord",
        FUNCTIONS,
        "off = np.maximum(ends, np.abs(lift)) + 16",
        "off = np.minimum(ends, np.abs(lift)) / 2 + 16",
        "a kink inside a cell is half ignored",
        (CONTAINED,),
    ),
    Mutation(
        "lattice: what tables cut off",
        LATTICE,
        "return np.asarray((cut + own) * GROW + TINY)",
        "return np.asarray(own * GROW + TINY)",
        "terms above the degree of the tables are dropped",
        (NETWORK,),
    ),
    Mutation(
        "lattice: differences of offsets",
        LATTICE,
        "folded = values.reshape(*counts, -1) * grown[..., None]",
        "folded = values.reshape(*counts, -1) * 1.0",
        "the rounding of offsets is not part of the values",
        (OFFSETS,),
    ),
    Mutation(
        "lattice bound: halves of cells",
        BOUND,
        "moved = centre[None] + signs[:, None] * (half / 2)",
        "moved = centre[None] + signs[:, None] * (half / 2.2)",
        "the ends of a cell are not covered by its halves",
        (COVER,),
    ),
    Mutation(
        "lattice rounding: values that cancel",
        ROUNDING,
        "total = moved + common * (largest + moved) + roundings * (1 + common) * mass",
        "total = common * (largest + moved)",
        "rounding is relative to the output, not to the values",
        (EXECUTED,),
    ),
    Mutation(
        "gradient: maximum of two",
        GRADIENT,
        "slope = np.where(first, a.slope, np.where(second, b.slope, np.maximum(a.slope, b.slope)))",
        "slope = np.minimum(a.slope, b.slope)",
        "the slope of a maximum is the smaller of the two",
        (SLOPES,),
    ),
    Mutation(
        "trace: zero times a singularity",
        TAPE,
        "if number == 0 and other not in self._partial:",
        "if number == 0:",
        "0·(1/x) is 0 also at 0",
        (TRACED,),
    ),
    Mutation(
        "trace: casts",
        "attnc/frontends/trace_dtypes.py",
        "if made == torch.float32 and torch.float64 in before:",
        "if False:",
        "a cast to float32 is read as exact",
        (TRACED,),
    ),
    Mutation(
        "trace: the inputs of a batch",
        TAPE,
        "                if at not in place:\n                    return None\n                continue",
        "                place.setdefault(at, 0)\n                continue",
        "a mean over the batch is read as a function of one input",
        (TRACED,),
    ),
    Mutation(
        "roots: the sign of a difference",
        DEFINED,
        '_two("subtract", lambda a, b: False)',
        '_two("subtract", _both)',
        "a difference of what is not negative counts as not negative",
        ROOTS,
    ),
    Mutation(
        "roots: the sign of an odd power",
        DEFINED,
        "exponent % 2 == 0 or a.signed",
        "True",
        "every power counts as not negative",
        ROOTS,
    ),
    Mutation(
        "roots: the sign of a product",
        DEFINED,
        "lambda a, b: a is b or _both(a, b)",
        "lambda a, b: a.signed or b.signed",
        "a product with one factor that is not negative counts as not negative",
        ROOTS,
    ),
    Mutation(
        "roots: the sign of a minimum",
        DEFINED,
        '"minimum": _two("minimum", _both)',
        '"minimum": _two("minimum", lambda a, b: a.signed or b.signed)',
        "one of two signs is enough for a minimum",
        ROOTS,
    ),
    Mutation(
        "roots: what is not finite",
        DEFINED,
        "        if not made.is_finite():",
        "        if False:",
        "a quotient by what may be 0 counts as defined",
        ROOTS,
    ),
]
