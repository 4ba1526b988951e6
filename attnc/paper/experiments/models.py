"""The data sets of the protocol, and the models that it trains: a token map, extra tokens, softmax attention and linear maps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnc.paper.experiments.settings import Setting

SHARPNESS = 25.0  # β of experiment 2
REACH = 5.0  # x is uniform in [-5, 5] in experiments 1 and 2
HIDDEN = 10  # neurons of the target network of experiment 3
TEST = 5  # one sample in five is a test sample


@dataclass(frozen=True)
class Task:
    """A target function and its samples in float64: X of shape (samples, n, d), Y of shape (samples, n, outputs)."""

    target: tuple[Tensor, ...]  # the parameters of the function
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def generator(setting: Setting) -> torch.Generator:
    """The random numbers of a run, in this order: the data, the initial weights, the order of the batches. Initial weights drawn
    from the seed of the data would be correlated with the data."""
    return torch.Generator().manual_seed(setting.seed)


def make_task(setting: Setting, draw: torch.Generator) -> Task:
    """Experiments 1 and 2: Y_i = clip(<w_i, x_i> + t_i, a, b), X uniform in [-5, 5]^{n×d}, target (W, t).
    Experiment 3: Y = W2 relu(W1 vec X + b1) + b2, X uniform in [0, 1]^{n×d}, target (W1, b1, W2, b2).
    All numbers of a target are N(0, 1).

    >>> from attnc.paper.experiments.settings import QUICK
    >>> make_task(QUICK.truncated, generator(QUICK.truncated)).x_train.shape
    torch.Size([160, 12, 4])
    """
    n, d = setting.n, setting.d
    if setting.experiment == "seq2seq":
        shapes: tuple[tuple[int, ...], ...] = ((HIDDEN, n * d), (HIDDEN,), (n * d, HIDDEN), (n * d,))
    else:
        shapes = ((n, d), (n,))
    target = tuple(torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes)
    x = torch.rand(setting.samples, n, d, generator=draw, dtype=torch.float64)
    if setting.experiment == "seq2seq":
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
