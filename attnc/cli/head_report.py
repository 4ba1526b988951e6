"""What commands say of a head."""

from __future__ import annotations

from typing import Any

from attnc.cli.output import interval, number
from attnc.network.head import Head
from attnc.records.certificate import Status


def head_record(made: Head) -> dict[str, Any]:
    """What `--json` says: the facts of the table, and the certificate in full."""
    known = made.certificate
    return {
        "function": known.facts["function"],
        "domain": {"lo": known.interval.lo, "hi": known.interval.hi},
        "design": made.design,
        "heads": made.heads,
        "anchors": made.key.shape[1],
        "dtype": known.dtype,
        "bound": known.bound if known.proved else None,
        "quality": known.quality if known.proved else None,
        "certificate": known.to_json(),
    }


def head_facts(made: Head, word: str = "proved") -> tuple[str, dict[str, str]]:
    """A title, and the facts of the table; `word` says whether the bound was proved just now."""
    known = made.certificate
    facts = {
        "function": known.facts["function"],
        "interval": interval(known.interval),
        "design": made.design,
        "heads": str(made.heads),
        "anchors": f"{made.key.shape[1]}{' in each head' if made.heads > 1 else ''}",
        "dtype": known.dtype,
        **_error_facts(made, word),
    }
    return f"{known.facts['function']} as a softmax head", facts


def _error_facts(made: Head, word: str) -> dict[str, str]:
    certificate, witness = made.certificate, made.certificate.witness
    assert witness is not None
    if certificate.status is Status.MEASURED:
        where = f"at s = {number(witness.input[0])}, of {certificate.facts['points']} points"
        return {"largest measured": f"{witness.error:.4g} {where}: not proved"}
    reason = made.why_not_certified()
    if reason is not None:
        return {"not certified": reason}
    return {
        f"{word} bound": number(certificate.bound),
        "  approximation": number(certificate.approximation),
        "  rounding": number(certificate.rounding),
        "witness": f"error {witness.error:.4g} at s = {number(witness.input[0])}",
        "quality": f"{certificate.quality:.3g} (bound / error of the witness; 1 is perfect)",
    }
