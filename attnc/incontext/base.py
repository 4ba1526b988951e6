"""The common part of learners and solvers: checks of the context, predictions, and the certificate."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from attnc.arithmetic import ARITHMETIC, Arithmetic, loose_products
from attnc.domain import Context
from attnc.errors import InputError
from attnc.incontext.bounds import EXACT, HeadErrors, LearnerBound, SolverBound
from attnc.incontext.layers import gathered
from attnc.incontext.settings import EXAMPLES, Settings, facts_of
from attnc.network.altered import CertifiedModule, as_made, warn_if_changed, why_altered, why_parts
from attnc.network.head import Head
from attnc.network.running import check_tensor, is_traced, precise
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up, versions
from attnc.records.record import Record, write


@as_made
class InContext(CertifiedModule):
    """An algorithm on the examples of a context, by attention with fixed weights: `module(context_x, context_y, query_x)`.

    `certificate.bound` is the proved distance of the coefficients to those of the exact algorithm, for every context within the
    radius of up to 1,000 examples; `error_bound(n)` is the same for n examples. With `strict` (the default) data outside the
    radius raise an error; with strict=False the result has no bound, and `uncertified` states the reason. In a traced
    graph nothing is checked, and `uncertified` stays as it is."""

    algorithm: str
    settings: Settings
    _gathered = staticmethod(gathered)  # so that `why_altered` sees it replaced

    def __init__(
        self, settings: Settings, reading: Head, activation: Head | None = None, threshold: Head | None = None
    ) -> None:
        super().__init__()
        self.settings, self.strict = settings, True
        self.reading, self.activation, self.threshold = reading, activation, threshold
        self.uncertified: str | None = None  # why the certificate does not cover the last result, or None
        self.certificate = self._certified()

    @abstractmethod
    def _bounds(self, term: str) -> LearnerBound | SolverBound:
        """The bound as executed ("bound"), or in exact arithmetic ("approximation")."""

    @abstractmethod
    def _check_context(self, x: Tensor, y: Tensor) -> None:
        """Raise if the algorithm may diverge on these examples, or if labels do not fit the loss."""

    @abstractmethod
    def _run(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The coefficients before the first and after every step, each with the sizes reached, in the order of `_limits`."""

    @abstractmethod
    def _limits(self) -> list[tuple[str, float, str]]:
        """The sizes that must stay within the radius: name, limit, part of the radius."""

    @property
    def features(self) -> int:
        """The number of columns of x, without the intercept."""
        return self.settings.features - self.settings.intercept

    @property
    def intercept(self) -> bool:
        return self.settings.intercept

    @precise
    def forward(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor, strict: bool | None = None
    ) -> Tensor:
        """Predictions for the rows of query_x: w·x, for the logistic loss the probability, for the poisson loss the mean."""
        strict = self.strict if strict is None else bool(strict)
        w, radius = self.coefficients(context_x, context_y, strict), self.settings.radius
        query = self._examples("query_x", query_x, strict)
        s = query @ w
        if is_traced():
            return self._predicted(self.reading(s, strict=False))
        if strict:
            check_reached("|w·x| of a query", float(s.abs().max()), radius.u, "u")
        elif not (bool((query.abs() <= radius.x).all()) and bool((s.abs() <= radius.u).all())):
            self.uncertified = self.uncertified or "a query lies outside the radius"
        return self._predicted(self.reading(s, strict=False))

    def _predicted(self, s: Tensor) -> Tensor:
        return s

    @precise
    def coefficients(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w after all steps, (d,), the intercept last."""
        return self.trajectory(context_x, context_y, strict)[-1]

    @precise
    def trajectory(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """The coefficients before the first and after every step, (steps + 1, d)."""
        strict = self.strict if strict is None else bool(strict)
        if strict and not is_traced():
            self._check_applies()
        radius = self.settings.radius
        x = self._examples("context_x", context_x, strict)
        y = checked_numbers("context_y", context_y, (x.shape[0],), x.dtype, radius.y, strict)
        if is_traced():
            return torch.stack([w for w, _ in self._run(x, y)])
        self._check_context(x, y)
        found, sizes = map(torch.stack, zip(*self._run(x, y), strict=True))
        self.uncertified = None
        try:
            if not strict:
                self._check_applies()
                check_reached("|context_x|", float(x.abs().max()), radius.x, "x")
                check_reached("|context_y|", float(y.abs().max()), radius.y, "y")
            for (name, limit, part), size in zip(self._limits(), sizes.amax(0).tolist(), strict=True):
                check_reached(name, size, limit, part)
        except InputError as problem:
            if strict:
                raise
            self.uncertified = str(problem)
        if len(x) > EXAMPLES and self.uncertified is None:
            self.uncertified = (
                f"it is for up to {EXAMPLES:,} examples: of {len(x):,}, error_bound({len(x)}) is the bound"
            )
        return found

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(of, 'name', of)}" for name, of in vars(self.settings).items())

    def why_not_certified(self) -> str | None:
        """None if the certificate applies to what runs now, else the reason."""
        if (altered := why_altered(self)) is not None:
            return altered
        heads, known = self._heads(), self.certificate
        if [getattr(head, "certificate", None) for head in heads.values()] != list(known.children):
            return "its heads are not the certified ones"
        stated = facts_of(self.settings)
        changed = [name for name, value in stated.items() if known.facts.get(name) != value]
        changed += ["radius"] * (known.holds_for != self._domain())
        changed += ["dtype"] * (known.dtype != self.settings.dtype)
        if changed:
            return f"changed since it was certified: {', '.join(changed)}"
        return why_parts(heads) or loose_products(self.settings.dtype)

    def _repr_html_(self) -> str:
        from attnc.incontext.cards import learner_card

        return learner_card(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write heads and certificate to a safetensors file; `attnc.load` reads it. Warns if numbers have changed."""
        for head in self._heads().values():
            warn_if_changed(head, head.certificate)
        write(path, Record({name: head.numbers() for name, head in self._heads().items()}, self.certificate))

    def _heads(self) -> dict[str, Head]:
        """The heads by name, in the order of the certificate's children."""
        found = {"reading": self.reading, "activation": self.activation, "threshold": self.threshold}
        return {name: head for name, head in found.items() if head is not None}

    def _errors(self, term: str) -> tuple[HeadErrors, Arithmetic]:
        """One term of the heads' certificates, and the arithmetic that it is about."""
        errors = {name: float(getattr(head.certificate, term)) for name, head in self._heads().items()}
        domain = None if self.activation is None else self.activation.certificate.interval
        arithmetic = ARITHMETIC[self.settings.dtype] if term == "bound" else EXACT
        return HeadErrors(**errors, domain=domain), arithmetic

    def _domain(self) -> Context:
        return Context(EXAMPLES, dict(vars(self.settings.radius)))

    def _certified(self) -> Certificate:
        """|w - w of the exact algorithm|₂ <= bound for every context within the radius; UNKNOWN if no finite bound was found.

        The claim leaves room of 2 %, so that another derivation of the bound need not agree to the last digit."""
        executed, exact = (self._bounds(term).bound(EXAMPLES) for term in ("bound", "approximation"))
        known = math.isfinite(executed) and math.isfinite(exact)
        bound, approximation = (round_up(x * 1.02) if known else math.inf for x in (executed, exact))
        approximation = min(approximation, bound)
        left = bound - approximation if known else math.inf
        heads = self._heads()
        return Certificate(
            subject="learner",
            name=self.algorithm.replace("_", " "),
            status=Status.PROVED if known else Status.UNKNOWN,
            approximation=approximation,
            rounding=round_up(math.nextafter(left, math.inf)) if 0 < left < math.inf else max(left, 0.0),
            bound=bound,
            holds_for=self._domain(),
            dtype=self.settings.dtype,
            facts={"algorithm": self.algorithm, "heads": list(heads), **facts_of(self.settings)},
            children=tuple(head.certificate for head in heads.values()),
            versions=versions(),
        )

    def _check_applies(self) -> None:
        if (reason := self.why_not_certified()) is not None:
            raise InputError(
                f"the certificate does not apply: {reason}. Build the module again, or call it with strict=False"
            )

    def _examples(self, name: str, x: Tensor, strict: bool) -> Tensor:
        """Rows of x, checked, with a column of ones for the intercept."""
        shape, limit = (None, self.features), self.settings.radius.x
        return with_ones(
            checked_numbers(name, x, shape, self.reading.key.dtype, limit, strict), self.intercept
        )


def with_ones(x: Tensor, intercept: bool) -> Tensor:
    """x with a column of ones for an intercept."""
    return torch.cat([x, x.new_ones(x.shape[0], 1)], 1) if intercept else x


def checked_numbers(
    name: str, x: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype, limit: float, strict: bool
) -> Tensor:
    """A finite tensor of a dtype and a shape (None: any size from 1 on), within the radius if `strict`."""
    check_tensor(name, x, dtype, shape, lead=False)
    if is_traced():
        return x
    if not len(x):
        raise InputError(f"{name} has no rows: give at least one")
    if not bool(torch.isfinite(x).all()):
        at = tuple(int(i) for i in torch.nonzero(~torch.isfinite(x))[0])
        raise InputError(f"{name} contains {float(x[at])} at {at}: use finite numbers")
    if strict and float(x.abs().max()) > limit:
        at = tuple(int(i) for i in torch.unravel_index(x.abs().argmax(), x.shape))
        raise InputError(
            f"{name} contains {float(x[at]):.6g} at {at}, outside the radius {limit:g} of the bound. Standardise the "
            "data, use a larger radius, or call with strict=False"
        )
    return x


def check_reached(
    name: str, size: float, limit: float, part: str, other: str = "call with strict=False"
) -> None:
    """Raise if a size exceeds the radius."""
    if not size <= limit:
        use = f"Use a larger radius ({part}), or {other}"
        raise InputError(
            f"{name} reached {size:.6g}, outside the radius {limit:g} for which the bound holds. {use}"
        )


def eigenvalue_bounds(x: Tensor) -> tuple[float, float]:
    """Bounds of the smallest and the largest eigenvalue of XᵀX/n, computed in float64 with an allowance for its rounding."""
    (n, d), wide = x.shape, x.double()
    found = torch.linalg.eigvalsh(wide.T @ wide / n)
    least, largest = float(found[0]), float(found[-1])
    room = max(1e-9, 4 * (n + d * d) * d * 2.0**-53)
    return max(least - room * largest, 0.0), largest * (1 + room) + 1e-300
