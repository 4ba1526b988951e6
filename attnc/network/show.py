"""The representations of a head: one line of text, and a table with a graph for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch

from attnc.records.certificate import Status

if TYPE_CHECKING:
    from attnc.network.head import Head


def head_facts(head: Head) -> dict[str, str]:
    """The facts that every display shows, in order."""
    certificate, anchors = head.certificate, head.key.shape[1]
    facts = {"function": str(certificate.facts.get("function", "unknown"))}
    if head.domain is not None:
        facts["domain"] = f"[{head.domain.lo:g}, {head.domain.hi:g}]"
    facts["anchors"] = f"{anchors}" if head.heads == 1 else f"{head.heads} heads of {anchors}"
    facts["design"] = head.design
    facts["dtype"] = str(head.key.dtype).removeprefix("torch.")
    reason = head.why_not_certified()
    if certificate.status is Status.MEASURED:
        facts["error"] = (
            f"{certificate.error:.3g} measured at {certificate.facts['points']} points, not proved"
        )
    elif reason is None:
        facts["error"] = f"at most {certificate.bound:.4g}, proved"
    else:
        facts["error"] = f"not certified: {reason}"
    return facts


def head_text(head: Head) -> str:
    """'function=gelu, domain=[-8, 8], anchors=11, …, error=at most 3.8e-07, proved'"""
    return ", ".join(f"{name}={fact}" for name, fact in head_facts(head).items())


def head_html(head: Head) -> str:
    """A table of the facts and the graph of the head."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(k)}</th><td>{escape(v)}</td></tr>"
        for k, v in head_facts(head).items()
    )
    return f"<div><b>attnc.Head</b><table>{rows}</table>{_graph(head)}</div>"


def _graph(head: Head, width: int = 240, height: int = 120) -> str:
    domain = head.domain
    if domain is None or head.key.dtype not in (torch.float32, torch.float64):
        return ""
    s = torch.linspace(domain.lo, domain.hi, 121, dtype=torch.float64).to(head.key.dtype)
    with torch.no_grad():
        y = head(s.to(head.key.device)).cpu()
    span = float(y.max() - y.min()) or 1.0
    points = " ".join(
        f"{i * width / 120:.1f},{height - float(v - y.min()) / span * height:.1f}" for i, v in enumerate(y)
    )
    return (
        f"<svg width='{width}' height='{height}' viewBox='-4 -4 {width + 8} {height + 8}'>"
        f"<polyline points='{points}' fill='none' stroke='currentColor' stroke-width='2'/></svg>"
    )
