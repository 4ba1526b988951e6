"""The cards of heads, networks, literal forms and token networks, as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from attnc.network.describe import COLUMNS, described
from attnc.records.cards import card, chips, folded, lines, table
from attnc.records.certificate import Certificate

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.literal.network import SelfAttentionNetwork
    from attnc.network.network import Network
    from attnc.network.tokens import TokenNetwork

_WIDTH, _CURVE, _WEIGHTS, _POINTS = 560, 150, 100, 161
_MOST_ANCHORS = 40  # whose weights are drawn
_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def module_card(module: Any, title: str, facts: list[tuple[str, str]], *bodies: str) -> str:
    """The card of a module with a certificate; if that does not apply to the module as it is now, the reason instead."""
    certificate: Certificate = module.certificate
    stated, reason = dict(certificate.rows()), certificate.why_lapsed()
    if reason is not None:
        return card(title, "not certified", reason, facts, *bodies)
    about = [("holds for", stated["holds for"]), ("details", stated.get("details", ""))]
    return card(title, str(certificate.status), stated["bound"], [*facts, *about], *bodies)


def head_card(head: Head) -> str:
    """The card of a head: the curve with its anchors, and the attention weights below it."""
    name = head.certificate.facts.get("function", "a function")
    count = f"{head.key.shape[1]}{f' in each of {head.heads} heads' if head.heads > 1 else ''}"
    facts = [("anchors", count), ("design", head.design)]
    return module_card(head, f"{name} as one softmax head", facts, head_picture(head))


def network_card(net: Network) -> str:
    """The card of a network: what is proved of it, and its layers."""
    found = described(net)
    rest = lines(line for line in found.summary if not line.startswith(("proved", "approximation ")))
    rows = table(COLUMNS, [list(row) for row in found.rows]) if found.rows else ""
    shape = f"{net.program.shape} → {net.program.shapes[-1]}"
    return module_card(net, "a network of softmax attention", [("shape", shape)], "", rows, rest)


def literal_card(literal: SelfAttentionNetwork) -> str:
    """The card of a literal form: its steps with the shapes of their matrices, and the names of its coordinates."""
    first = {i: name for name, i in reversed(literal.order)}
    steps = [(i, name, cast(Any, literal.steps[i])) for i, name in sorted(first.items())]
    rows = [[str(i + 1), step.kind, name, step.shapes] for i, name, step in steps]
    repeated = f", {len(literal.order)} steps in all" if len(literal.order) > len(rows) else ""
    inputs = ", ".join(f"{i.name} {i.sizes}" for i in literal.inputs)
    facts = [("input", inputs), ("form", f"{literal.form}{repeated}")]
    names = folded(f"{len(literal.coordinates)} named coordinates", chips(literal.coordinates))
    if literal.tokens:
        names += folded(f"{len(literal.tokens)} named tokens", chips(literal.tokens))
    body = table(("", "kind", "name", "matrices"), rows)
    return module_card(literal, "plain self-attention: W_Q, W_K, W_V, W_O, no mask", facts, "", body, names)


def token_card(net: TokenNetwork) -> str:
    """The card of a token network: its layers and heads, with what each head selects."""
    rows = [
        [f"{i}.{h}", role.name, role.kind]
        for i, layer in enumerate(net.numbers().layers)
        for h, role in enumerate(layer.roles)
    ]
    sizes = f"{len(net.vocabulary)} tokens, up to {net.program.length} of them; {len(net.coordinates)} coordinates"
    body = table(("head", "name", "kind"), rows) if rows else ""
    names = folded(f"{len(net.coordinates)} named coordinates", chips(net.coordinates))
    return module_card(net, "an attention-only transformer of tokens", [("size", sizes)], "", body, names)


def head_picture(head: Head) -> str:
    """The function that a head computes, with a dot on it at the place of each anchor, and the softmax weights of the anchors
    below, as SVG. The values of the anchors are not drawn: they may lie far from the function."""
    if head.domain is None:
        return ""
    lo, hi = head.domain.lo, head.domain.hi
    s = torch.linspace(lo, hi, _POINTS, dtype=head.key.dtype)
    with torch.no_grad():
        y, weights = head(s, strict=False).double(), head.weights(s).double().reshape(_POINTS, -1)
        at = head.anchors.flatten().to(head.key.dtype)
        heights = head(at, strict=False).double()
    if not bool(torch.isfinite(y).all()):
        return ""
    low, high = float(y.min()), float(y.max())
    span = (high - low) or 1.0
    xs = [_WIDTH * (float(v) - lo) / (hi - lo) for v in s]

    def height(v: float) -> float:
        return 8 + (_CURVE - 16) * (high - v) / span

    inside = [lo <= float(a) <= hi for a in at]
    beyond = f" ({len(inside) - sum(inside)} of {len(inside)} lie outside)" if not all(inside) else ""
    parts = [
        _text(0, 12, f"what the head computes; a dot marks where an anchor lies{beyond}", "start"),
        _path(xs, [height(float(v)) for v in y], "currentColor", 1.8),
    ]
    parts += [
        f"<circle cx='{_WIDTH * (float(a) - lo) / (hi - lo):.1f}' cy='{height(float(v)):.1f}' r='4' fill='{_hue(k)}'/>"
        for k, (a, v) in enumerate(zip(at, heights, strict=True))
        if inside[k]
    ]
    total = _CURVE
    if weights.shape[1] <= _MOST_ANCHORS:
        total += _WEIGHTS
        top = _CURVE + 14
        parts.append(_text(0, top - 4, "softmax weights of the anchors", "start"))
        for k, column in enumerate(weights.T):
            parts.append(_path(xs, [top + (_WEIGHTS - 18) * (1 - float(w)) for w in column], _hue(k), 1.2))
    parts += [_text(0, total + 12, f"{lo:g}", "start"), _text(_WIDTH, total + 12, f"{hi:g}", "end")]
    label = f"the head on [{lo:g}, {hi:g}], its anchors, and their softmax weights"
    box = f"viewBox='-6 0 {_WIDTH + 12} {total + 16}' width='100%' style='max-width:{_WIDTH}px;display:block;margin:.4em 0'"
    return f"<svg {box} role='img' aria-label='{label}'><title>{label}</title>{''.join(parts)}</svg>"


def _hue(k: int) -> str:
    return _HUES[k % len(_HUES)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    style = "font-size='11' fill='currentColor' opacity='.7'"
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}' {style}>{text}</text>"


def _path(xs: list[float], ys: list[float], colour: str, width: float) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}'/>"
