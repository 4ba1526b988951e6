"""The gallery: results and pictures of the examples in docs/gallery.md.

python benchmarks/gallery.py                 everything, about two minutes
python benchmarks/gallery.py --only sort     one example anew, the others kept
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pages import ROOT, one_thread, progress, put, versions

PAGE, IMG, EXAMPLES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "img", ROOT / "examples"
DOTS_PER_INCH = 100  # a page with twelve pictures


@dataclass(frozen=True)
class Case:
    """What is shown of an example."""

    name: str  # of the script, of its markers and its pictures
    code: tuple[str, ...]  # what the page shows of the script
    at: Any  # the input that is drawn
    sliced: int  # which of the networks is drawn along lines
    arguments: tuple[str, ...] = ()
    along: tuple[tuple[int, int], ...] = ((0, 0), (1, 0), (2, 0))  # (token, feature)
    shown: tuple[tuple[int, int], ...] | None = None  # outputs
    attended: int | None = None  # which of them is drawn as attention, in the layout with neurons as tokens
    coarse: float | None = None  # or the eps of a network of its own, with fewer anchors
    lipschitz: float | None = None
    form: str = "two-layer"

    @property
    def f(self) -> str:
        return self.code[-2]


CASES = (
    Case("sort", ("sort", "run"), [[0.7], [0.1], [0.4]], 0, ("--points", "1000000"), coarse=0.25, lipschitz=1),
    Case(
        "running_maximum", ("running_maximum", "run"), [[0.3], [0.8], [0.5]], 1, coarse=0.25, lipschitz=1,
    ),
    Case(
        "matrix_inverse", ("inverse", "run"), [[1.2, 0.4], [-0.3, 1.5]], 0, along=((0, 0), (0, 1), (1, 1)), coarse=0.1,
    ),
    Case(
        "convolution", ("as_neurons", "convolve", "run"), [[0.0], [0.6], [1.0], [0.6], [0.0], [-0.6], [-1.0], [-0.6]], 1,
        along=((0, 0), (3, 0)), shown=((0, 0), (2, 0), (3, 0)), attended=0,
    ),
    Case(
        "softmax_average", ("softmax_average", "run"), [[0.7], [0.1], [0.4]], 1, coarse=0.03, form="attention-softmax",
    ),
    Case("chaotic_map", ("henon", "twice", "run"), [[0.5, 0.1]], 1, along=((0, 0), (0, 1)), coarse=0.01),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    one_thread()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one example anew")
    wanted = parser.parse_args(arguments).only
    sys.path.insert(0, str(EXAMPLES))
    for case in CASES:
        if wanted in (None, case.name):
            progress(case.name)
            put(PAGE, case.name, shown(case))
    progress("")
    if wanted is None:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(versions("matplotlib").items()))
        put(PAGE, "versions", f"Made by `python benchmarks/gallery.py` with {listed}.\n")


def shown(case: Case) -> str:
    """An example's code, what it prints, and its pictures, as Markdown."""
    module = importlib.import_module(case.name)
    made = list(module.run())
    printed = io.StringIO()
    kept, module.run = module.run, lambda: iter(made)  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(printed):
        module.main(list(case.arguments))
    module.run = kept  # type: ignore[attr-defined]
    titles, nets = zip(*made, strict=True)
    drawn = pictures(case, module, nets)
    command = " ".join(("$ python", f"examples/{case.name}.py", *case.arguments))
    return (
        "\n\n".join(
            [
                f"```python\n{code(case, module)}\n```",
                f"```console\n{command}\n{printed.getvalue().strip()}\n```",
                f"![{titles[case.sliced]}: the function and the network along lines of the box, and the error]"
                f"(img/{drawn[0].name})",
                f"![{case.name.replace('_', ' ')}: the weights of attention](img/{drawn[1].name})",
                f"*{caption(case, titles)}*",
            ]
        )
        + "\n"
    )


def code(case: Case, module: ModuleType) -> str:
    """The functions of the script that the page shows, as they stand there."""
    return "\n\n\n".join(inspect.getsource(getattr(module, name)).rstrip() for name in case.code)


def pictures(case: Case, module: ModuleType, nets: Sequence[Any]) -> tuple[Path, Path]:
    """Lines of the box through the input, and literal attention at the input."""
    import torch

    import attnc
    import attnc.plot

    f, x = getattr(module, case.f), torch.tensor(case.at, dtype=torch.float64)
    lines = attnc.plot.slices(nets[case.sliced], f=f, x=x, coordinates=case.along, outputs=case.shown)
    if case.attended is not None:
        net = nets[case.attended]
        net.layout = "tokens"
    else:
        assert case.coarse is not None
        net = attnc.compile(
            f,
            domain=module.BOX,
            eps=case.coarse,
            lipschitz=case.lipschitz,
            form=case.form,
            dtype=torch.float64,
        )
    weights = attnc.plot.tokens_and_anchors(net, x=x)
    found = []
    for kind, figure in (("slices", lines), ("attention", weights)):
        found.append(IMG / f"gallery_{case.name}_{kind}.png")
        figure.savefig(found[-1], format="png", dpi=DOTS_PER_INCH)
    return found[0], found[1]


def caption(case: Case, titles: Sequence[str]) -> str:
    lines = f"Above: {titles[case.sliced]}, along lines through one input. Below: the weights of the literal form at that input"
    if case.attended is not None:
        return f"{lines}, of: {titles[case.attended]}; neurons stand as tokens."
    kind = "coarser network" if case.lipschitz is None else "coarser grid"
    return f"{lines}, of a {kind} (eps={case.coarse:g}), so that anchors can be told apart."


if __name__ == "__main__":
    main()
