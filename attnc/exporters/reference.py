"""How much rounding explains: the graph of a module, run with every number moved by as much as rounding may."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_RUNS = 3
_MARGIN = 16  # sums of n terms round n times, exp errs by more than half a unit, and few runs do not find the largest error


class Rounding:
    """The rounding errors of a graph, measured by Monte Carlo arithmetic: it runs with the input, the constants and the result of
    every operation multiplied by random factors 1 + θ, |θ| <= 2u, where u is the unit roundoff of its dtype.

    Another runtime executes the same operations to the same precision, in another order and with other last bits, so its result
    differs from torch's by as much as such runs differ. `allowed` is 16 times the largest difference of three runs, and 16u times
    the largest output, for a result that no factor moves."""

    def __init__(self, program: ExportedProgram, dtype: torch.dtype) -> None:
        functional = program.run_decompositions({})  # no operation writes into the result of another
        self.graph, self.unit = functional.module(check_guards=False), _UNIT[dtype]
        for node in list(self.graph.graph.nodes):
            if node.op == "call_function" and "_assert" in str(node.target) and not node.users:
                self.graph.graph.erase_node(node)

    def allowed(self, inputs: tuple[Tensor, ...]) -> list[float]:
        """What rounding explains in each output, for these inputs."""
        with torch.no_grad():
            plain = fx.Interpreter(self.graph).run(*inputs)
            moved = [_Moved(self.graph, 2 * self.unit, seed).run(*inputs) for seed in range(_RUNS)]
        return [
            _MARGIN * (max(_largest(run[i] - y) for run in moved) + self.unit * _largest(y))
            for i, y in enumerate(plain)
        ]


class _Moved(fx.Interpreter):
    """Multiplies every value of the graph by random factors 1 + θ, |θ| <= size."""

    def __init__(self, graph: fx.GraphModule, size: float, seed: int) -> None:
        super().__init__(graph)
        self.size, self.source = size, torch.Generator().manual_seed(seed)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        moves = n.op in ("placeholder", "get_attr", "call_function") and isinstance(value, Tensor)
        if not moves or not value.is_floating_point():
            return value
        theta = (
            torch.rand(value.shape, generator=self.source, dtype=value.dtype) * (2 * self.size) - self.size
        )
        ends = torch.finfo(value.dtype)
        return torch.where(value.isfinite(), (value + value * theta).clamp(ends.min, ends.max), value)


def _largest(x: Tensor) -> float:
    return float(x.double().nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0
