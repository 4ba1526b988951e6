"""How a network is presented: the form of its literal weights, the theorem it belongs to, and notes about its construction."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from attnc.errors import FileError
from attnc.records.fields import check_types, checked_record

# The layouts of each form.
LAYOUTS: dict[str, tuple[str, ...]] = {"two-layer": ("heads", "tokens")}
LAYOUTS |= dict.fromkeys(("layers", "one-head", "many-heads", "attention-softmax"), ("",))

TASKS = ("", "regression", "binary", "multiclass", "multilabel")  # of a scikit-learn estimator


@dataclass(frozen=True)
class Theorem:
    """A theorem of the paper: its name, its statement, and its bound evaluated for the parameters of one network."""

    name: str
    statement: str
    bound: float | None  # None: the theorem states that weights exist, without a number

    def __post_init__(self) -> None:
        types: dict[str, type] = {"name": str, "statement": str}
        check_types(vars(self), types if self.bound is None else types | {"bound": float})

    def __str__(self) -> str:
        """The name, the statement in lines of up to 110 characters, and the bound."""
        parts = [f"theorem: {self.name}", self.statement]
        parts += [] if self.bound is None else [f"bound: {self.bound:.4g}"]
        return "\n".join(textwrap.fill(part, 110, break_on_hyphens=False) for part in parts)


@dataclass(frozen=True)
class Presentation:
    """The form and layout of `Network.as_self_attention`, the theorem, notes, and what `Network.predict` makes of the outputs:
    the `task` of the compiled estimator and its `classes`."""

    form: str = "layers"
    layout: str = ""
    theorem: Theorem | None = None
    notes: tuple[str, ...] = ()
    task: str = ""
    classes: tuple[str | int | float | bool, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "notes": list(self.notes), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, record: object) -> Presentation:
        body = checked_record(cls, record)
        check_types(body, {"notes": list, "classes": list, "task": str})
        theorem = None if body["theorem"] is None else Theorem(**checked_record(Theorem, body["theorem"]))
        found = cls(
            body["form"], body["layout"], theorem, tuple(body["notes"]), body["task"], tuple(body["classes"])
        )
        texts = all(isinstance(note, str) for note in found.notes)
        if found.task not in TASKS or not all(isinstance(c, (str, int, float)) for c in found.classes):
            raise FileError(f"unknown task {found.task!r} with the classes {found.classes}")
        if found.layout not in LAYOUTS.get(found.form, ()) or not texts:
            raise FileError(f"unknown form {found.form!r} with layout {found.layout!r}")
        return found
