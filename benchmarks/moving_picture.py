"""The moving picture of the README: a query moves over the axis, and softmax moves its weights from anchor to anchor.

python benchmarks/moving_picture.py     writes docs/img/softmax.gif
"""

from __future__ import annotations

import io
import math
from typing import Any

import torch
from pages import ROOT, one_thread
from PIL import Image

import attnc
from attnc.plot import canvas

PATH = ROOT / "docs" / "img" / "softmax.gif"
FRAMES, LO, HI, COLOURS, WIDTH = 44, -5.0, 5.0, 96, 680
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")


def main() -> None:
    one_thread()
    head = attnc.head("gelu", domain=(LO, HI), eps=1e-3, design="smooth", dtype=torch.float64)
    frames = [frame(head, position(k / FRAMES)) for k in range(FRAMES)]
    sample = Image.new("RGB", (WIDTH, sum(image.height for image in frames[::6])))
    for k, image in enumerate(frames[::6]):
        sample.paste(image, (0, k * image.height))
    palette = sample.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    first.save(PATH, save_all=True, append_images=others, duration=110, loop=0, optimize=True)


def position(t: float) -> float:
    """From one end of the domain to the other and back, slower at the ends."""
    return (LO + HI) / 2 - 0.94 * (HI - LO) / 2 * math.cos(2 * math.pi * t)


def frame(head: attnc.Head, s: float) -> Image.Image:
    figure = canvas.new_figure(7.6, 4.3)
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1.2)})
    x = torch.linspace(LO, HI, 400, dtype=torch.float64)
    at = head.anchors.double()
    weights = head.weights(torch.tensor([s], dtype=torch.float64))[0].double()
    inside = [k for k, a in enumerate(at.tolist()) if LO <= a <= HI]
    with torch.no_grad():
        heights, value = head(at, strict=False), float(head(torch.tensor([s], dtype=torch.float64)))
        top.plot(x, head(x), color=canvas.GREY, linewidth=1.2)
    for k in inside:
        w, hue = float(weights[k]), HUES[k % len(HUES)]
        top.plot(
            [s, float(at[k])], [value, float(heights[k])], color=hue, alpha=min(1.0, 2 * w), linewidth=4 * w
        )
        top.scatter([float(at[k])], [float(heights[k])], s=18 + 420 * w, color=hue, alpha=0.85, zorder=3)
        bottom.bar(float(at[k]), w, width=0.28, color=hue)
    top.scatter([s], [value], s=42, color="white", edgecolor=canvas.INK, linewidth=1.8, zorder=4)
    label(top, bottom, head, s, value)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=canvas.DOTS_PER_INCH)
    image = Image.open(written).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def label(top: Any, bottom: Any, head: attnc.Head, s: float, value: float) -> None:
    exact = float(torch.nn.functional.gelu(torch.tensor(s, dtype=torch.float64)))
    text = f"s = {s:+.2f}     head(s) = {value:+.4f}     gelu(s) = {exact:+.4f}    |error| ≤ {head.certificate.bound:.1e}, proved"
    top.set_title(text, loc="left", fontsize=9.5, family="monospace")
    top.set_ylim(-0.9, HI + 0.4)
    top.set_ylabel("gelu by one softmax")
    bottom.set_ylim(0, 1)
    bottom.set_ylabel("softmax\nweights")
    bottom.set_xlabel("s, and the anchors: stored keys and values")
    bottom.set_xlim(LO, HI)
    for ax in (top, bottom):
        ax.axvline(s, color=canvas.GREY, linewidth=0.7, linestyle=":")
        canvas.style(ax)


if __name__ == "__main__":
    main()
