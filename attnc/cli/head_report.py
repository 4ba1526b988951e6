"""What commands say of a head."""

from __future__ import annotations

from typing import Any

from attnc.cli.output import interval, number
from attnc.network.head import Head


def head_record(made: Head) -> dict[str, Any]:
    """What `--json` says: the facts of the table, and the certificate in full."""
    known = made.certificate or made.measured
    assert known is not None
    return {
        "function": known.function,
        "domain": {"lo": known.domain.lo, "hi": known.domain.hi},
        "design": made.design,
        "heads": made.heads,
        "anchors": made.key.shape[1],
        "dtype": known.dtype,
        "bound": made.certificate.bound if made.certificate else None,
        "quality": made.certificate.quality if made.certificate else None,
        "certificate": made.certificate.to_json() if made.certificate else None,
        "measured": made.measured.to_json() if made.measured else None,
    }


def head_facts(made: Head, word: str = "proved") -> tuple[str, dict[str, str]]:
    """A title, and the facts of the table; `word` says whether the bound was proved just now."""
    known = made.certificate or made.measured
    assert known is not None
    facts = {
        "function": known.function,
        "interval": interval(known.domain),
        "design": made.design,
        "heads": str(made.heads),
        "anchors": f"{made.key.shape[1]}{' in each head' if made.heads > 1 else ''}",
        "dtype": known.dtype,
        **_error_facts(made, word),
    }
    return f"{known.function} as a softmax head", facts


def _error_facts(made: Head, word: str) -> dict[str, str]:
    if made.certificate is None:
        assert made.measured is not None
        seen = made.measured
        where = f"at s = {number(seen.input)}, of {seen.points} points"
        return {"largest measured": f"{seen.error:.4g} {where}: not proved"}
    reason = made.why_not_certified()
    if reason is not None:
        return {"not certified": reason}
    certificate = made.certificate
    witness = certificate.witness
    return {
        f"{word} bound": number(certificate.bound),
        "  approximation": number(certificate.approximation),
        "  rounding": number(certificate.rounding),
        "witness": f"error {witness.error:.4g} at s = {number(witness.input)}",
        "quality": f"{certificate.quality:.3g} (bound / error of the witness; 1 is perfect)",
    }
