"""Checked fields of records, seals, and small numbers rounded up."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from decimal import ROUND_CEILING, Context, Decimal
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attnc.errors import CertificateError

# What reading a damaged record may raise.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError)


def seal(body: object) -> str:
    """The SHA-256 of a JSON value: it changes with every edit.

    >>> seal({"a": 1, "b": 2}) == seal({"b": 2, "a": 1})
    True
    """
    try:
        return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except DAMAGE as problem:
        raise CertificateError(f"not a JSON value: {problem}") from problem


def unsealed(record: object, what: str) -> dict[str, Any]:
    """The body of a sealed JSON object; raises `CertificateError` if the seal is missing or does not fit."""
    if not isinstance(record, Mapping) or not isinstance(record.get("seal"), str):
        raise CertificateError(f"expected {what}: a JSON object with a seal")
    body = {key: value for key, value in record.items() if key != "seal"}
    if seal(body) != record["seal"]:
        raise CertificateError(f"{what} was edited: its seal does not match its contents. Create it again.")
    return body


def check_type(name: str, value: object, kind: type) -> None:
    """The value must have exactly this type; a float must be finite."""
    if type(value) is not kind or (type(value) is float and not math.isfinite(value)):
        expected = "finite float" if kind is float else kind.__name__
        raise CertificateError(f"{name} is {value!r}: expected a {expected}")


def check_types(values: Mapping[str, object], types: Mapping[str, type]) -> None:
    """Check the types of several values."""
    for name, kind in types.items():
        check_type(name, values.get(name), kind)


def checked_record(cls: type, record: object) -> dict[str, Any]:
    """The record, if it has exactly the fields of a dataclass."""
    return with_fields(cls.__name__, record, {field.name for field in fields(cls)})


def with_fields(what: str, record: object, expected: set[str]) -> dict[str, Any]:
    """The record, if it is a JSON object with exactly these fields."""
    if not isinstance(record, dict):
        raise CertificateError(f"{what}: expected a JSON object, got {type(record).__name__}")
    missing, unknown = sorted(expected - set(record)), sorted(set(record) - expected)
    if missing or unknown:
        raise CertificateError(f"{what}: missing fields {missing}, unknown fields {unknown}")
    return record


def round_up(x: float, digits: int = 4) -> float:
    """The smallest float of few decimal digits that is at least x.

    >>> round_up(2.71828e-7)
    2.719e-07
    """
    if not math.isfinite(x) or x == 0:
        return x
    short = float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(x)))
    return short if short >= x else math.nextafter(short, math.inf)


def at_most(bound: float) -> str:
    """A bound in three digits, rounded up.

    >>> at_most(2.431e-05), at_most(0.0)
    ('2.44e-05', '0')
    """
    return f"{round_up(bound, 3):.3g}"


def versions() -> dict[str, str]:
    """The versions of the packages that a certificate depends on."""
    found = dict.fromkeys(("attnc", "torch", "numpy", "python-flint"), "unknown")
    for package in found:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
