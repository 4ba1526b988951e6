"""The engines that execute attention over anchors. docs/arithmetic.md says what a certificate assumes of each.

engine="closed-form" runs the window of a head: two exponentials and a polynomial (or a sigmoid) for each number; for gelu, the
function itself, from one power of two, one reciprocal and a polynomial. With gradients, tracing and on other devices every result
is a new tensor. Otherwise the same operations run in place, on chunks that stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from attnc.arithmetic import ARITHMETIC
from attnc.errors import InputError
from attnc.network.running import can_look, constant, in_chunks, in_place, is_plain
from attnc.records.numbers import TENSORS
from attnc.records.window_numbers import ClosedForm, Gate, TailForm, Window, closed_form

if TYPE_CHECKING:
    from attnc.network.head import Head

CERTIFIED = ("softmax", "sdpa")  # covered by the certificate of a head or of a network
MOST_KEYS = 512  # of sdpa: as many as docs/arithmetic.md analyses
_QUERIES = 1 << 16  # queries of sdpa in one call
CHUNK = 1 << 18  # numbers in one chunk: small enough for the cache, large enough for threads
_CHANGED = "the numbers of a head were changed after torch.compile: call refresh() of the head or of its Pointwise module"


def sdpa(head: Head, s: Tensor) -> Tensor:
    """softmax(q Kᵀ) V by torch's scaled_dot_product_attention: q = (x, 1), K = (κ, c), V = (v, g), scale 1.

    The second column g of V is 0 here; the fast kernel needs as many columns as the keys have. In a traced graph g is
    unknown, and its term s·softmax(q Kᵀ) g is added."""
    if head.heads != 1 or head.is_gated or head.key.shape[1] > MOST_KEYS:
        raise InputError(
            f"engine='sdpa' runs one head of up to {MOST_KEYS} anchors, not gated: use 'softmax'"
        )
    keys, values, known = head.key[None], head.value.flip(-1)[None], can_look(head.value)

    def run(part: Tensor) -> Tensor:
        x = head.query[0, :1] * part + head.query[0, 1:]
        query = torch.stack([x, torch.ones_like(x)], -1)[None, None]
        out = F.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0]
        return out[:, 0] if known else out[:, 0] + part * out[:, 1]

    return (in_chunks(run, _QUERIES, s.reshape(-1)) * head.output[:1]).reshape(s.shape)


@dataclass(frozen=True, eq=False)
class DerivedWindow:
    """The window of a head, and the numbers it was derived from: it serves as long as they stay the same."""

    window: ClosedForm | None
    copies: tuple[Tensor, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()  # address and version: comparing numbers would wait for a device

    @classmethod
    def of(cls, head: Head) -> DerivedWindow:
        tensors = _tensors(head)
        dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors}
        if len(dtypes) > 1 or not dtypes <= set(ARITHMETIC) or not all(is_plain(t) for t in tensors):
            return cls(None)
        finite = not any(t.is_meta for t in tensors) and all(bool(t.isfinite().all()) for t in tensors)
        copies = tuple(t.detach().clone() for t in tensors)
        return cls(closed_form_of(head) if finite else None, copies, _marks(tensors))

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the numbers are the same."""
        if tensors[0].device.type != "cpu":
            return self._alike(tensors) and self.marks == _marks(tensors)
        return self._alike(tensors) and all(map(torch.equal, self.copies, tensors))

    def compiled(self, tensors: Sequence[Tensor]) -> ClosedForm | None:
        """The window, in a graph that raises if the numbers are changed afterwards."""
        if self.window is None or not self._alike(tensors):
            return None
        for kept, now in zip(self.copies, tensors, strict=True):
            torch._assert_async((kept == now).all(), _CHANGED)
        return self.window

    def _alike(self, tensors: Sequence[Tensor]) -> bool:
        kept, now = ([(t.dtype, t.device, t.shape) for t in of] for of in (self.copies, tensors))
        return kept == now


def closed_form_of(head: Head) -> ClosedForm | None:
    """The closed form of a head: that of its function only while its numbers are those that are certified for the function."""
    numbers, certificate = head.numbers(), head.certificate
    certified = certificate.proved and certificate.digests == numbers.digests()
    return closed_form(numbers, certificate.facts.get("function") if certified else None)


def window_now(head: Head) -> ClosedForm | None:
    """The window of a head's present numbers; None if it has none, or if the numbers require a gradient."""
    tensors = _tensors(head)
    if any(t.requires_grad for t in tensors):
        return None
    if torch.compiler.is_compiling():
        return None if head._derived is None else head._derived.compiled(tensors)
    if not all(is_plain(t) for t in tensors):
        return None
    if head._derived is None or not head._derived.holds(tensors):
        head.refresh()
    return head._derived.window if head._derived else None


def _marks(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors)


def _tensors(head: Head) -> list[Tensor]:
    return [getattr(head, name) for name in TENSORS]


