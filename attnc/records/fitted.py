"""What the certificate of a fitted network is about: the function f that the network was fitted to, stored as its operations.

The program of such a network is the fitted one, g. Its certificate has the facts

    "function": {"width": …, "operations": […], "returned": […]}      f, in the format of `attnc/program/traced.py`
    "distance": a number                                              at least |g - f| on the box

and one child: the certificate of the network against g. A certificate without all three is about the program itself; one that
has some of them is damaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnc.errors import CertificateError
from attnc.program import Program, Reshape, Step, Traced
from attnc.records.certificate import Certificate
from attnc.records.fields import with_fields
from attnc.records.traced import body_of, from_body

FUNCTION, DISTANCE = "function", "distance"


def facts_of(f: Traced, distance: float) -> dict[str, Any]:
    return {FUNCTION: body_of(f), DISTANCE: distance}


def concerns_function(certificate: Certificate) -> bool:
    """Whether the certificate of a network states anything about a function that it was fitted to."""
    return bool(certificate.parts("network")) or not certificate.facts.keys().isdisjoint({FUNCTION, DISTANCE})


def function_of(certificate: Certificate) -> Traced | None:
    """The function f of a proved fitted network; None if the certificate is about the program. Raises if it is damaged."""
    if not certificate.proved or not concerns_function(certificate):
        return None
    body, distance = (certificate.facts.get(name) for name in (FUNCTION, DISTANCE))
    known = type(distance) is float and 0 <= distance < math.inf and bool(certificate.parts("network"))
    if not isinstance(body, Mapping) or not known:
        raise CertificateError(
            "it has a part about a fitted network, a function, or a distance to it, but not all three"
        )
    with_fields("the function", body, {"width", "operations", "returned"})
    return from_body(body, "f")


def meaning(program: Program, certificate: Certificate) -> Program:
    """The program that the certificate is about: f between the shapes of the program, or the program itself."""
    f = function_of(certificate)
    if f is None:
        return program
    made = program.shapes[-1]
    steps: list[Step] = [Reshape(0, (f.width,))] if len(program.shape) > 1 else []
    steps.append(Traced(len(steps), f.width, f.operations, f.returned, name=f.name))
    steps += [Reshape(len(steps), made)] if len(made) > 1 else []
    return Program(program.shape, tuple(steps))
