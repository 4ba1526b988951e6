"""One root for everything attnc refuses: the message says what was given, what is accepted and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PAGES = {
    "architecture": "Architecture",
    "arithmetic": "What a certificate states and what it assumes",
    "networks": "Networks: from a module to attention",
}


def page(name: str) -> str:
    """How messages name a page: by its title too, since an installed package does not contain docs/.

    >>> page("architecture")
    "the page 'Architecture' of the documentation (docs/architecture.md)"
    """
    return f"the page {_PAGES[name]!r} of the documentation (docs/{name}.md)"


class AttncError(Exception):
    """Root of every error that attnc raises on purpose."""


class InputError(AttncError, ValueError):
    """An argument that cannot be taken."""


class ArgumentError(InputError, TypeError):
    """A call with an argument that does not exist, or without one that it needs; the message lists those that exist."""


class UnknownNameError(InputError, KeyError):
    """A name that does not exist; the message lists those that do."""

    __str__ = Exception.__str__  # that of KeyError shows the message in quotes


class ExpressionError(InputError, TypeError):
    """An operation of Python on a variable or a condition of a token program that has no meaning there."""


class UnknownFunctionError(InputError):
    """A name that is not in `attnc.functions`."""


class FunctionError(InputError):
    """A user's function that misbehaves: its shape, its type, a NaN, or an enclosure that contradicts it."""


class NotExactError(InputError):
    """A token program whose network cannot be proved to be exact; the message says which part and why."""


@dataclass(frozen=True)
class Problem:
    """One part of a model that cannot be taken, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class UnsupportedError(InputError):
    """A model with parts that are not understood; `problems` lists every one of them, `advice` says what else to call."""

    def __init__(self, what: str, problems: Sequence[Problem], advice: str = "") -> None:
        self.what, self.problems, self.advice = what, tuple(problems), advice
        listed = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{what}:\n{listed}" + (f"\n{advice}" if advice else ""))

    def advised(self, advice: str) -> UnsupportedError:
        """The same error with advice."""
        return UnsupportedError(self.what, self.problems, advice or self.advice)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.problems, self.advice)


class _OutOfReachError(AttncError):
    """`reachable` is what could be proved instead, where that is known; `found` is what reaches it."""

    def __init__(self, message: str, reachable: float | None = None, found: object = None) -> None:
        self.reachable, self.found = reachable, found
        super().__init__(message)


class ConvergenceError(_OutOfReachError):
    """No head of an admissible size reaches the error asked for."""


class PrecisionError(_OutOfReachError):
    """The error asked for is below what the dtype can hold."""


class FileError(AttncError):
    """A file that is damaged, truncated or not attnc's."""


class CertificateError(AttncError):
    """A certificate that was edited, is malformed or contradicts the numbers beside it."""


class ExportError(AttncError):
    """An exported file that does not compute what the module computes; it was not kept."""


class MissingExtraError(AttncError, ImportError):
    """A feature whose optional dependency is not installed."""


class ConditionWarning(UserWarning):
    """A condition of a token program that holds for no values that its variables can take."""


class CertificateWarning(UserWarning):
    """A module is saved with a certificate that does not apply to its numbers: they have changed since it was issued."""


class DomainWarning(UserWarning):
    """An input outside the domain of a head, a network or an activation: nothing is promised of the result."""