def run_window(window: ClosedForm, s: Tensor) -> Tensor:
    """The window at every number of s: the same shape, dtype and device; differentiable to any order."""
    if s.dtype != getattr(torch, window.dtype):
        raise InputError(f"this window runs in {window.dtype}: got {s.dtype}; convert the input")
    if not (in_place(s) and s.is_contiguous()):
        if s.ndim == 0:
            return run_window(window, s.reshape(1)).reshape(())
        return _plain_gate(window, s) if isinstance(window, Gate) else _plain(window, s)
    s = s.detach()
    out = torch.empty_like(s, memory_format=torch.contiguous_format)
    buffers = s.new_empty(4, min(CHUNK, s.numel()))
    first = (
        (window.slope,)
        if isinstance(window, Gate)
        else (window.lead,)
        if isinstance(window, Window)
        else (0.0, 1.0)
    )
    constants = s.new_tensor(
        (*first, *getattr(window, "coefficients", ()))
    ).unbind()  # operations take them as tensors
    chunks = (torch.split(t.view(-1), CHUNK) for t in (s, out))
    for part, result in zip(*chunks, strict=True):
        held = buffers[:, : len(part)].unbind()
        if isinstance(window, Gate):
            _gate_chunk(window, constants[0], part, result, held[0])
        elif isinstance(window, TailForm):
            _tail_chunk(window, constants, part, result, held)
        else:
            _chunk(window, constants, part, result, held)
    return out


def _plain(window: Window | TailForm, s: Tensor) -> Tensor:
    """The derivative at 0 is the right-hand one, which is also the left-hand one up to the window's error."""
    number = partial(constant, like=s)
    negative = s < 0
    size = torch.where(negative, -s, s)
    if isinstance(window, TailForm):
        w, G = torch.reciprocal(size * number(window.rate) + 1), torch.exp2(s * s * number(-window.kappa))
    else:
        c, x = window.sharpness, size * number(1 / window.spacing)
        w = torch.exp(x * number(-2 * c))
        G = torch.exp(x * (x * number(-c) + number(window.lead)))
    N: Tensor = number(window.coefficients[-1])
    for C in reversed(window.coefficients[:-1]):
        N = N * w + number(C)
    return torch.where(negative, torch.zeros_like(s), s) + G * N


def _chunk(
    window: Window, constants: Sequence[Tensor], s: Tensor, out: Tensor, buffers: Sequence[Tensor]
) -> None:
    """x is |s| where 1/Δ can be moved into the constants: powers of two commute with rounding, so every bit stays."""
    lead, *coefficients = constants
    c, (x, w, G, N) = window.sharpness, buffers
    torch.clamp(s, min=0, out=out)
    torch.abs(s, out=x)
    inverse = 1 / window.spacing
    if not _scales_exactly(window.spacing):
        x.mul_(inverse)
        inverse = 1.0
    torch.mul(x, -2 * c * inverse, out=w).exp_()
    torch.add(lead * inverse, x, alpha=-c * inverse * inverse, out=G).mul_(x).exp_()
    _horner(coefficients, window.coefficients[-1], w, N)
    out.addcmul_(G, N)


def _tail_chunk(
    tail: TailForm, constants: Sequence[Tensor], s: Tensor, out: Tensor, buffers: Sequence[Tensor]
) -> None:
    zero, one, *coefficients = constants
    t, N = buffers[:2]
    torch.abs(s, out=t)
    torch.add(one, t, alpha=tail.rate, out=t).reciprocal_()
    _horner(coefficients, tail.coefficients[-1], t, N)
    G = torch.addcmul(zero, s, s, value=-tail.kappa, out=t).exp2_()
    torch.clamp(s, min=0, out=out).addcmul_(G, N)


def _horner(coefficients: Sequence[Tensor], last: float, w: Tensor, out: Tensor) -> None:
    """out = C_0 + w(C_1 + w(C_2 + …)); the last coefficient is given as a number, too."""
    if len(coefficients) == 1:
        out.fill_(last)
    else:
        torch.add(coefficients[-2], w, alpha=last, out=out)
    for C in reversed(coefficients[:-2]):
        torch.addcmul(C, out, w, out=out)


def _scales_exactly(spacing: float) -> bool:
    """Whether 1/Δ is a power of two whose square is far from the ends of the range of float32."""
    return math.frexp(spacing)[0] == 0.5 and 2.0**-20 <= spacing <= 2.0**20


def _plain_gate(gate: Gate, s: Tensor) -> Tensor:
    """s is clamped to finite numbers from below: -∞·0 is NaN."""
    slope, cubic = constant(gate.slope, s), constant(gate.cubic, s)
    z = s * slope if gate.cubic == 0 else (s * s * cubic + slope) * s
    return s.clamp(min=torch.finfo(s.dtype).min) * torch.sigmoid(z)


def _gate_chunk(gate: Gate, slope: Tensor, s: Tensor, out: Tensor, weight: Tensor) -> None:
    z = s  # a product with 1 rounds nothing
    if gate.cubic:
        z = torch.addcmul(slope, s, s, value=gate.cubic, out=weight).mul_(s)
    elif gate.slope != 1:
        z = torch.mul(s, gate.slope, out=weight)
    torch.sigmoid(z, out=weight)
    torch.clamp(s, min=torch.finfo(s.dtype).min, out=out).mul_(weight)
