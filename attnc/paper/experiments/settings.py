"""Which runs an experiment of the paper consists of: the protocol's sizes, and small ones of the same shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from attnc.errors import InputError

SWEEPS = ("heads", "range", "anchors", "heatmaps", "seq2seq")
FIRST_SEED = 1234
TRAINED = ("trained", "fine-tuned", "from-anchors")  # by the protocol's optimiser; the others are built
BUILT = ("nearest", "smooth", "graded", "placed")
METHODS = {
    "truncated": (*TRAINED, *BUILT, "many-heads"),
    "heat-map": ("trained", "nearest"),
    "seq2seq": (*TRAINED, "tokens", "heads", "softmax"),
}


@dataclass(frozen=True)
class Setting:
    """One run: what is learnt, by which method, at which size, from which seed. Equal settings give equal results.

    The methods of experiment "truncated":

        trained         from random weights
        nearest         built: one head, p uniform anchors, c = 4
        smooth          built: the same with c = 1
        graded          built: one head, p anchors, dense around both kinks
        many-heads      built: H heads of n keys
        placed          built: six anchors written into the very model that is trained, among its p - n extra tokens
        fine-tuned      ten gentler anchors written into that model, then trained
        from-anchors    the same, but the linear functions <w_i, x_i> + t_i start as the protocol's

    Of "heat-map": trained, nearest. Of "seq2seq": trained; tokens, heads (built: two layers of attention, neurons as tokens or as
    heads); softmax (built: attention, then softmax); fine-tuned (from heads, with ten gentler anchors); from-anchors (those
    anchors, but random affine maps)."""

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
        counts = {
            name: getattr(self, name)
            for name in ("n", "d", "p", "heads", "width", "samples", "epochs", "batch")
        }
        wrong = [f"{name}={value!r}" for name, value in counts.items() if type(value) is not int or value < 1]
        wrong += [
            f"{name}={end!r}"
            for name in "ab"
            if type(end := getattr(self, name)) is not float or end - end != 0
        ]
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            wrong.append(f"seed={self.seed!r}")
        if not wrong:
            wrong = [text for text, true in self._relations().items() if not true]
        if wrong:
            raise InputError(
                f"a run of {self.experiment!r} cannot have {', '.join(wrong)}: sizes are whole numbers from 1 on, a < b finite "
                "floats, p >= n (p = n for heat-map), the heads divide the width, and there are 5 samples or more"
            )
        if self.method not in METHODS.get(self.experiment, ()):
            known = "; ".join(f"{name}: {', '.join(methods)}" for name, methods in METHODS.items())
            raise InputError(
                f"experiment {self.experiment!r} has no method {self.method!r}: there are {known}"
            )

    def _relations(self) -> dict[str, bool]:
        fits = self.p == self.n if self.experiment == "heat-map" else self.p >= self.n
        return {
            f"p={self.p} with n={self.n}": fits,
            f"heads={self.heads} with width={self.width}": self.width % self.heads == 0,
            f"a={self.a} with b={self.b}": self.a < self.b,
            f"samples={self.samples}": self.samples >= 5,
        }

    @property
    def key(self) -> str:
        """A name that no other setting has, fit for a file.

        >>> settings("heads", seeds=1)[0].key
        'truncated-trained-n50-d10-p60-h1-w32-a-25-b25-x1000-e50-k32-s1234'
        """
        model = f"n{self.n}-d{self.d}-p{self.p}-h{self.heads}-w{self.width}-a{self.a!r}-b{self.b!r}"
        training = f"x{self.samples}-e{self.epochs}-k{self.batch}-s{self.seed}"
        return f"{self.experiment}-{self.method}-{model}-{training}".replace(".0-", "-")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Setting:
        """The setting again; unknown and missing fields raise."""
        known = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or set(record) != known:
            raise InputError(f"a setting has the fields {', '.join(sorted(known))}: got {record!r}")
        return cls(**record)


@dataclass(frozen=True)
class Sizes:
    """What a sweep goes through."""

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
    """The runs of a sweep, of "all" sweeps without repetition; seeds 1234, 1235, …

    >>> len(settings("anchors", seeds=3)), settings("range", seeds=1)[0].b
    (84, 5.0)
    """
    if sweep not in (*SWEEPS, "all"):
        raise InputError(f"there is no sweep {sweep!r}: there are {', '.join(SWEEPS)} and all")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= 1000:
        raise InputError(f"seeds={seeds!r}: give a whole number from 1 to 1000")
    sizes, wanted = QUICK if quick else PROTOCOL, SWEEPS if sweep == "all" else (sweep,)
    points = [one for name in wanted for one in _points(name, sizes)]
    return tuple(dict.fromkeys(replace(one, seed=FIRST_SEED + k) for one in points for k in range(seeds)))


def _points(sweep: str, sizes: Sizes) -> list[Setting]:
    """The settings of a sweep for one seed."""
    base = sizes.truncated
    if sweep == "heads":
        points = [replace(base, heads=h) for h in sizes.heads]
        methods: tuple[str, ...] = (*TRAINED, "placed", "many-heads")
        constant = [replace(base, method=m) for m in BUILT]  # one head: the others have nothing to do
        return [replace(one, method=m) for one in points for m in methods] + constant
    if sweep == "range":
        points = [replace(base, a=-w / 2, b=w / 2) for w in sizes.widths]
        methods = (*TRAINED, *BUILT)
    elif sweep == "anchors":
        points, methods = [replace(base, p=p) for p in sizes.anchors], (*TRAINED, *BUILT)
    elif sweep == "heatmaps":
        points = [replace(sizes.heat_map, a=-w / 2, b=w / 2) for w in sizes.bands]
        methods = METHODS["heat-map"]
    else:
        few, many = (
            (replace(sizes.few, p=p) for p in sizes.few_anchors),
            (replace(sizes.many, heads=h) for h in sizes.many_heads),
        )
        others = [method for method in METHODS["seq2seq"] if method != "trained"]  # p and H do not enter
        return [*few, *many] + [replace(one, method=m) for one in (sizes.few, sizes.many) for m in others]
    return [replace(one, method=m) for one in points for m in methods]
