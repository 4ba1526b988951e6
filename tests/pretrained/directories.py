"""A tiny converted model and its directory, and edits of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnc.pretrained import convert_
from attnc.pretrained.inputs import calls, outputs
from tests.frontends.tiny_models import example, hf, tiny
from tests.parts import reseal

EPS = 1e-3
Config = dict[str, Any]


class Saved:
    """A converted model and its directory."""

    def __init__(self, name: str, engine: str, folder: Path) -> None:
        self.model, self.given, self.where = tiny(name), example(name), folder / "model"
        convert_(self.model, EPS, {"engine": engine}, parts="all", samples=self.given)
        self.model.save_pretrained(self.where)
        save_file({name: t.clone() for name, t in self.given.items()}, folder / "given.safetensors")
        self.auto = "AutoModelForCausalLM" if "LM" in type(self.model).__name__ else "AutoModel"

    def opened(self, **options: Any) -> Any:
        return getattr(hf, self.auto).from_pretrained(
            self.where, trust_remote_code=True, dtype="auto", **options
        )


def results(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    (found,) = outputs(model, calls(given))
    return found


def same(one: Any, other: Any, given: dict[str, Tensor]) -> bool:
    a, b = results(one, given), results(other, given)
    return a.keys() == b.keys() and bool(a) and all(torch.equal(a[name], b[name]) for name in a)


def kinds(model: Any) -> set[str]:
    """The classes of the parts of a model that its directory defines."""
    return {type(part).__name__ for part in model.modules() if "modeling_attnc" in type(part).__module__}


def edit(where: Path, change: Callable[[Config], object]) -> None:
    config = json.loads((where / "config.json").read_text())
    change(config)
    reseal(config["attnc"])
    (where / "config.json").write_text(json.dumps(config))
