"""A certificate in words: the lines that it prints."""

from __future__ import annotations

import math

from attnc.domain import Box, Interval, Sequences
from attnc.records.certificate import Certificate, Status
from attnc.records.domain_text import assumed_text, domain_text, tested_text
from attnc.records.facts import FACTS
from attnc.records.fields import at_most

_OF_MODELS = (
    (
        "bound of",
        "one converted part, the one with the largest bound, given its input; not of the model's output",
    ),
    ("whole model", "for given inputs: report.for_input(...)"),
)


def rows_of(c: Certificate) -> list[tuple[str, str]]:
    """The lines of a certificate: names and texts. One more if it does not apply to its module as that is now."""
    terms = f"approximation {at_most(c.approximation)}, rounding {at_most(c.rounding)}"
    seen = f"largest error seen {c.error:.3g}" if c.error is not None else ""
    if c.rounding_unclaimed() or c.status is Status.UNKNOWN:
        bound = "the error is neither proved nor measured"
        if math.isfinite(c.approximation):
            bound = f"approximation {at_most(c.approximation)} in exact arithmetic; rounding is not bounded"
    elif c.subject == "tokens":
        bound = "at every position the largest logit is that of the program's output, for every sequence"
        if not c.proved:
            bound = f"not proved; {c.facts['wrong']} of {c.facts['points']:,} sequences are wrong"
    elif c.status is Status.MEASURED and "points" in c.facts:
        bound = f"not proved; {seen} at {c.facts['points']:,} inputs"
    else:
        error = "executed/exact - 1" if c.facts.get("relative") is True else "executed - exact"
        bound = f"|{error}| <= {at_most(c.bound)} ({terms})"
    lapsed = c.why_lapsed()
    rows = [("certificate", c.title), ("status", c.status_text), ("bound", bound)]
    if lapsed is not None:
        said = f"does not apply to the module as it is now; it was {c.status}"
        rows[1:2] = [("status", said), ("reason", lapsed)]
    rows += _OF_MODELS if c.subject == "model" else ()
    domain = "" if c.holds_for is None else f"{domain_text(c.holds_for)}, "
    if c.status is Status.MEASURED and isinstance(c.holds_for, (Interval, Box)):
        domain = domain.replace("every input of", "the inputs that were tried in", 1)
    if c.status is Status.MEASURED and isinstance(c.holds_for, Sequences):
        domain = f"{tested_text(c.holds_for, c.facts['points'])}, "
    given = [part.facts.get("assumed") for part in c.walk() if part.subject == "lookup"]
    rows.append(("holds for", f"{domain}{c.dtype}{assumed_text(given)}"))
    last = "; ".join(part for part in (seen if bound.startswith("|") else "", _parts(c), _reason(c)) if part)
    return [*rows, ("details", last)] if last else rows


def _parts(c: Certificate) -> str:
    """How many parts of each kind there are. In a network, heads that share the anchors of f are one set."""
    below = list(c.walk())[1:]
    words = []
    for kind in FACTS:
        parts = [part for part in below if part.subject == kind]
        counted, several = len(parts), [part.facts.get("heads", 1) for part in parts]
        total = sum(n for n in several if type(n) is int) if kind == "head" and c.subject == "network" else 0
        if total > counted:
            words.append(f"{counted} set{'s' * (counted != 1)} of anchors, {total} heads")
        elif parts:
            words.append(f"{counted} {kind}{'s' * (counted != 1)}")
    return ", ".join(words)


def _reason(c: Certificate) -> str:
    """Why the error of a head or a network was measured."""
    why = c.facts.get("reason") if c.subject in ("head", "network") and not c.proved else None
    if why is None:
        return ""
    named = c.subject == "network" or "attnc." in str(why)
    return f"not proved: {why}" + ("" if named else "; attnc.function(f, enclosure=…) gives a proof")
