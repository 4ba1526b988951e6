"""What learners and solvers share: checks of the context, predictions, and when their bound applies."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from attnc.arithmetic import loose_products
from attnc.errors import InputError
from attnc.incontext.certify import changed_settings
from attnc.incontext.inputs import check_reached, checked_examples, checked_labels
from attnc.incontext.settings import LearnerSettings, SolverSettings
from attnc.network.altered import why_altered
from attnc.network.head import Head
from attnc.network.running import PreciseModule, precise
from attnc.records.certificate import Certificate
from attnc.records.record import Record, write


class InContext(PreciseModule):
    """An algorithm on the examples of a context, by attention with fixed weights: `module(context_x, context_y, query_x)`.

    `certificate.bound` is the proved distance of the coefficients to those of the exact algorithm, for every context within the
    radius of up to 1,000 examples; `error_bound(n)` is the same for n examples. With `strict` (the default) data outside the
    radius raise an error; with strict=False they are computed without a promise."""

    certificate: Certificate
    settings: LearnerSettings | SolverSettings

    def __init__(self, reading: Head) -> None:
        super().__init__()
        self.reading, self.strict = reading, True
        self.uncertified: str | None = None  # why the bound does not hold for the last result, or None

    @abstractmethod
    def trajectory(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """The coefficients before the first and after every step."""

    @abstractmethod
    def _heads(self) -> dict[str, Head]:
        """The heads by name, in the order of the certificate's children."""

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
        w = self.coefficients(context_x, context_y, strict)
        radius = self.settings.radius
        query = self._examples("query_x", query_x, self._strict(strict))
        s = query @ w
        if self._strict(strict):
            check_reached("|w·x| of a query", float(s.abs().max()), radius.u, "u")
        elif not (bool((query.abs() <= radius.x).all()) and bool((s.abs() <= radius.u).all())):
            self.uncertified = self.uncertified or "a query lies outside the radius"
        found: Tensor = self.reading(s, strict=False)
        return self._predicted(found)

    def _predicted(self, s: Tensor) -> Tensor:
        return s

    @precise
    def coefficients(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w after all steps, (d,), the intercept last."""
        return self.trajectory(context_x, context_y, strict)[-1]

    def why_not_certified(self) -> str | None:
        """None if the certificate applies to what runs now, else the reason."""
        altered = why_altered(self)
        if altered is not None:
            return altered
        heads = self._heads()
        if [head.certificate for head in heads.values()] != list(self.certificate.children):
            return "its heads are not the certified ones"
        changed = changed_settings(self.settings, self.certificate)
        if changed:
            return f"changed since it was certified: {', '.join(changed)}"
        for name, head in heads.items():
            reason = head.why_not_certified()
            if reason is not None:
                return f"{name}: {reason}"
        return loose_products(self.settings.dtype)

    def why_not_covered(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor | None = None
    ) -> str | None:
        """None if the bound holds for this context (and these queries), else what lies outside."""
        try:
            if query_x is None:
                self.trajectory(context_x, context_y, strict=True)
            else:
                self(context_x, context_y, query_x, strict=True)
        except InputError as problem:
            return str(problem)
        return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write heads and certificate to a safetensors file; `attnc.load` reads it."""
        write(path, Record({name: head.numbers() for name, head in self._heads().items()}, self.certificate))

    def _check_applies(self) -> None:
        reason = self.why_not_certified()
        if reason is not None:
            raise InputError(
                f"the certificate does not apply: {reason}. Build the module again, or call it with strict=False"
            )

    def _strict(self, strict: bool | None) -> bool:
        return self.strict if strict is None else bool(strict)

    def _examples(self, name: str, x: Any, strict: bool) -> Tensor:
        """Rows of x, checked, with a column of ones for the intercept."""
        limit = self.settings.radius.x
        found = checked_examples(name, x, self.features, self.reading.key.dtype, limit, strict)
        return torch.cat([found, found.new_ones(len(found), 1)], 1) if self.intercept else found

    def _labels(self, y: Any, n: int, strict: bool) -> Tensor:
        return checked_labels(y, n, self.reading.key.dtype, self.settings.radius.y, strict)
