"""The paper's protocol: the settings of its runs, the data sets, and the models that it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
SHARPNESS = 25.0  # β of experiment 2
REACH = 5.0  # x is uniform in [-5, 5] in experiments 1 and 2
HIDDEN = 10  # neurons of the target network of experiment 3
TEST = 5  # one sample in five is a test sample


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
            sizes = "counts are integers >= 1, samples >= 5, p >= n (p = n for heat-map), heads divides width"
            raise InputError(f"{self}: {sizes}, a < b are finite floats and 0 <= seed < 2**63")

    @property
    def key(self) -> str:
        """A unique name of the setting that can serve as a file name."""
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


@dataclass(frozen=True)
class Task:
    """A target function and its samples in float64: X of shape (samples, n, d), Y of shape (samples, n, outputs)."""

    target: tuple[Tensor, ...]  # the parameters of the function
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def make_task(setting: Setting, draw: torch.Generator) -> Task:
    """Experiments 1 and 2: Y_i = clip(<w_i, x_i> + t_i, a, b), X uniform in [-5, 5]^{n×d}, target (W, t).
    Experiment 3: Y = W2 relu(W1 vec X + b1) + b2, X uniform in [0, 1]^{n×d}, target (W1, b1, W2, b2).
    All numbers of a target are N(0, 1)."""
    n, d, seq2seq = setting.n, setting.d, setting.experiment == "seq2seq"
    shapes = ((HIDDEN, n * d), (HIDDEN,), (n * d, HIDDEN), (n * d,)) if seq2seq else ((n, d), (n,))
    target = tuple(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    x = torch.rand(setting.samples, n, d, generator=draw, dtype=torch.float64)
    if seq2seq:
        W1, b1, W2, b2 = target
        y = (torch.relu(x.flatten(1) @ W1.T + b1) @ W2.T + b2).reshape(x.shape)
    else:
        W, t = target
        x = (2 * x - 1) * REACH
        y = ((x * W).sum(-1) + t).clamp(setting.a, setting.b).unsqueeze(-1)
    order = torch.randperm(len(x), generator=draw)
    test, train = order[: len(x) // TEST], order[len(x) // TEST :]
    return Task(target, x[train], y[train], x[test], y[test])


class TokenMap(nn.Module):
    """x_i ↦ (P x_i + c) ∘ m_i, followed by p - n learned tokens: (…, n, d) → (…, p, width)."""

    def __init__(self, setting: Setting, draw: torch.Generator) -> None:
        super().__init__()
        self.projection = linear(setting.d, setting.width, draw)
        self.modulation = nn.Parameter(torch.ones(setting.n, setting.width, dtype=torch.float32))
        steps = torch.linspace(-1, 1, setting.p - setting.n, dtype=torch.float32)
        self.extra = nn.Parameter(steps.unsqueeze(1).repeat(1, setting.width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.projection(x) * self.modulation
        return torch.cat([tokens, self.extra.expand(len(x), -1, -1)], 1)


class Attention(nn.Module):
    """Softmax self-attention with H heads, biases and an output map, initialised like `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int, draw: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (linear(width, width, draw) for _ in range(3))
        self.output = linear(width, width, draw)
        bound = math.sqrt(6 / (width + 3 * width))  # Xavier's bound for the three stacked maps
        for one in (self.query, self.key, self.value):
            nn.init.uniform_(one.weight, -bound, bound, generator=draw)
        for one in (self.query, self.key, self.value, self.output):
            nn.init.zeros_(one.bias)

    def forward(self, z: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (one(z).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in maps)
        mixed: Tensor = self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class TruncatedModel(nn.Module):
    """Experiment 1: one attention layer. The output is its first n tokens, with all `width` coordinates."""

    def __init__(self, setting: Setting, draw: torch.Generator) -> None:
        super().__init__()
        self.tokens, self.n = TokenMap(setting, draw), setting.n
        self.attention = Attention(setting.width, setting.heads, draw)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.attention(self.tokens(x))
        return z[:, : self.n]


class HeatMapModel(nn.Module):
    """Experiment 2: token k is anchor k. The last coordinate of the keys and the first of the values are fixed to
    L = linspace(a, b, p), so the first coordinate of the output is Σ_k weights_ik L_k; the others are trained.

    weights_ik = softmax_k( β (<q_i, k_k> + r_i L_k)/√width )"""

    anchors: Tensor

    def __init__(self, setting: Setting, draw: torch.Generator) -> None:
        super().__init__()
        width = setting.width
        self.tokens = TokenMap(setting, draw)
        self.query, self.key, self.value = (linear(width, width - k, draw) for k in (0, 1, 1))
        anchors = torch.linspace(setting.a, setting.b, setting.p, dtype=torch.float32)
        self.register_buffer("anchors", anchors.unsqueeze(1))

    def weights(self, z: Tensor) -> Tensor:
        """The attention weights of the tokens z, of shape (samples, n, p)."""
        key = torch.cat([self.key(z), self.anchors.expand(len(z), -1, -1)], -1)
        scores = self.query(z) @ key.transpose(1, 2)
        return torch.softmax(SHARPNESS / math.sqrt(z.shape[-1]) * scores, -1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.tokens(x)
        value = torch.cat([self.anchors.expand(len(z), -1, -1), self.value(z)], -1)
        return self.weights(z) @ value


class SequenceModel(nn.Module):
    """Experiment 3: attention, linear, attention, linear."""

    def __init__(self, setting: Setting, draw: torch.Generator) -> None:
        super().__init__()
        width, self.n = setting.width, setting.n
        self.tokens = TokenMap(setting, draw)
        self.first, self.second = (Attention(width, setting.heads, draw) for _ in range(2))
        self.between, self.last = linear(width, width, draw), linear(width, setting.d, draw)

    def forward(self, x: Tensor) -> Tensor:
        z = self.between(self.first(self.tokens(x)))
        y: Tensor = self.last(self.second(z)[:, : self.n])
        return y


def linear(inputs: int, outputs: int, draw: torch.Generator) -> nn.Linear:
    """`nn.Linear` with torch's own initialisation, drawn from the given generator and not from torch's global one."""
    layer = nn.Linear(inputs, outputs, device="meta", dtype=torch.float32).to_empty(device="cpu")
    bound = 1 / math.sqrt(inputs)
    for one in (layer.weight, layer.bias):
        nn.init.uniform_(one, -bound, bound, generator=draw)
    return layer
