"""The pictures of docs/networks.md: python benchmarks/network_pictures.py"""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any

from pages import ROOT, one_thread

COMPILED = "net = attnc.compile(model, domain=box, eps=1e-3)\n"


def main() -> None:
    one_thread()
    img = ROOT / "docs" / "img"
    block(img / "network.png")
    digits(img / "digits.png")


def block(path: Path) -> None:
    """The network that the page compiles, at one input."""
    import attnc.plot

    page = (ROOT / "docs" / "networks.md").read_text()
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(page):
        exec(example.source, names)
        if example.source == COMPILED:
            break
    else:
        raise SystemExit(f"docs/networks.md no longer says {COMPILED.strip()}")
    attnc.plot.network(names["net"], x=names["torch"].tensor([0.5, -1.5]), path=path)


def digits(path: Path) -> None:
    """What 128 neurons attend to, for one image and on average over all test images."""
    sys.path.insert(0, str(ROOT / "examples"))
    import digits

    import attnc.plot
    from attnc.plot.canvas import new_figure, save

    data = digits.read()
    net = attnc.compile(digits.trained(data), domain=digits.BOX, eps=digits.EPS["float32"])
    figure = new_figure(9, 6.4)
    upper, lower = figure.subplots(2)
    attnc.plot.attention(net, x=data.test_x[0], ax=upper)
    upper.set_title(f"one image of a {int(data.test_y[0])}", fontsize=10, loc="left")
    attnc.plot.attention(net, x=data.test_x, ax=lower)
    lower.set_title(f"mean over {len(data.test_x)} test images", fontsize=10, loc="left")
    save(figure, path)


if __name__ == "__main__":
    main()
