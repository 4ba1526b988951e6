"""The modelling file that attnc puts into the directory of a converted model, so that transformers opens it without attnc.

The file is made of those in this folder, which import nothing of attnc but each other. Nothing of a directory is
executed: attnc compares the file there with its own by SHA-256."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files

_FILES = ("attention.py", "config.py", "saving.py", "model.py")
_LEFT_OUT = ("from __future__", "from attnc")  # of all files but the first
EARLIER: tuple[
    str, ...
] = ()  # SHA-256 of the modelling files of earlier releases; add one before you change a file here


@lru_cache
def modelling_text() -> str:
    """The modelling file: all files as one, without the imports that join them."""
    first, *others = (files(__name__).joinpath(name).read_text("utf-8").splitlines() for name in _FILES)
    kept = ([line for line in lines if not line.startswith(_LEFT_OUT)] for lines in others)
    return "\n".join([*first, *(line for lines in kept for line in ("", "", *lines)), ""])


def known_digests() -> set[str]:
    """SHA-256 of the modelling files that attnc wrote, this version's and earlier ones."""
    return {hashlib.sha256(modelling_text().encode()).hexdigest(), *EARLIER}
