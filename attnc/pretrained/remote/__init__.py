"""The modelling file that attnc puts into the directory of a converted model, so that transformers opens it without attnc.

The file is made of `attention.py` and `model.py`, which import nothing of attnc but each other. Nothing of a directory is
executed: attnc compares the file there with its own by SHA-256."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files

_LEFT_OUT = ("from __future__", "from attnc")  # of the second file
EARLIER: tuple[
    str, ...
] = ()  # SHA-256 of the modelling files of earlier releases; add one before you change a file here


@lru_cache
def modelling_text() -> str:
    """The modelling file: both sources as one, without the import that joins them."""
    first, second = (
        files(__name__).joinpath(name).read_text("utf-8") for name in ("attention.py", "model.py")
    )
    kept = [line for line in second.splitlines() if not line.startswith(_LEFT_OUT)]
    return "\n".join([*first.splitlines(), "", "", *kept, ""])


def known_digests() -> set[str]:
    """SHA-256 of the modelling files that attnc wrote, this version's and earlier ones."""
    return {hashlib.sha256(modelling_text().encode()).hexdigest(), *EARLIER}
