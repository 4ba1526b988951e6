"""How much rounding explains: the graph of a module, or a literal form, run with every number moved by what rounding may move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.func import functional_call

from attnc.network.literal import SelfAttention, SelfAttentionNetwork, SequenceMap

_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_RUNS = 3
_MARGIN = 16  # sums of n terms round n times, exp errs by more than half a unit, and few runs do not find the largest error


class Rounding:
    """The rounding errors of a graph, measured by Monte Carlo arithmetic: it runs with the input, the constants and the result of
    every operation multiplied by random factors 1 + θ, |θ| <= 2u, where u is the unit roundoff of its dtype.

    Another runtime executes the same operations to the same precision, in another order and with other last bits, so its result
    differs from torch's by as much as such runs differ. `allowed` is 16 times the largest difference of three runs, and 16u times
    the largest output, for a result that no factor moves.

    With `whole`, constants and whole numbers stay as they are: the scores of a token network are sums of whole numbers below 1/u,
    which every runtime computes exactly."""

    def __init__(self, program: ExportedProgram, dtype: torch.dtype, whole: bool = False) -> None:
        functional = program.run_decompositions({})  # no operation writes into the result of another
        self.graph, self.unit, self.whole = functional.module(check_guards=False), _UNIT[dtype], whole
        for node in list(self.graph.graph.nodes):
            if node.op == "call_function" and "_assert" in str(node.target) and not node.users:
                self.graph.graph.erase_node(node)

    def allowed(self, inputs: tuple[Tensor, ...]) -> list[float]:
        """What rounding explains in each output, for these inputs."""
        with torch.no_grad():
            plain = fx.Interpreter(self.graph).run(*inputs)
            moved = [
                _Moved(self.graph, 2 * self.unit, seed, self.whole).run(*inputs) for seed in range(_RUNS)
            ]
        return [
            _MARGIN * (max(_largest(run[i] - y) for run in moved) + self.unit * _largest(y))
            for i, y in enumerate(plain)
        ]


class _Moved(fx.Interpreter):
    """Multiplies every value of the graph by random factors 1 + θ, |θ| <= size; with `whole`, only results that are not whole."""

    def __init__(self, graph: fx.GraphModule, size: float, seed: int, whole: bool) -> None:
        super().__init__(graph)
        self.size, self.source, self.whole = size, torch.Generator().manual_seed(seed), whole

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        given = () if self.whole else ("placeholder", "get_attr")
        moves = n.op in (*given, "call_function") and isinstance(value, Tensor)
        if not moves or not value.is_floating_point():
            return value
        theta = (
            torch.rand(value.shape, generator=self.source, dtype=value.dtype) * (2 * self.size) - self.size
        )
        ends = torch.finfo(value.dtype)
        moved = (value + value * theta).clamp(ends.min, ends.max)
        kept = (value == value.round()) & (value.abs() < 1 / self.size) if self.whole else value.isinf()
        return torch.where(value.isfinite() & ~kept, moved, value)


class LiteralRounding:
    """The same for a literal form, step by step, by errors as large as rounding makes them.

    A sum Σ a_i b_i gets a random error of at most 2u Σ |a_i b_i|, except where there is none: a sum of queries or keys that is
    exactly 0 stays 0, since the gates of a literal form are products of powers of two up to 2^100 with flags that cancel exactly,
    and a register that a step does not write stays as it is. `allowed` is 16 times the largest change of three runs, and 16u
    times the largest output."""

    def __init__(self, literal: SelfAttentionNetwork) -> None:
        self.literal, self.unit = literal, _UNIT[literal.fixed.dtype]

    @torch.no_grad()
    def allowed(self, inputs: tuple[Tensor, ...]) -> list[float]:
        """What rounding explains in the output, for these inputs."""
        plain = self._run(inputs, _Errors(0.0, 0))
        moved = [self._run(inputs, _Errors(2 * self.unit, seed)) for seed in range(_RUNS)]
        return [_MARGIN * (max(_largest(run - plain) for run in moved) + self.unit * _largest(plain))]

    def _run(self, inputs: tuple[Tensor, ...], errors: _Errors) -> Tensor:
        literal, x = self.literal, self.literal.embed(*inputs)
        shape, x = x.shape[:-2], x.reshape(-1, *x.shape[-2:])
        for _, i in literal.order:
            step: Any = literal.steps[i]
            made = errors.attention(step, x) if isinstance(step, SelfAttention) else errors.map(step, x)
            x = torch.where(made == 0, x, errors(x + made, x + made)) if literal.residual else made
        held = x if literal.output[0] is None else x[..., literal.layout[literal.output[0]]]
        return literal.result(held.reshape(*shape, *held.shape[1:]), *inputs)


class _Errors:
    """Adds random errors of at most size·|scale|."""

    def __init__(self, size: float, seed: int) -> None:
        self.size, self.source = size, torch.Generator().manual_seed(seed)

    def __call__(self, x: Tensor, scale: Tensor) -> Tensor:
        theta = torch.rand(x.shape, generator=self.source, dtype=x.dtype) * (2 * self.size) - self.size
        return x + theta * scale.abs()

    def sum(self, equation: str, a: Tensor, b: Tensor) -> Tensor:
        """An einsum of two tensors."""
        return self(torch.einsum(equation, a, b), torch.einsum(equation, a.abs(), b.abs()))

    def attention(self, step: SelfAttention, x: Tensor) -> Tensor:
        shared = list(step.shared)
        query, key = (self.sum("btd,hdr->bhtr", x, w) for w in (step.W_Q, step.W_K[shared]))
        plain = (torch.einsum("btd,hdr->bhtr", x, w) for w in (step.W_Q, step.W_K[shared]))
        query, key = (torch.where(y == 0, y, z) for y, z in zip(plain, (query, key), strict=True))
        weights = torch.softmax(self.sum("bhtr,bhsr->bhts", query, key), -1)
        value = self.sum("btd,hdm->bhtm", x, step.W_V[shared])
        mixed = self.sum("bhts,bhsm->bhtm", self(weights, weights), value)
        return self.sum("bhtm,hme->bte", mixed, step.W_O)

    def map(self, step: SequenceMap, x: Tensor) -> Tensor:
        sizes = {"core": step.core.abs(), "bias": torch.zeros_like(step.bias)}
        products = functional_call(step, sizes, (x.abs(),))
        made: Tensor = step(x)
        return torch.where(products == 0, made, self(made, products + made.abs()))


def _largest(x: Tensor) -> float:
    return float(x.double().nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0
