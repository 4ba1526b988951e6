"""One network for every function: the anchors are context tokens, and the matrices know nothing of the function.

A data token holds s and asks with the query (s, 1). A token of the prompt holds (κ, c, v): its key is (κ, c), its value v. So

    W_Q, W_K, W_V, W_O   copy coordinates: their entries are 0 and 1
    net(s, prompt)       Σ_k softmax_k(κ_k s + c_k) v_k

and another prompt makes the same network compute another function. Since the matrices only copy numbers, the executed arithmetic
is that of an `attnc.Head` with these keys and values, and its proof covers the prompt, rounding included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnc.arguments import check_arithmetic, checked_dtype, checked_interval, torch_dtype
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions import Function
from attnc.heads.draft import Finished, to_dtype
from attnc.heads.plan import conclude
from attnc.heads.target import Plan
from attnc.lower.function_to_head import as_function, finished_head, of_callable
from attnc.lower.function_to_head import head as planned_head
from attnc.network.altered import why_altered, why_lapsed
from attnc.network.head import Head
from attnc.network.literal.builder import largest_score
from attnc.network.literal.layers import literal_head
from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.running import check_domain, check_tensor
from attnc.records.certificate import Certificate
from attnc.records.numbers import HeadNumbers
from attnc.records.presentation import Theorem

TOP = 2.0**40  # the largest score that the gates of the literal form allow


@dataclass(frozen=True, eq=False)
class Prompt:
    """Anchor tokens (κ, c, v) that make a `PromptedNetwork` compute one function, and the head whose proof covers them."""

    name: str
    tokens: Tensor  # (p, 3)
    head: Head

    @property
    def certificate(self) -> Certificate:
        """That of the head, which says when it is printed whether it applies to the tokens as they are now."""
        return self.head.certificate.held_by(self, _why_lapsed)


class PromptedNetwork(nn.Module):
    """Softmax attention from data tokens to the tokens of a prompt, with fixed matrices. `attnc.paper.prompted` makes one."""

    def __init__(self, domain: Interval, dtype: torch.dtype) -> None:
        super().__init__()
        self.domain, self.dtype = domain, dtype
        self.strict: bool | None = None
        self.head = Head(_numbers(torch.zeros(1, 3, dtype=dtype)), "prompted", strict=False)
        self.theorem = Theorem(
            "one network for every function",
            "for every f with the Lipschitz constant K on the domain and every eps > 0, the prompt of p >= 1 + K (b - a) C/eps "
            "uniform anchors L_k, tokens (2βL_k, -βL_k², f(L_k)) with βΔ² = c >= 1/2, makes the network compute f within eps, in "
            "exact arithmetic: |net(s, prompt) - f(s)| <= K Δ C(c); the matrices do not depend on f, eps or p",
            None,
        )

    def forward(self, s: Tensor, prompt: Prompt | Tensor, strict: bool | None = None) -> Tensor:
        """Σ_k softmax_k(κ_k s + c_k) v_k, of the shape of s; `prompt` is a `Prompt` or tokens (p, 3). Outside the domain
        strict=None warns once, True raises, False does nothing."""
        tokens = self._checked(prompt)
        check_tensor("the input of a head", s, self.dtype)
        check_domain(self, s, strict, self.domain)
        zero = torch.zeros_like(tokens[:, 2])
        numbers = {"key": tokens[None, :, :2], "value": torch.stack([zero, tokens[:, 2]], -1)[None]}
        found: Tensor = functional_call(self.head, numbers, (s,))
        return found

    def prompt(self, f: str | Function | Callable[[Tensor], Tensor], **size: Any) -> Prompt:
        """The prompt for a function: `attnc.head` plans it (`eps=…` or `anchors=…`, and `design=…`), and it is proved as it runs.
        The error of a callable whose operations attnc does not understand is measured, and the certificate says why.

        >>> import attnc.paper
        >>> net = attnc.paper.prompted(domain=(-3, 3))
        >>> wave = net.prompt("sin", eps=1e-6)
        >>> wave.tokens.shape[1], wave.certificate.bound <= 1e-6
        (3, True)
        """
        if size.get("design") == "gated" or size.get("heads", 1) != 1:
            raise InputError(
                "a prompt is one head without a key of the token itself: leave heads= and design='gated' out"
            )
        head = planned_head(f, domain=self.domain, dtype=self.dtype, **size)
        planned, known = head.numbers(), head.certificate
        (a, o), key = planned.query[0], planned.key[0]
        moved = np.stack([key[:, 0] * a, key[:, 0] * o + key[:, 1]], 1)
        numbers = np.concatenate([moved, planned.value[0, :, 1:] * planned.output[0]], 1)
        tokens = torch.from_numpy(to_dtype(numbers, planned.dtype)).to(self.dtype)
        reason = None if known.proved else str(known.facts.get("reason", "no error bound could be proved"))
        made, eps = self._certified(tokens, f, reason), size.get("eps")
        if eps is not None and not made.certificate.bound <= eps:
            reached = made.certificate.bound
            raise PrecisionError(
                f"eps={eps:g}: without a centre for the query the prompt reaches {reached:g}", reached, made
            )
        return made

    def certify(self, tokens: Tensor, f: str | Function | Callable[[Tensor], Tensor]) -> Prompt:
        """Prove how far net(s, tokens) is from f on the domain, for tokens (p, 3) from anywhere.

        >>> import attnc.paper, torch
        >>> net, x = attnc.paper.prompted(domain=(-1, 1)), torch.linspace(-1, 1, 9, dtype=torch.float64)
        >>> mine = net.certify(torch.stack([16 * x, -8 * x**2, x.abs()], 1), "abs")
        >>> str(mine.certificate.status), mine.certificate.bound < 0.26
        ('proved', True)
        """
        return self._certified(tokens, f)

    def _certified(
        self, tokens: Tensor, f: str | Function | Callable[[Tensor], Tensor], unproved: str | None = None
    ) -> Prompt:
        """A callable of which a head was not proved, for the reason `unproved`, is not read again: it may have a state."""
        tokens = self._checked(tokens)
        fixed, asked = self.head.output.detach(), self.head.query.detach()
        same = fixed.tolist() == [1.0] and asked.tolist() == [[1.0, 0.0]] and fixed.dtype == self.dtype
        reason = why_altered(self.head) or (None if same else "its matrices changed")
        if reason is not None:
            raise InputError(
                f"nothing is proved of this network: {reason}; make another by attnc.paper.prompted"
            )
        g, numbers, name = as_function(f), _numbers(tokens), checked_dtype(self.dtype)
        check_arithmetic(name)
        top = largest_score(numbers, 0, self.domain.lo, self.domain.hi)
        if not top <= TOP:
            raise InputError(
                f"a score of the prompt reaches {top:.3g} on the domain: up to {TOP:g} is accepted; scale the keys"
            )

        def build(plan: Plan) -> Head:
            found = conclude(plan, Finished("prompted", numbers, math.inf, 0.0), math.inf)
            if not math.isfinite(found.bound):
                raise ConvergenceError(
                    f"no error bound could be proved for this prompt and {plan.where}: use smaller numbers"
                )
            return finished_head(plan, found)

        plan = Plan(g, self.domain, name, "auto")
        if unproved is None or g.provable:
            made = of_callable(plan, build)
        else:
            made = build(plan)
            made.certificate = replace(made.certificate, facts={**made.certificate.facts, "reason": unproved})
        return Prompt(g.label, tokens.detach().clone(), made)

    def as_self_attention(self, prompt: Prompt, n: int) -> SelfAttentionNetwork:
        """Plain self-attention over n data tokens and the prompt, without a mask: W_Q, W_K, W_V, W_O are the same for all."""
        if not isinstance(prompt, Prompt):
            raise InputError(f"prompt is what `prompt` or `certify` returned: got {type(prompt).__name__}")
        return literal_head(prompt.head, n, TOP)

    def _checked(self, prompt: object) -> Tensor:
        tokens = prompt.tokens if isinstance(prompt, Prompt) else prompt
        if (
            not isinstance(tokens, Tensor)
            or tokens.dtype != self.dtype
            or tokens.shape[1:] != (3,)
            or not len(tokens)
        ):
            given = (
                f"{tuple(tokens.shape)} of {tokens.dtype}"
                if isinstance(tokens, Tensor)
                else type(tokens).__name__
            )
            raise InputError(
                f"a prompt has tokens (p, 3), slope, offset and value, of {self.dtype}: got {given}"
            )
        return tokens


def prompted(
    *, domain: tuple[float, float] | Interval = (-1.0, 1.0), dtype: torch.dtype | str = torch.float64
) -> PromptedNetwork:
    """A network with fixed matrices that computes on `domain` the function that its prompt of anchor tokens describes.

    >>> import attnc, attnc.paper, torch
    >>> net = attnc.paper.prompted(domain=(-3, 3))
    >>> wave, bump = net.prompt("sin", eps=1e-6), net.prompt("tanh", eps=1e-6)
    >>> s = torch.linspace(-3, 3, 101, dtype=torch.float64)
    >>> [bool((net(s, p) - f(s)).abs().max() <= p.certificate.bound <= 1e-6) for p, f in ((wave, torch.sin), (bump, torch.tanh))]
    [True, True]
    >>> [attnc.verify(x).status == "proved" for x in (wave.head, bump.head, net.as_self_attention(wave, n=4))]
    [True, True, True]
    """
    return PromptedNetwork(checked_interval(domain, checked_dtype(dtype)), torch_dtype(dtype))


def _why_lapsed(prompt: Prompt) -> str | None:
    """Why the certificate of a prompt does not apply to its head or its tokens as they are now; None if it does."""
    held, head = prompt.tokens.detach(), prompt.head
    same = torch.cat([head.key.detach()[0], head.value.detach()[0, :, 1:]], 1)
    if held.shape != same.shape or held.dtype != same.dtype or not torch.equal(held.cpu(), same.cpu()):
        return "the tokens of the prompt changed since they were certified"
    return why_lapsed(head)


def _numbers(tokens: Tensor) -> HeadNumbers:
    """The head with the query (s, 1) and the keys and values of a prompt."""
    held = tokens.detach().to("cpu", torch.float64).numpy()
    value = np.stack([np.zeros(len(held)), held[:, 2]], 1)
    name = str(tokens.dtype).removeprefix("torch.")
    return HeadNumbers(np.array([[1.0, 0.0]]), held[None, :, :2].copy(), value[None], np.ones(1), name)
