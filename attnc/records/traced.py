"""The function that a head of a bare callable is about: its recorded operations, in the certificate.

Such a certificate has the fact

    "operations": {"width": 1, "operations": […], "returned": [i], "kinks": […]}

`operations` and `returned` are in the format of `attnc/program/traced.py` and define the function on the domain; "function" is
only its name. `kinks` are where cells are cut and attacked: they claim nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnc.errors import CertificateError
from attnc.program import Traced
from attnc.records.certificate import Certificate
from attnc.records.fields import DAMAGE, check_types, with_fields

OPERATIONS = "operations"


def body_of(f: Traced) -> dict[str, Any]:
    """The function as JSON values."""
    operations = [list(operation) for operation in f.operations]
    return {"width": f.width, "operations": operations, "returned": list(f.returned)}


def from_body(body: Mapping[str, Any], name: str) -> Traced:
    """The function of such JSON values. Raises `CertificateError` if they are damaged."""
    check_types(body, {"operations": list, "returned": list})
    try:
        operations = tuple(map(tuple, body["operations"]))
        return Traced(0, body["width"], operations, tuple(body["returned"]), name=name)
    except DAMAGE as problem:
        raise CertificateError(f"its function is damaged: {problem}") from problem


def facts_of(f: Traced, kinks: tuple[float, ...]) -> dict[str, Any]:
    """The fact about the function of a head."""
    return {OPERATIONS: body_of(f) | {"kinks": list(kinks)}}


def stated_function(certificate: Certificate) -> tuple[Traced, tuple[float, ...]] | None:
    """The function of one number that a head's certificate states, and its kinks; None if it only names one. Raises
    `CertificateError` if it is damaged."""
    body = certificate.facts.get(OPERATIONS)
    if certificate.subject != "head" or body is None:
        return None
    if not isinstance(body, Mapping):
        raise CertificateError(f"the operations of {certificate.title} are not an object")
    with_fields("its function", body, {"width", "operations", "returned", "kinks"})
    f, kinks = from_body(body, certificate.facts["function"]), body["kinks"]
    numbers = isinstance(kinks, list) and all(type(k) is float and math.isfinite(k) for k in kinks)
    if not numbers or sorted(set(kinks)) != kinks:
        raise CertificateError("the kinks of its function are not finite numbers in ascending order")
    if (f.width, len(f.returned)) != (1, 1):
        raise CertificateError("a head is for one function of one number")
    return f, tuple(kinks)
