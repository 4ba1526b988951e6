"""A head as a torch module: affine maps and one softmax."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import checked_engine, checked_strict
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function
from attnc.heads.chain import anchor_positions
from attnc.network.altered import CertifiedModule, as_made, warn_if_changed, why_changed
from attnc.network.certified import Certified, certified_head
from attnc.network.describe import error_of
from attnc.network.engines import DerivedWindow, run_window, sdpa, window_now
from attnc.network.running import (
    can_look,
    check_domain,
    check_tensor,
    in_chunks,
    is_in_rows,
    precise,
)  # fmt: skip
from attnc.progress import checked_call
from attnc.records.certificate import Certificate
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.record import Record, write

if TYPE_CHECKING:
    from attnc.network.literal import SelfAttentionNetwork

_CHUNK = 1 << 19  # attention weights held at once: they stay in the cache
_ROWS = 12  # anchors from which onnxruntime is faster with them along the last axis


@as_made
class Head(CertifiedModule):
    """H softmax heads over p anchors each that imitate one univariate function, element by element.

        x_h  = query[h,0]·s + query[h,1]                        the query, centred on the head's range
        z_hk = key[h,k,0]·x_h + key[h,k,1]                      the scores
        g(s) = Σ_h output[h] Σ_k softmax_k(z_h)·(value[h,k,0]·s + value[h,k,1])

    `attnc.head` makes heads. The four tensors are parameters that require no gradient by default. `certificate` states the
    error: proved, measured or unknown.

    `strict` controls inputs outside the domain of the certificate: None warns once, True raises, False does nothing. Under
    torch.compile, torch.export and other tracing nothing is checked.
    """

    query: nn.Parameter  # (H, 2)
    key: nn.Parameter  # (H, p, 2)
    value: nn.Parameter  # (H, p, 2); column 0 is zero unless the token attends to itself
    output: nn.Parameter  # (H,)
    _derived: DerivedWindow | None = None  # once it was needed

    def __init__(
        self,
        numbers: HeadNumbers,
        design: str,
        certificate: Certificate | None = None,
        strict: bool | None = None,
    ) -> None:
        super().__init__()
        for name in TENSORS:
            tensor = torch.tensor(getattr(numbers, name), dtype=getattr(torch, numbers.dtype))
            setattr(self, name, nn.Parameter(tensor, requires_grad=False))
        self.design = design
        self.certificate = certificate or Certificate.unknown("head", numbers.dtype)
        self.strict = checked_strict(strict)

    @precise
    def forward(self, s: Tensor, strict: bool | None = None) -> Tensor:
        """g(s), of the shape of s. `strict` overrides the head's own for this call."""
        self._check_input(s)
        check_domain(self, s, strict, self.domain)
        return in_chunks(self._attend, _CHUNK // self.key[..., 0].numel(), s.reshape(-1)).reshape(s.shape)

    @precise
    def run(self, s: Tensor, engine: str, strict: bool | None = None) -> Tensor:
        """g(s) by "softmax", "sdpa" or, if the head has a window, "closed-form"; the certificate covers the first two.

        >>> import attnc, torch
        >>> head, s = attnc.head("tanh", domain=(-8, 8), eps=1e-5), torch.linspace(-8, 8, 99)
        >>> bool((head.run(s, "sdpa") - head(s)).abs().max() <= 2 * head.certificate.rounding)
        True
        """
        if checked_engine(engine) == "softmax":
            out: Tensor = self(s, strict)
            return out
        self._check_input(s)
        check_domain(self, s, strict, self.domain)
        if engine == "sdpa":
            return sdpa(self, s)
        window = window_now(self)
        if window is None:
            raise InputError(
                "engine='closed-form' runs lattice heads and gates whose numbers require no gradient (call refresh() before "
                "torch.compile): use engine='softmax'"
            )
        return run_window(window, s)

    def refresh(self) -> None:
        """Derive the window of engine="closed-form" again: needed after changing numbers in place under torch.compile."""
        self._derived = DerivedWindow.of(self)

    @property
    def is_gated(self) -> bool:
        """Whether a token attends to itself; False if that cannot be known, under torch.compile and other tracing."""
        return can_look(self.value) and bool(self.value[..., 0].any())

    @property
    def domain(self) -> Interval | None:
        """The interval on which its error was proved or measured; None if it is unknown."""
        domain = self.certificate.holds_for
        return domain if isinstance(domain, Interval) else None

    @precise
    def weights(self, s: Tensor) -> Tensor:
        """The attention weights: (..., p), or (..., H, p) with several heads.

        >>> import attnc, torch
        >>> attnc.head("tanh", domain=(-8, 8), eps=1e-5).weights(torch.zeros(3)).sum(-1)
        tensor([1., 1., 1.])
        """
        self._check_input(s)
        weights = torch.softmax(self._scores(s.reshape(-1)), 1).permute(2, 0, 1)
        return weights.reshape(*s.shape, *(self.key.shape[1:2] if self.heads == 1 else self.key.shape[:2]))

    @property
    def heads(self) -> int:
        return int(self.key.shape[0])

    @property
    def anchors(self) -> Tensor:
        """The positions of the anchors on the axis of s: the middle of the interval in which each has the largest weight.
        (p,), or (H, p)."""
        numbers = self.numbers()
        pairs = zip(numbers.key, numbers.query, strict=True)
        found = torch.from_numpy(np.stack([(anchor_positions(key) - b) / a for key, (a, b) in pairs]))
        return found[0] if self.heads == 1 else found

    def numbers(self) -> HeadNumbers:
        """The numbers as they are stored, for `prove`."""
        dtypes = {str(getattr(self, name).dtype).removeprefix("torch.") for name in TENSORS}
        if len(dtypes) > 1:
            raise InputError(f"the head's tensors have the dtypes {sorted(dtypes)}: they must share one")
        arrays = {name: getattr(self, name).detach().to("cpu", torch.float64).numpy() for name in TENSORS}
        return HeadNumbers(**arrays, dtype=dtypes.pop())

    def certified(self, s: Tensor, function: Function | str | None = None) -> Certified:
        """head(s), and a bound of |head(s) - f(s)| for these very inputs, as a float64 tensor that is rounded up.

        The result is compared with f in ball arithmetic: the bound exceeds the error by less than one part in 10^9, and nothing
        is assumed about the machine. `function` is needed only if f is your own and is not registered.

        >>> import attnc, torch
        >>> head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
        >>> y, bound = head.certified(torch.tensor([0.5, 7.0]))
        >>> bool((bound <= head.certificate.bound).all()), bound.dtype
        (True, torch.float64)
        """
        return certified_head(self, s, function)

    @checked_call
    def as_self_attention(self, n: int) -> SelfAttentionNetwork:
        """The same head as plain self-attention over n data tokens and the anchors: W_Q, W_K, W_V, W_O, no mask."""
        from attnc.network.literal.layers import literal_head

        return literal_head(self, n)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write numbers and certificate to a safetensors file; `attnc.load` reads it back. Warns
        (`attnc.errors.CertificateWarning`) if numbers have changed, so that the certificate does not apply to them."""
        warn_if_changed(self, self.certificate)
        write(path, self.record())

    def record(self) -> Record:
        """Numbers and certificate, as in a file."""
        return Record(self.numbers(), self.certificate)

    def why_not_certified(self) -> str | None:
        """None if a proved certificate applies to the head as it is now, else the reason."""
        if not self.certificate.proved:
            return f"its error is {self.certificate.status}, not proved"
        return why_changed(self, self.certificate)

    def _repr_html_(self) -> str:
        from attnc.network.cards import head_card

        return head_card(self)

    def extra_repr(self) -> str:
        function, p = self.certificate.facts.get("function", "unknown"), self.key.shape[1]
        on = "" if self.domain is None else f", domain=[{self.domain.lo:g}, {self.domain.hi:g}]"
        anchors = f"{p}" if self.heads == 1 else f"{self.heads} heads of {p}"
        dtype = str(self.key.dtype).removeprefix("torch.")
        facts = f"anchors={anchors}, design={self.design}, dtype={dtype}, error={error_of(self)}"
        return f"function={function}{on}, {facts}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Head:
        super()._apply(fn, recurse)
        if self._derived is not None:
            self.refresh()
        return self

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        if self._derived is not None:
            self.refresh()

    def _scores(self, s: Tensor) -> Tensor:
        """(H, p, N) for s of shape (N,): inputs run along the last axis, where memory is contiguous. Products and sums are
        fused where the processor can, which halves the rounding of large scores."""
        x = torch.addcmul(self.query[:, 1:], self.query[:, :1], s)
        return torch.addcmul(self.key[..., 1:], self.key[..., :1], x.unsqueeze(1))

    def _attend(self, s: Tensor) -> Tensor:
        if is_in_rows() and self.heads == 1 and self.key.shape[1] >= _ROWS:
            return self._attend_in_rows(s)
        weights = torch.softmax(self._scores(s), 1)
        value = self.value[..., 1:]
        if not can_look(self.value) or self.is_gated:  # what cannot be looked at may be gated: 0·s + v is v
            value = self.value[..., :1] * s + value
        return ((weights * value).sum(1) * self.output[:, None]).sum(0)

    def _attend_in_rows(self, s: Tensor) -> Tensor:
        """The same for one head with anchors along the last axis, (N, p), which other runtimes run faster:
        Σ w (a s + b) = s (w·a) + w·b, where a is zero unless the token attends to itself."""
        x = torch.addcmul(self.query[:, 1:], self.query[:, :1], s).t()
        key, constant = self.key.unbind(-1)
        weights = torch.softmax(torch.addmm(constant[0], x, key), -1)
        slope, rest = ((weights @ (self.output * value.t())).squeeze(1) for value in self.value.unbind(-1))
        return slope * s + rest

    def _check_input(self, s: Tensor) -> None:
        check_tensor("the input of a head", s, self.key.dtype)
