"""The window of a lattice head, executed: two exponentials and a polynomial for each number, in place of a softmax.

The same operations run on two paths. Where gradients, tracing or other devices need them, they are plain and every
result is a new tensor; otherwise they run in place on chunks that stay in the cache, with four buffers of a chunk's size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnc.errors import InputError
from attnc.network.running import in_place
from attnc.prove.window import Gate, Window

_CHUNK = 1 << 18  # numbers worked on at once: buffers stay in the cache, threads have enough to do


def run_window(window: Window | Gate, s: Tensor, sizes: list[float] | None = None) -> Tensor:
    """The window at every number of s: the same shape, dtype and device; differentiable as often as wanted.

    Where it runs by chunks, `sizes` gets the largest |s| of each, read while the chunk is in the cache; NaN where s holds one.

    >>> silu = Gate(slope=1.0, dtype="float32")
    >>> run_window(silu, torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.2689,  0.0000,  0.7311])
    """
    if s.dtype != getattr(torch, window.dtype):
        raise InputError(f"a window of {window.dtype} was given a tensor of {s.dtype}: convert one of them")
    if not (in_place(s) and s.is_contiguous()):
        return _plain_gate(window, s) if isinstance(window, Gate) else _plain(window, s)
    return _by_chunks(window, s.detach(), sizes)


def _by_chunks(window: Window | Gate, s: Tensor, sizes: list[float] | None) -> Tensor:
    out = torch.empty_like(s, memory_format=torch.contiguous_format)
    numbers, results = s.view(-1), out.view(-1)
    total = numbers.numel()
    gate = isinstance(window, Gate)
    constants = (
        [] if isinstance(window, Gate) else list(s.new_tensor([window.lead, *window.coefficients]).unbind())
    )
    buffers = s.new_empty(1 if gate else 4, min(_CHUNK, total)).unbind()
    for start in range(0, total, _CHUNK):
        end = min(start + _CHUNK, total)
        held = [buffer[: end - start] for buffer in buffers]
        if isinstance(window, Gate):
            _gate_chunk(window, numbers[start:end], results[start:end], held[0])
            if sizes is not None:
                sizes += [float(numbers[start:end].amax()), -float(numbers[start:end].amin())]
        else:
            _chunk(window, constants, numbers[start:end], results[start:end], held, sizes)
    return out


def _plain(window: Window, s: Tensor) -> Tensor:
    """The derivative at 0 is the right-hand one, which is also the left-hand one up to the window's error."""
    c, negative = window.sharpness, s < 0
    x = torch.where(negative, -s, s) * (1 / window.spacing)
    w = torch.exp(x * (-2 * c))
    G = torch.exp(x * (x * -c + window.lead))
    N = torch.full_like(x, window.coefficients[-1])
    for C in reversed(window.coefficients[:-1]):
        N = N * w + C
    return torch.where(negative, torch.zeros_like(s), s) + G * N


def _chunk(
    window: Window,
    constants: list[Tensor],
    s: Tensor,
    out: Tensor,
    buffers: list[Tensor],
    sizes: list[float] | None,
) -> None:
    """x is |s| where 1/Δ can be moved into the constants: powers of two commute with rounding, so every bit stays."""
    c, lead, coefficients = window.sharpness, constants[0], constants[1:]
    x, w, G, N = buffers
    torch.clamp(s, min=0, out=out)
    torch.abs(s, out=x)
    if sizes is not None:
        sizes.append(float(x.amax()))
    inverse = 1 / window.spacing
    if not _scales_exactly(window.spacing):
        x.mul_(inverse)
        inverse = 1.0
    torch.mul(x, -2 * c * inverse, out=w).exp_()
    torch.add(lead * inverse, x, alpha=-c * inverse * inverse, out=G).mul_(x).exp_()
    if len(coefficients) == 1:
        N.fill_(coefficients[0])
    else:
        torch.add(coefficients[-2], w, alpha=window.coefficients[-1], out=N)
    for C in reversed(coefficients[:-2]):
        torch.addcmul(C, N, w, out=N)
    out.addcmul_(G, N)


def _scales_exactly(spacing: float) -> bool:
    """Whether 1/Δ is a power of two whose square is far from the ends of the range of float32."""
    return math.frexp(spacing)[0] == 0.5 and 2.0**-20 <= spacing <= 2.0**20


def _plain_gate(gate: Gate, s: Tensor) -> Tensor:
    """s is kept finite below, since -∞·0 is no number."""
    return s.clamp(min=torch.finfo(s.dtype).min) * torch.sigmoid(s * gate.slope)


def _gate_chunk(gate: Gate, s: Tensor, out: Tensor, weight: Tensor) -> None:
    torch.mul(s, gate.slope, out=weight).sigmoid_()
    torch.clamp(s, min=torch.finfo(s.dtype).min, out=out).mul_(weight)
