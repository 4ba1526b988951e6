"""One root for everything attnc refuses: the message says what was given, what is accepted and what to do."""

from __future__ import annotations


class AttncError(Exception):
    """Root of every error that attnc raises on purpose."""


class InputError(AttncError, ValueError):
    """An argument that cannot be taken."""


class UnknownFunctionError(InputError):
    """A name that is not in `attnc.functions`."""


class FunctionError(InputError):
    """A user's function that misbehaves: its shape, its type, a NaN, or an enclosure that contradicts it."""


class ConvergenceError(AttncError):
    """No head of an admissible size reaches the error asked for."""


class PrecisionError(AttncError):
    """The error asked for is below what the dtype can hold."""


class FileError(AttncError):
    """A file that is damaged, truncated or not attnc's."""


class CertificateError(AttncError):
    """A certificate that was edited, is malformed or contradicts the numbers beside it."""


class MissingExtraError(AttncError, ImportError):
    """A feature whose optional dependency is not installed."""
