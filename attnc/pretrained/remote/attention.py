"""A transformer whose nonlinearities are softmax attention over stored anchors, converted by attnc (MIT licence).

`AutoModel.from_pretrained(directory, trust_remote_code=True)` runs this file. It needs torch, transformers and safetensors, not
attnc. The modules below execute the operations of attnc's own modules in the same order, so that results are the same numbers.
They check no domains: attnc's modules warn where an input lies outside of what was proved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

_WEIGHTS, _PRODUCTS, _BLOCK, _NUMBERS = (
    1 << 19,
    1 << 17,
    1 << 22,
    1 << 18,
)  # in one chunk: they stay in the cache
_LAYOUT = {  # integers of the same size, exponent of 1, bits of the fraction
    torch.float32: (torch.int32, 127, 23),
    torch.float64: (torch.int64, 1023, 52),
}
_DTYPES = {str(d).removeprefix("torch."): d for d in (*_LAYOUT, torch.float16, torch.bfloat16)}


def _in_place(*tensors: Tensor) -> bool:
    """Whether results may be written in place and in chunks: plain tensors on the CPU, no gradient, no graph that is recorded."""
    stack = getattr(torch._C, "_len_torch_dispatch_stack", int)
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or stack():  # type: ignore[no-untyped-call, attr-defined]
        return False
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda t: False)
    if any(type(t) not in (Tensor, nn.Parameter) or wrapped(t) or t.device.type != "cpu" for t in tensors):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def _in_chunks(run: Callable[..., Tensor], rows: int, *tensors: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
        return run(*tensors)
    parts = [run(*part) for part in zip(*(torch.split(t, max(1, rows)) for t in tensors))]  # noqa: B905
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _autocast_is_on(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype not in _LAYOUT


class _Precise(nn.Module):
    """Numbers that stay float32 or float64 when the model is cast to half precision; inputs are converted, and results back."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Precise:
        own = next(t for t in self.buffers() if t.is_floating_point())
        like = fn(own.detach().new_empty(0))
        super()._apply((lambda t: t.to(like.device)) if _is_half(like.dtype) else fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _in_full(self, run: Callable[..., Tensor], *given: Tensor) -> Tensor:
        kind, half = given[0].device.type, next((x.dtype for x in given if _is_half(x.dtype)), None)
        if _autocast_is_on(kind):
            with torch.autocast(kind, enabled=False):
                return self._in_full(run, *given)
        if half is None:
            return run(*given)
        full = next(
            t.dtype
            for part in (getattr(self, "heads", self),)
            for t in part.buffers()
            if t.is_floating_point()
        )
        most = min(torch.finfo(half).max, 2.0**64)
        wide = (x.to(full).clamp(-most, most) if x.dtype == half else x for x in given)
        return run(*wide).to(half)


class Anchors(_Precise):
    """g(s) = Σ_h output_h Σ_k softmax_k(key_hk0 x + key_hk1)·(value_hk0 s + value_hk1), x = query_h0 s + query_h1."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in ("query", "key", "value", "output"):
            self.register_buffer(name, tensors[name])
        self.gated = bool(tensors["value"][..., 0].any())

    def forward(self, s: Tensor) -> Tensor:
        rows = _WEIGHTS // cast(Tensor, self.key)[..., 0].numel()
        return _in_chunks(self._attend, rows, s.reshape(-1)).reshape(s.shape)

    def _attend(self, s: Tensor) -> Tensor:
        query, key, value, output = self.buffers()
        x = torch.addcmul(query[:, 1:], query[:, :1], s)
        weights = torch.softmax(torch.addcmul(key[..., 1:], key[..., :1], x.unsqueeze(1)), 1)
        values = value[..., :1] * s + value[..., 1:] if self.gated else value[..., 1:]
        return ((weights * values).sum(1) * output[:, None]).sum(0)


class Activation(_Precise, nn.ModuleList):
    """x_j ↦ g(x_j) for every neuron j; neurons of a group share anchors. A form is what runs instead of softmax, or None."""

    def __init__(self, groups: Sequence[Anchors], neurons: Sequence[Tensor], forms: Sequence[Any]) -> None:
        super().__init__(groups)
        self.forms = list(forms)
        for g, own in enumerate(neurons):
            self.register_buffer(f"neurons_{g}", own)

    def forward(self, x: Tensor) -> Tensor:
        return self._in_full(self._run, x)

    def _run(self, x: Tensor) -> Tensor:
        if self.forms[0] is not None and all(form == self.forms[0] for form in self.forms):
            return closed_form(self.forms[0], x)
        if len(self) == 1:
            return cast(Tensor, self[0](x))
        neurons = [cast(Tensor, self._buffers[f"neurons_{g}"]) for g in range(len(self))]
        parts = []
        for own, head, form in zip(neurons, self, self.forms):  # noqa: B905
            s = x.index_select(-1, own)
            parts.append(head(s) if form is None else closed_form(form, s))
        together = torch.cat(parts, -1)
        return torch.empty_like(together).index_copy(-1, torch.cat(neurons), together)


class Product(_Precise):
    """(x, y) ↦ x∘y = (q(x/λ + λy) - q(x/λ - λy))/4 with q(ζ) = ρ² square(ζ/ρ), λ = 2^scale, ρ = 2^radius."""

    def __init__(self, square: Activation, scale: Tensor, radius: Tensor, multiplied: bool) -> None:
        super().__init__()
        self.square, self.multiplied = square, multiplied
        self.register_buffer("scale", scale)
        self.register_buffer("radius", radius)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._in_full(self._run, x, y)

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        if self.multiplied:
            return x * y
        if not _in_place(x, y, *self.buffers()):
            return self._multiply(x, y)
        rows = _PRODUCTS // max(1, cast(Tensor, self.scale).numel())
        tokens = (t.reshape(-1, t.shape[-1]) for t in (x, y))
        return _in_chunks(self._multiply, rows, *tokens).reshape(x.shape)

    def _multiply(self, x: Tensor, y: Tensor) -> Tensor:
        whole, bias, fraction = _LAYOUT[x.dtype]
        scale, radius = cast(Tensor, self.scale).to(whole), cast(Tensor, self.radius).to(whole)
        powers = torch.stack([scale, -scale, -radius, 2 * radius])
        up, down, shrink, square = torch.bitwise_left_shift(powers + bias, fraction).view(x.dtype)
        left, right = x * down, y * up
        above, below = (self.square(zeta * shrink) * square for zeta in (left + right, left - right))
        return cast(Tensor, (above - below) * 0.25)


class GatedBlock(nn.Module):
    """x ↦ second(activation(first(x)) ∘ up(x)); with rows, first and up are parts of the outputs of one map."""

    def __init__(
        self, maps: Mapping[str, nn.Module], activation: Activation, product: Product, rows: Any = None
    ) -> None:
        super().__init__()
        for name, module in maps.items():
            self.add_module(name, module)
        self.roles, self.rows = tuple(maps), rows
        self.activation, self.product = activation, product

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if not _autocast_is_on(kind):
            return self._forward(x)
        dtype = next((p.dtype for p in self.get_submodule(self.roles[0]).parameters()), x.dtype)
        with torch.autocast(kind, enabled=False):
            return self._forward(x.to(dtype)).to(x.dtype) if _is_half(x.dtype) else self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if not _in_place(x, *self.parameters(), *self.buffers()):
            return self._block(x)
        rows = _BLOCK // max(1, cast(Tensor, self.product.scale).numel())
        out = _in_chunks(self._block, rows, x.reshape(-1, x.shape[-1]))
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def _block(self, x: Tensor) -> Tensor:
        *maps, second = (self.get_submodule(name) for name in self.roles)
        if self.rows is None:
            s, t = (linear(x) for linear in maps)
        else:
            both = maps[0](x)
            s, t = (both[..., start:stop] for start, stop in self.rows)
        return cast(Tensor, second(self.product(self.activation(s), t)))


class TwoKeySum(_Precise):
    """R = Σ_j value_j softmax(intercept_j - slope_j q, 0)_0 for q = z·z, or its closed form 1/√(q/dim + ε)."""

    def __init__(self, tensors: Mapping[str, Tensor], dim: int, epsilon: float | None) -> None:
        super().__init__()
        self.dim, self.epsilon = dim, epsilon
        for name in ("slope", "intercept", "value"):
            self.register_buffer(name, tensors[name])

    def forward(self, q: Tensor) -> Tensor:
        if self.epsilon is not None:
            return (q * (1.0 / self.dim) + self.epsilon).sqrt().reciprocal().reshape(q.shape)
        slope, intercept, value = self.buffers()
        scores = intercept.unsqueeze(-1) - slope.unsqueeze(-1) * q.reshape(-1)
        weights = torch.softmax(torch.stack([scores, torch.zeros_like(scores)]), 0)[0]
        return (value @ weights).reshape(q.shape)


class Norm(_Precise):
    """x ↦ gain∘(R z) + bias with z = x - mean x (`centred`) or z = x; the gain is `weight`, or 1 + weight in `one_plus`."""

    def __init__(self, heads: TwoKeySum, held: nn.Module, centred: bool, one_plus: str | None) -> None:
        super().__init__()
        self.heads, self.centred = heads, centred
        self.one_plus = None if one_plus is None else _DTYPES[one_plus]
        for name in ("weight", "bias"):
            tensor = getattr(held, name, None)
            if isinstance(tensor, nn.Parameter) or tensor is None:
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self._in_full(self._run, x)

    def _run(self, x: Tensor) -> Tensor:
        own = [cast(Tensor, t) for t in (self.weight, self.bias) if t is not None]
        same = all(t.dtype == x.dtype for t in own)
        if self.heads.epsilon is not None and x.is_contiguous() and same and _in_place(x, *own):
            return self._in_chunks(x)
        z = x - x.mean(-1, keepdim=True) if self.centred else x
        q = (z.unsqueeze(-2) @ z.unsqueeze(-1)).reshape(z.shape[:-1])
        y, gain = self.heads(q).unsqueeze(-1) * z, self._gain()
        y = y if gain is None else y * gain
        return cast(Tensor, y if self.bias is None else y + self.bias)

    def _in_chunks(self, x: Tensor) -> Tensor:
        out, gain, bias = torch.empty_like(x), self._gain(), cast("Tensor | None", self.bias)
        tokens = (t.view(-1, self.heads.dim) for t in (x.detach(), out))
        rows = (torch.split(t, max(1, _NUMBERS // self.heads.dim)) for t in tokens)
        for part, y in zip(*rows):  # noqa: B905
            z = torch.sub(part, part.mean(-1, keepdim=True), out=y) if self.centred else part
            torch.mul(z, self.heads(torch.linalg.vecdot(z, z)).unsqueeze(-1), out=y)
            if gain is not None and bias is not None:
                torch.addcmul(bias, y, gain, out=y)
            elif gain is not None:
                y.mul_(gain)
            elif bias is not None:
                y.add_(bias)
        return out

    def _gain(self) -> Tensor | None:
        weight = cast("Tensor | None", self.weight)
        if weight is None or self.one_plus is None:
            return weight
        gain = 1.0 + weight.to(self.one_plus)
        return gain if _is_half(weight.dtype) else gain.to(weight.dtype)


def closed_form(form: Mapping[str, Any], s: Tensor) -> Tensor:
    """What runs instead of the softmax of a head: s·σ(s·(slope + cubic·s²)) (kind "gate"), or max(s, 0) + G·Σ_j C_j w^j with

    "window":  x = |s|/spacing, w = exp(-2cx), G = exp(x·(lead - cx))
    "tail":    w = 1/(1 + rate·|s|), G = 2^(-kappa·s²)
    """
    if not (_in_place(s) and s.is_contiguous()):
        if s.ndim == 0:
            return closed_form(form, s.reshape(1)).reshape(())
        return _plain_gate(form, s) if form["kind"] == "gate" else _plain(form, s)
    s = s.detach()
    out = torch.empty_like(s, memory_format=torch.contiguous_format)
    buffers = s.new_empty(4, min(_NUMBERS, s.numel()))
    first = {"gate": ("slope",), "window": ("lead",), "tail": ()}[form["kind"]]
    constants = (*(form[name] for name in first), *form.get("coefficients", ()))
    fixed = s.new_tensor((0.0, 1.0, *constants)).unbind()
    run = {"gate": _gate_chunk, "window": _window_chunk, "tail": _tail_chunk}[form["kind"]]
    for part, result in zip(*(torch.split(t.view(-1), _NUMBERS) for t in (s, out))):  # noqa: B905
        run(form, fixed, part, result, buffers[:, : len(part)].unbind())
    return out


def _plain(form: Mapping[str, Any], s: Tensor) -> Tensor:
    negative = s < 0
    size = torch.where(negative, -s, s)
    if form["kind"] == "tail":
        w, G = torch.reciprocal(size * form["rate"] + 1), torch.exp2(s * s * -form["kappa"])
    else:
        c, x = form["sharpness"], size * (1 / form["spacing"])
        w, G = torch.exp(x * (-2 * c)), torch.exp(x * (x * -c + form["lead"]))
    N: Any = form["coefficients"][-1]
    for C in reversed(form["coefficients"][:-1]):
        N = N * w + C
    out: Tensor = torch.where(negative, torch.zeros_like(s), s) + G * N
    return out


def _plain_gate(form: Mapping[str, Any], s: Tensor) -> Tensor:
    slope, cubic = form["slope"], form["cubic"]
    z = s * slope if cubic == 0 else (s * s * cubic + slope) * s
    gated: Tensor = s.clamp(min=torch.finfo(s.dtype).min) * torch.sigmoid(z)
    return gated


def _window_chunk(form: Any, fixed: Sequence[Tensor], s: Tensor, out: Tensor, buffers: Any) -> None:
    _, _, lead, *coefficients = fixed
    c, spacing, (x, w, G, N) = form["sharpness"], form["spacing"], buffers
    torch.clamp(s, min=0, out=out)
    torch.abs(s, out=x)
    inverse = 1 / spacing
    if not (math.frexp(spacing)[0] == 0.5 and 2.0**-20 <= spacing <= 2.0**20):
        x.mul_(inverse)
        inverse = 1.0
    torch.mul(x, -2 * c * inverse, out=w).exp_()
    torch.add(lead * inverse, x, alpha=-c * inverse * inverse, out=G).mul_(x).exp_()
    _horner(coefficients, form["coefficients"][-1], w, N)
    out.addcmul_(G, N)


def _tail_chunk(form: Any, fixed: Sequence[Tensor], s: Tensor, out: Tensor, buffers: Any) -> None:
    zero, one, *coefficients = fixed
    t, N = buffers[:2]
    torch.abs(s, out=t)
    torch.add(one, t, alpha=form["rate"], out=t).reciprocal_()
    _horner(coefficients, form["coefficients"][-1], t, N)
    G = torch.addcmul(zero, s, s, value=-form["kappa"], out=t).exp2_()
    torch.clamp(s, min=0, out=out).addcmul_(G, N)


def _gate_chunk(form: Any, fixed: Sequence[Tensor], s: Tensor, out: Tensor, buffers: Any) -> None:
    z, weight = s, buffers[0]
    if form["cubic"]:
        z = torch.addcmul(fixed[2], s, s, value=form["cubic"], out=weight).mul_(s)
    elif form["slope"] != 1:
        z = torch.mul(s, form["slope"], out=weight)
    torch.sigmoid(z, out=weight)
    torch.clamp(s, min=torch.finfo(s.dtype).min, out=out).mul_(weight)


def _horner(coefficients: Sequence[Tensor], last: float, w: Tensor, out: Tensor) -> None:
    """out = C_0 + w(C_1 + w(C_2 + …))."""
    if len(coefficients) == 1:
        out.fill_(last)
    else:
        torch.add(coefficients[-2], w, alpha=last, out=out)
    for C in reversed(coefficients[:-2]):
        torch.addcmul(C, out, w, out=out)
