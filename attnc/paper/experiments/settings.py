"""The runs of each experiment: the sizes of the paper's protocol, and small sizes of the same shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attnc.arguments import checked_choice, checked_count
from attnc.errors import InputError

SWEEPS = ("heads", "range", "anchors", "heatmaps", "seq2seq")
FIRST_SEED = 1234
TRAINED = ("trained", "fine-tuned", "from-anchors")  # all other methods are built
BUILT = ("nearest", "smooth", "graded", "placed")
METHODS = {
    "truncated": (*TRAINED, *BUILT, "many-heads"),
    "heat-map": ("trained", "nearest"),
    "seq2seq": (*TRAINED, "tokens", "heads", "softmax"),
}


@dataclass(frozen=True)
class Setting:
    """One run: the experiment, the method, the sizes and the seed. Equal settings give equal results. docs/experiments.md
    describes the experiments and the methods."""

    experiment: str  # truncated, heat-map, seq2seq
    method: str
    seed: int
    n: int  # tokens
    d: int
    p: int  # keys: trained models have p - n extra tokens, built ones p anchors
    heads: int
    width: int
    a: float
    b: float
    samples: int  # four fifths train, one fifth tests
    epochs: int
    batch: int = 32

    def __post_init__(self) -> None:
        checked_choice("method", self.method, METHODS.get(self.experiment, ()))
        counts = (self.n, self.d, self.p, self.heads, self.width, self.samples, self.epochs, self.batch)
        typed = {type(one) for one in (*counts, self.seed)} == {int} and type(self.a) is type(self.b) is float
        valid = typed and min(counts) >= 1 and self.samples >= 5 and 0 <= self.seed < 2**63
        valid = valid and self.width % self.heads == 0 and -math.inf < self.a < self.b < math.inf
        if not valid or self.p < self.n or (self.experiment == "heat-map" and self.p != self.n):
            raise InputError(
                f"{self}: counts are integers >= 1, a < b are finite floats, p >= n (p = n for heat-map), heads divides width, "
                "samples >= 5 and 0 <= seed < 2**63"
            )

    @property
    def key(self) -> str:
        """A unique name of the setting that can serve as a file name.

        >>> settings("heads", seeds=1)[0].key
        'truncated-trained-n50-d10-p60-h1-w32-a-25-b25-x1000-e50-k32-s1234'
        """
        model = f"n{self.n}-d{self.d}-p{self.p}-h{self.heads}-w{self.width}-a{self.a!r}-b{self.b!r}"
        training = f"x{self.samples}-e{self.epochs}-k{self.batch}-s{self.seed}"
        return f"{self.experiment}-{self.method}-{model}-{training}".replace(".0-", "-")


@dataclass(frozen=True)
class Sizes:
    """The base settings of the experiments, and the values that each sweep takes."""

    truncated: Setting
    heat_map: Setting
    few: Setting  # seq2seq, against p
    many: Setting  # seq2seq, against heads
    heads: tuple[int, ...]
    widths: tuple[float, ...]  # b - a
    anchors: tuple[int, ...]
    bands: tuple[float, ...]  # b - a of the heat maps
    few_anchors: tuple[int, ...]
    many_heads: tuple[int, ...]


PROTOCOL = Sizes(
    Setting("truncated", "trained", FIRST_SEED, 50, 10, 60, 1, 32, -25.0, 25.0, 1000, 50),
    Setting("heat-map", "trained", FIRST_SEED, 30, 10, 30, 1, 32, -0.75, 0.75, 1000, 100),
    Setting("seq2seq", "trained", FIRST_SEED, 10, 5, 10, 8, 16, 0.0, 1.0, 50_000, 3),
    Setting("seq2seq", "trained", FIRST_SEED, 20, 5, 20, 1, 32, 0.0, 1.0, 50_000, 3),
    heads=(1, 2, 4, 8, 16),
    widths=(10.0, 20.0, 30.0, 40.0, 50.0),
    anchors=(60, 80, 100, 120),
    bands=(0.5, 1.5, 3.0),
    few_anchors=(10, 14, 20),
    many_heads=(1, 8, 32),
)
QUICK = Sizes(
    replace(PROTOCOL.truncated, n=12, d=4, p=20, width=16, a=-8.0, b=8.0, samples=200, epochs=10),
    replace(PROTOCOL.heat_map, n=12, d=4, p=12, width=16, samples=200, epochs=10),
    replace(PROTOCOL.few, n=4, d=2, p=4, samples=500, epochs=1, heads=4),
    replace(PROTOCOL.many, n=4, d=2, p=4, width=16, samples=500, epochs=1),
    heads=(1, 2, 4),
    widths=(4.0, 8.0, 16.0),
    anchors=(20, 28, 40),
    bands=(0.5, 3.0),
    few_anchors=(4, 8),
    many_heads=(1, 4),
)


def settings(sweep: str, seeds: int = 3, quick: bool = False) -> tuple[Setting, ...]:
    """The runs of a sweep, or of all sweeps without repetition ("all"), with the seeds 1234, 1235, …

    >>> len(settings("anchors", seeds=3)), settings("range", seeds=1)[0].b
    (84, 5.0)
    """
    checked_choice("sweep", sweep, (*SWEEPS, "all"))
    checked_count("seeds", seeds, 1, 1000)
    sizes, names = QUICK if quick else PROTOCOL, SWEEPS if sweep == "all" else (sweep,)
    points = [one for name in names for one in _points(name, sizes)]
    return tuple(dict.fromkeys(replace(one, seed=FIRST_SEED + k) for one in points for k in range(seeds)))


def _points(sweep: str, sizes: Sizes) -> list[Setting]:
    """The settings of a sweep for one seed."""
    base, more, methods = sizes.truncated, [], METHODS["truncated"][:-1]
    if sweep == "heads":
        points, methods = [replace(base, heads=h) for h in sizes.heads], (*TRAINED, "placed", "many-heads")
        more = [replace(base, method=m) for m in BUILT]  # these have one head
    elif sweep == "range":
        points = [replace(base, a=-w / 2, b=w / 2) for w in sizes.widths]
    elif sweep == "anchors":
        points = [replace(base, p=p) for p in sizes.anchors]
    elif sweep == "heatmaps":
        points = [replace(sizes.heat_map, a=-w / 2, b=w / 2) for w in sizes.bands]
        methods = METHODS["heat-map"]
    else:
        points = [replace(sizes.few, p=p) for p in sizes.few_anchors]
        points += [replace(sizes.many, heads=h) for h in sizes.many_heads]
        methods, others = ("trained",), METHODS["seq2seq"][1:]  # the others do not depend on p and heads
        more = [replace(one, method=m) for one in (sizes.few, sizes.many) for m in others]
    return [replace(one, method=m) for one in points for m in methods] + more
