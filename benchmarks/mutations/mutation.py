"""A mutation: one deliberate error in the source, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class StaleMutationError(Exception):
    """The source has changed, so that a mutation no longer applies."""


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in `file`. `old` must occur exactly once there."""

    name: str
    file: str
    old: str
    new: str
    breaks: str  # half a line: what is no longer true
    tests: tuple[str, ...]  # pytest ids; at least one of them must fail
    equivalent: str = ""  # why no test can notice it, where that was proved

    def apply(self, text: str) -> str:
        """The mutated source; raises `StaleMutationError` where `old` does not occur exactly once."""
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise StaleMutationError(
                f"{self.name}: the text to replace occurs {count} times in {self.file}, expected once:\n{self.old}"
            )
        return text.replace(self.old, self.new)
