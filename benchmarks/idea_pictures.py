"""The pictures of docs/how_it_works.md: python benchmarks/idea_pictures.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pages import ROOT, one_thread

LO, HI = -4.0, 4.0


def main() -> None:
    one_thread()
    img = ROOT / "docs" / "img"
    sharpness(img / "idea_sharpness.png")
    twins(img / "idea_twins.png")
    norm(img / "idea_norm.png")
    designs(img / "idea_designs.png")


def sharpness(path: Path) -> None:
    """sin by nine uniform anchors with values f(L): three values of c, the weights above and the result below."""
    import torch

    from attnc.plot import canvas

    figure = canvas.new_figure(9.2, 4.4)
    axes = figure.subplots(2, 3, sharex=True, sharey="row", gridspec_kw={"height_ratios": (1, 1.5)})
    s = torch.linspace(LO, HI, 801, dtype=torch.float64)
    anchors = torch.linspace(LO, HI, 9, dtype=torch.float64)
    spacing = float(anchors[1] - anchors[0])
    for column, (c, words) in enumerate(
        ((8.0, "hard: c = 8"), (1.0, "softer: c = 1"), (0.1, "too soft: c = 0.1"))
    ):
        scores = -c * (s[:, None] - anchors) ** 2 / spacing**2
        weights = torch.softmax(scores, -1)
        top, bottom = axes[0][column], axes[1][column]
        top.plot(s, weights, linewidth=1.3)
        canvas.title(top, words)
        canvas.curve_pair(
            bottom, s.numpy(), s.sin().numpy(), (weights @ anchors.sin()).numpy(), ("sin", "head")
        )
        bottom.plot(
            anchors, anchors.sin(), "o", color=canvas.VERMILION, markersize=4, zorder=4, label="anchors"
        )
        bottom.set_xlabel("s", fontsize=9)
        for ax in (top, bottom):
            canvas.style(ax)
    axes[0][0].set_ylabel("weights", fontsize=9)
    axes[1][0].set_ylabel("weighted mean", fontsize=9)
    axes[1][2].legend(fontsize=8, frameon=False, loc="lower left")
    canvas.finish(figure, path)


def twins(path: Path) -> None:
    """ReLU by three keys: the weights, and the function that they give, for two sharpnesses B."""
    import torch

    from attnc.plot import canvas

    figure = canvas.new_figure(9.2, 3.4)
    left, right = figure.subplots(1, 2)
    s = torch.linspace(-2, 2, 801, dtype=torch.float64)
    delta = 0.25
    for B, colour in ((2.0, canvas.VERMILION), (8.0, canvas.BLUE)):
        scores = torch.stack([(B + delta) * s, (B - delta) * s, torch.full_like(s, 0.6931471805599453)], -1)
        weights = torch.softmax(scores, -1)
        right.plot(s, (weights[:, 0] - weights[:, 1]) / delta, color=colour, label=f"three keys, B = {B:g}")
        if B == 2.0:
            names = ("twin, value 1/δ", "twin, value -1/δ", "third key, value 0")
            for k, name in enumerate(names):
                left.plot(s, weights[:, k], label=name, linewidth=1.5)
    right.plot(s, s.clamp(min=0), color=canvas.INK, linewidth=0.9, label="ReLU")
    canvas.title(left, "weights, B = 2, δ = 1/4")
    canvas.title(right, "weighted mean of the values")
    for ax in (left, right):
        ax.set_xlabel("s", fontsize=9)
        ax.legend(fontsize=8, frameon=False)
        canvas.style(ax)
    canvas.finish(figure, path)


def norm(path: Path) -> None:
    """1/√u as a sum of two-key heads: each head's part, and the sum."""
    import torch

    import attnc
    from attnc.plot import canvas

    root = attnc.quadratic_head("rsqrt", features=64, domain=(1e-2, 1e2), eps=1e-6, dtype=torch.float64)
    u = torch.logspace(-2, 2, 400, dtype=torch.float64)
    slope, offset, value = (t.detach().double().reshape(-1) for t in (root.slope, root.intercept, root.value))
    weights = torch.sigmoid(offset - slope * 64 * (u[:, None] - u[0]))  # the squares are 64 (u - 0.01)
    parts = value * weights
    figure = canvas.new_figure(9.2, 3.4)
    left, right = figure.subplots(1, 2, sharex=True)
    left.plot(u, weights, linewidth=1)
    right.plot(u, parts, linewidth=0.8, color=canvas.VERMILION, alpha=0.7)
    right.plot(u, parts.sum(-1), color=canvas.BLUE, linewidth=2.6, label="sum of the heads")
    right.plot(u, u**-0.5, color=canvas.INK, linewidth=0.9, label="1/√u")
    canvas.title(left, f"weight on the token itself, {parts.shape[1]} heads")
    canvas.title(right, "what each head adds, and the sum")
    right.legend(fontsize=8, frameon=False)
    right.set_yscale("log")
    right.set_ylim(1e-3, 20)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("u = mean square + ε", fontsize=9)
        canvas.style(ax)
    canvas.finish(figure, path)


def designs(path: Path) -> None:
    """The proved error of GELU and ReLU against the number of anchors, for each design."""
    import torch

    import attnc
    from attnc.plot import canvas

    figure = canvas.new_figure(9.2, 3.6)
    axes: Any = figure.subplots(1, 2, sharey=True)
    sizes = (4, 6, 8, 12, 16, 24)
    colours = {"nearest": canvas.GREY, "smooth": canvas.BLUE, "graded": "#009E73", "tuned": canvas.VERMILION}
    for ax, function, lo, hi in ((axes[0], "gelu", -8, 8), (axes[1], "relu", -1, 1)):
        for name in ("nearest", "smooth", *(("graded",) if function == "relu" else ()), "tuned"):
            bounds = [
                attnc.head(
                    function, domain=(lo, hi), anchors=p, design=name, dtype=torch.float64
                ).certificate.bound
                for p in sizes
            ]
            ax.plot(sizes, bounds, "o-", markersize=4, color=colours[name], label=name)
        ax.set_yscale("log")
        ax.set_xlabel("anchors", fontsize=9)
        canvas.title(ax, f"{function} on [{lo}, {hi}]")
        ax.legend(fontsize=8, frameon=False)
        canvas.style(ax)
    axes[0].set_ylabel("proved bound, float64", fontsize=9)
    canvas.finish(figure, path)


if __name__ == "__main__":
    main()
