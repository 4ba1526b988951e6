"""A network of affine maps and softmax attention, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attnc.certify.arithmetic import loose_products
from attnc.certify.network_certificate import NetworkCertificate
from attnc.certify.network_numbers import NetworkNumbers
from attnc.certify.network_record import NetworkRecord, write_network
from attnc.errors import InputError
from attnc.network.describe import Description, described
from attnc.network.engines import ENGINES
from attnc.network.literal import LiteralNetwork
from attnc.network.stages import AttentionLayer, StageModule
from attnc.program.program import Program

_CHUNK = 1 << 21  # numbers of the widest value held at once


class Network(nn.Module):
    """What `attnc.compile` makes: stages of affine maps and attention that compute the program within its certificate.

    `engine` says how attention is executed: "columns" (the sum written out, inputs along the contiguous axis) or "dense"
    (`torch.nn.functional.scaled_dot_product_attention`). The certificate covers both.
    """

    certificate: NetworkCertificate

    def __init__(
        self,
        stages: Sequence[StageModule],
        program: Program,
        certificate: NetworkCertificate,
        engine: str = "columns",
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.program, self.certificate = program, certificate
        self.engine, self.strict = checked_engine(engine), bool(strict)
        self._last = len(program.steps)
        self._widest = max(_size(shape) for shape in program.shapes)

    def forward(self, x: Tensor, strict: bool | None = None) -> Tensor:
        """The outputs for a batch (…, *shape). `strict=True` raises for an input outside the certificate's box."""
        self._check_input(x, self.strict if strict is None else strict)
        flat = x.reshape(-1, *self.program.shape)
        rows = max(1, _CHUNK // self._widest)
        with torch.autocast(x.device.type, enabled=False):
            parts = [self._run(part)[self._last] for part in torch.split(flat, rows)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(*x.shape[: x.ndim - len(self.program.shape)], *self.program.shapes[-1])

    def attention(self, x: Tensor) -> dict[str, Tensor]:
        """The attention weights by layer, (…, neurons, anchors); where the neurons of a layer form groups, by group."""
        self._check_input(x, False)
        with torch.autocast(x.device.type, enabled=False):
            return self._attention(x)

    def _attention(self, x: Tensor) -> dict[str, Tensor]:
        values = self._run(x.reshape(-1, *self.program.shape), keep=True)
        lead = x.shape[: x.ndim - len(self.program.shape)]
        found = {}
        for layer in self.layers:
            entering = values[layer.inputs[0]]
            for g, (neurons, head) in enumerate(layer.groups):
                s = entering if neurons is None else entering.index_select(-1, neurons)
                name = layer.name if neurons is None else f"{layer.name}, group {g + 1}"
                found[name] = head.weights(s).reshape(*lead, *s.shape[1:], head.key.shape[1])
        return found

    @property
    def layers(self) -> list[AttentionLayer]:
        """The layers of attention, in order."""
        return [stage for stage in self.stages if isinstance(stage, AttentionLayer)]

    def numbers(self) -> NetworkNumbers:
        """The numbers as they are stored, for `certify`."""
        dtype = self._dtype()
        return NetworkNumbers(tuple(cast(StageModule, stage).numbers() for stage in self.stages), dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write numbers, program and certificate to a safetensors file; `attnc.load` reads it back."""
        write_network(path, NetworkRecord(self.program, self.numbers(), self.certificate))

    def as_self_attention(self, n: int | None = None) -> LiteralNetwork:
        """The same network as plain self-attention over [data tokens; anchors]: W_Q, W_K, W_V, W_O for every head, no mask.

        Inputs have the network's shape; where that has no tokens, (d,), n of them may be asked for: (…, n, d).

        >>> import torch
        >>> from attnc.compile import compile
        >>> from attnc.domain import Box
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
        >>> net = compile(model, domain=Box(-1, 1, shape=(4,)), eps=1e-3)
        >>> literal = net.as_self_attention(3)
        >>> x = torch.rand(5, 3, 4)
        >>> torch.allclose(literal(x), net(x), atol=1e-5), literal.layers[0].W_Q.shape
        (True, torch.Size([8, 11, 3]))
        """
        return LiteralNetwork(self, n)

    def describe(self) -> Description:
        """A table: layer, function, heads, anchors, interval, error in, error out."""
        return described(self)

    def why_not_certified(self) -> str | None:
        """None where the certificate applies to the numbers as they are now, else the reason why not."""
        try:
            dtype = self._dtype()
        except InputError as problem:
            return str(problem)
        if dtype != self.certificate.dtype:
            return f"the certificate is for {self.certificate.dtype}, the network is {dtype}"
        loose = loose_products(dtype)
        if loose is not None:
            return loose
        try:
            found, known = self.numbers().digests(), self.certificate.digests
        except InputError as problem:
            return str(problem)
        changed = sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))
        if changed:
            return f"changed since it was certified: {', '.join(changed)}"
        return (
            None
            if self.program.digest() == self.certificate.program
            else "its program is another than was certified"
        )

    def _run(self, x: Tensor, keep: bool = False) -> dict[int, Tensor]:
        """The values by their number in the program; freed when nobody reads them any more, unless kept."""
        last_read = {
            value: i for i, stage in enumerate(self.stages) for value in cast(StageModule, stage).inputs
        }
        values: dict[int, Tensor] = {0: x}
        for i, module in enumerate(self.stages):
            stage = cast(StageModule, module)
            given = [values[v] for v in stage.inputs]
            made = stage(*given, self.engine) if isinstance(stage, AttentionLayer) else stage(*given)
            values[stage.value] = made
            if not keep:
                values = {v: t for v, t in values.items() if last_read.get(v, -1) > i or v == stage.value}
        return values

    def _dtype(self) -> str:
        dtypes = {str(p.dtype).removeprefix("torch.") for p in self.parameters()}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
            raise InputError(
                f"the network's tensors have the dtypes {sorted(dtypes)}: one of float32, float64 is expected"
            )
        return dtypes.pop()

    def _check_input(self, x: Tensor, strict: bool) -> None:
        if not isinstance(x, Tensor):
            raise InputError(
                f"a network takes a tensor: got {type(x).__name__}; write net(torch.tensor(...))"
            )
        dtype = next(self.parameters()).dtype
        if x.dtype != dtype:
            raise InputError(
                f"this network runs in {dtype}: got {x.dtype}; convert the input, or compile with dtype={x.dtype}"
            )
        shape = self.program.shape
        if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
            raise InputError(
                f"this network takes inputs of the shape (…, {', '.join(map(str, shape))}): got {tuple(x.shape)}"
            )
        if strict:
            inside = self.certificate.domain.contains(x)
            if not bool(inside.all()):
                first = torch.nonzero(~inside.reshape(-1))[0].item()
                raise InputError(
                    f"input {first} of the batch lies outside {self.certificate.domain}: nothing is promised there. "
                    "Compile for a larger box, or call with strict=False."
                )

    def extra_repr(self) -> str:
        reason = self.why_not_certified()
        error = (
            f"at most {self.certificate.bound:.4g}, proved" if reason is None else f"not certified: {reason}"
        )
        return f"on={self.certificate.domain}, dtype={self.certificate.dtype}, error={error}"


def checked_engine(engine: object) -> str:
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}: accepted are {', '.join(map(repr, ENGINES))}")
    return str(engine)


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
