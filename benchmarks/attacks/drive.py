"""Drive a block of a model: force what enters it, and read what leaves it, in the original and in the converted model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.layouts import Model

Pair = tuple[tuple[Any, ...], dict[str, Any]]
_MODES: list[Any] = []


@dataclass(frozen=True)
class Way:
    """A circumstance in which a model may be run; a claim has to hold in each."""

    name: str
    tokens: int
    grad: bool = False
    strided: bool = False
    inference: bool = False

    def __enter__(self) -> None:
        mode = torch.inference_mode() if self.inference else torch.set_grad_enabled(self.grad)
        _MODES.append(mode)
        mode.__enter__()

    def __exit__(self, *problem: Any) -> None:
        _MODES.pop().__exit__(*problem)


def ways(tokens: int) -> tuple[Way, ...]:
    """Without and with gradients, on strided memory, and on sequences of another length where the model allows it."""
    found = [Way("plain", tokens), Way("grad", tokens, grad=True), Way("strided", tokens, strided=True)]
    found.append(Way("inference", tokens, inference=True))
    return (*found, Way("short", 1)) if tokens != 5 else tuple(found)


def laid_out(x: Tensor, way: Way) -> Tensor:
    """(count, d) as (batch, tokens, d), the memory not contiguous where the way says so; surplus rows are dropped."""
    batch = max(1, len(x) // way.tokens)
    y = x[: batch * way.tokens].reshape(batch, -1, x.shape[-1]).contiguous()
    return y.transpose(1, 2).contiguous().transpose(1, 2) if way.strided else y


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)


def _with_first(args: tuple[Any, ...], kwargs: dict[str, Any], x: Tensor) -> Pair:
    if args:
        return (x, *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: x}


def _tensor(output: Any) -> Tensor | None:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


@contextmanager
def forcing(module: nn.Module, x: Tensor) -> Iterator[None]:
    """Whatever calls the module, it is given x, before its own hooks see it."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pair | None:
        given = _first(args, kwargs)
        if not isinstance(given, Tensor) or given.numel() != x.numel():
            return None
        put = x if given.shape == x.shape else x.reshape(given.shape)
        return _with_first(args, kwargs, put.to(given.dtype))

    handle = module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def seeing(module: nn.Module, inputs: bool) -> Iterator[list[Tensor]]:
    """What enters a module (before its own hooks) or leaves it (after them), call by call."""
    found: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _first(args, kwargs)
        if isinstance(given, Tensor):
            found.append(given.detach().clone())

    def after(_: nn.Module, args: Any, output: Any) -> None:
        made = _tensor(output)
        if made is not None:
            found.append(made.detach().clone())

    if inputs:
        handle = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    else:
        handle = module.register_forward_hook(after)
    try:
        yield found
    finally:
        handle.remove()


def bears(model: Model, way: Way) -> bool:
    """Whether the model runs in a circumstance at all: Conv1D, for one, refuses strided memory."""
    d = model.second.weight.shape[0 if isinstance(model.second, nn.Linear) else 1]
    try:
        leaving(model, torch.zeros(2 * way.tokens, d, dtype=model.dtype), way)
    except RuntimeError:
        return False
    return True


def entering(model: Model, z: Tensor, at: str, way: Way) -> Tensor:
    """The block's inputs (count, d), in a run in which the module at a path is given z."""
    x = laid_out(z.to(model.dtype), way)
    with (
        way,
        seeing(model.part(model.layout.entry), True) as found,
        forcing(model.part(at), x),
    ):
        model.run(x.shape[0], way.tokens)
    return torch.cat([t.reshape(-1, t.shape[-1]) for t in found])


def leaving(model: Model, x: Tensor, way: Way) -> list[Tensor]:
    """What leaves the block, and the layer where errors reach its output one to one, when x enters the block."""
    put = laid_out(x, way)
    with (
        way,
        seeing(model.part(model.layout.exit), False) as block,
        seeing(model.part(model.layout.layer), False) as layer,
        forcing(model.part(model.layout.entry), put),
    ):
        model.run(put.shape[0], way.tokens)
    rows = [*block, *(layer if model.layout.residual_last and model.dtype == torch.float64 else [])]
    return [t.reshape(-1, t.shape[-1]) for t in rows]


def attacks(model: Model, rng: np.random.Generator, count: int) -> Tensor:
    """Vectors in front of the norm: of every scale, nearly constant, of one number, and aligned with rows of the maps, which
    drives their neurons to the ends of their intervals."""
    d = model.norm.weight.numel() if isinstance(getattr(model.norm, "weight", None), Tensor) else 16
    rows = [
        np.asarray(_rows(model.first)),
        *([_rows(model.part(model.layout.up))] if model.layout.up else []),
    ]
    weight = np.concatenate(rows)
    gain = getattr(model.norm, "weight", None)
    aligned = weight * (gain.detach().double().numpy() if isinstance(gain, Tensor) else 1.0)
    aligned = aligned / np.linalg.norm(aligned, axis=1, keepdims=True)
    random = rng.standard_normal((16, d))
    special = np.concatenate(
        [
            aligned, -aligned, 1e3 * aligned[:8], 1e-2 * aligned[:8], 1e4 * random[:4], 1e-3 * random[:4], 1e-8 * random[:2],
            np.zeros((1, d)), np.ones((1, d)), np.full((1, d), -3.0), 3 + 0.1 * random[:4], 100 * np.eye(d), -100 * np.eye(d),
            np.sign(weight)[:8], -np.sign(weight)[:8],
        ]
    )  # fmt: skip
    mixed = aligned[rng.integers(len(aligned), size=count)] * rng.choice([-1.0, 1.0], size=(count, 1))
    near = mixed + rng.uniform(0, 1, (count, 1)) * rng.standard_normal((count, d)) / np.sqrt(d)
    plain = rng.standard_normal((count, d)) * 10.0 ** rng.uniform(-2, 2, (count, 1))
    found = np.concatenate([special, near[: count // 2], plain[: count // 2]])
    return torch.from_numpy(found)


def _rows(module: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    weight = module.weight.detach().double().numpy()
    return weight.T if type(module).__name__ == "Conv1D" else weight


def gaps(converted: list[Tensor], original: list[Tensor]) -> tuple[float, float]:
    """The largest |converted - original|, and the largest finite number among the originals."""
    worst, size = 0.0, 0.0
    for new, old in zip(converted, original, strict=False):
        if new.shape != old.shape:
            return float("inf"), size
        new, old = new.double(), old.double()
        same = (new == old) | (new.isnan() & old.isnan())
        gap = (new - old).abs().nan_to_num(torch.inf).masked_fill(same, 0.0)
        worst = max(worst, float(gap.max()) if gap.numel() else 0.0)
        size = max(size, float(old.abs().nan_to_num(0.0, 0.0, 0.0).max()) if old.numel() else 0.0)
    return worst, size
