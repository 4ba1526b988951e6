"""A Coq file with one change each, after which its theorem is false."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NUMBER = re.compile(r"\(?-?(?:0x)?[0-9][0-9a-f.]*(?:p[+-]\d+)?\)?")


def tamperings(text: str) -> Iterator[tuple[str, str]]:
    """What was changed, and the file. `text` is the file of attnc.head("exp", domain=(-2, 2), eps=1e-6, dtype=torch.float64)."""
    yield from _numbers(text)
    for factor in (0.5, 0.9, 0.99):
        yield f"eps × {factor}", _eps(text, factor)
    for formula in ("exp (s + 1e-6)", "1.000001 * exp s", "exp s + 1e-7", "sinh s + 1", "1 + s + s * s / 2"):
        yield (
            f"f(s) = {formula}",
            _replaced(text, "Definition f (s : R) : R := exp s.", f"Definition f (s : R) : R := {formula}."),
        )


def _numbers(text: str) -> Iterator[tuple[str, str]]:
    """Each stored number, changed a little."""
    start = text.index("Definition model")
    end = text.index("].", start)
    model = text[start:end]
    names = ("query scale", "query shift", "output weight")
    names += tuple(
        f"{part} of anchor {k}"
        for k in (0, 1)
        for part in ("key slope", "key offset", "value slope", "value")
    )
    found = list(_NUMBER.finditer(model[model.index("[") :]))
    assert len(found) == len(names), (len(found), len(names))
    for name, match in zip(names, found, strict=True):
        if name == "value slope of anchor 1":  # its weight is below 1e-7: the theorem would stay true
            continue
        word = match.group().strip("()")
        x = float.fromhex(word) if "x" in word else float(word)
        for moved in (x + 1e-6 * max(1.0, abs(x)), x - 1e-6 * max(1.0, abs(x))):
            at = model.index("[") + match.start()
            changed = f"{model[:at]}({moved.hex()}){model[at + len(match.group()) :]}"
            yield f"{name}: {x:.6g} by {moved - x:+.1e}", text[:start] + changed + text[end:]


def _eps(text: str, factor: float) -> str:
    line = re.search(r"Definition eps : Q := (\S+)\.\n", text)
    assert line is not None
    lowered = float.fromhex(line.group(1)) * factor
    return text.replace(line.group(), f"Definition eps : Q := {lowered.hex()}.\n")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)
