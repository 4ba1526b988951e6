"""report: one HTML page about a head, a network or a learner: its picture, its certificate and what was proved."""

from __future__ import annotations

import base64
import io
import os
import time
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function
from attnc.incontext import Learner
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.plot.canvas import DOTS_PER_INCH, require_matplotlib
from attnc.plot.heads import AnyFunction
from attnc.plot.heads import head as draw_head
from attnc.plot.learning import learning as draw_learning
from attnc.plot.network import network as draw_network
from attnc.pretrained.verify import verify
from attnc.records.cards import folded, table
from attnc.records.certificate import Certificate, Verdict
from attnc.records.fields import at_most
from attnc.records.files import replacing

_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;max-width:52em;margin:2em auto;padding:0 1em}"
    "img{max-width:100%;background:#fff;border-radius:8px}code,pre{font-size:.92em}pre{overflow-x:auto;padding:.7em 1em;"
    "border:1px solid rgba(128,128,128,.35);border-radius:8px}h1{line-height:1.25}"
)
_MOST_ANCHORS = 64  # that are listed


Subject = Head | Network | Learner
Examples = tuple[Tensor, Tensor]


def report(
    x: Subject,
    path: str | os.PathLike[str],
    *,
    f: AnyFunction | None = None,
    context: Examples | None = None,
) -> Verdict:
    """Write an HTML page about a head, a network or a learner: its picture, what was proved, the certificate, the verdict of the
    independent checker, which runs now, and how to use it. The page needs no other file and runs no script. `f` is needed only if
    the function of a head is not registered. `context` are the examples (x, y) of a learner, for its picture; without them the
    page of a learner has none. Returns the verdict.

    >>> import attnc, attnc.plot, pathlib, tempfile
    >>> page = pathlib.Path(tempfile.mkdtemp()) / "tanh.html"
    >>> attnc.plot.report(attnc.head("tanh", domain=(-8, 8), eps=1e-5), page).status
    'proved'
    >>> "<img" in page.read_text(), "the independent checker" in page.read_text()
    (True, True)
    """
    page_name(path)
    require_matplotlib()
    if not isinstance(x, (Head, Network, Learner)):
        raise InputError(
            f"plot.report takes a Head, a Network or a Learner (learner_ of an estimator): got {type(x).__name__}"
        )
    picture = _picture(x, f, context)
    began = time.perf_counter()
    verdict = verify(x, f if isinstance(f, (str, Function)) else None)
    seconds = time.perf_counter() - began
    with replacing(path) as temporary:
        temporary.write_text(_page(x, verdict, seconds, picture, Path(path).stem), encoding="utf-8")
    return verdict


def page_name(path: str | os.PathLike[str]) -> None:
    """Raise unless the name is that of an HTML file."""
    if Path(path).suffix.lower() != ".html":
        raise InputError(f"path={os.fspath(path)!r}: the name of a report must end in .html")


def _page(x: Subject, verdict: Verdict, seconds: float, picture: str | None, name: str) -> str:
    subject = x.certificate.facts.get("function", "A network") if isinstance(x, Head) else "A network"
    if isinstance(x, Learner):
        subject = f"Gradient descent on the {x.loss.name} loss"
    title = f"{subject} as softmax attention"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_lead(x))}</p>",
        "" if picture is None else f"<img alt='{escape(_alt(x))}' src='data:image/png;base64,{picture}'>",
        "<h2>What was proved</h2>",
        *(f"<p>{escape(line)}</p>" for line in _statement(x.certificate, x.why_not_certified())),
        x._repr_html_(),
        "<h2>The second proof</h2>",
        f"<p>{_checked(verdict, seconds)}</p>",
        verdict._repr_html_(),
        "<h2>Use it</h2>",
        f"<pre>{escape(_usage(x, name))}</pre>",
        _numbers(x),
        _versions(x.certificate),
    ]
    head = f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
    view = "<meta name='viewport' content='width=device-width,initial-scale=1'>"
    return f"{head}{view}<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"


def _lead(x: Subject) -> str:
    if isinstance(x, Head):
        count = x.key.shape[1] * x.heads
        return (
            f"One softmax attends from a number s to {count} anchors, which are stored keys and values. The weighted sum of the "
            "values is the result. There is no other nonlinearity, and nothing was trained: the anchors were computed."
        )
    if isinstance(x, Learner):
        return (
            f"The forward pass of this attention network runs {x.steps} steps of gradient descent on the examples in its input. "
            "Its weights are fixed: they were computed, not trained, and are the same for every data set."
        )
    return (
        "Affine maps and softmax attention over anchors, which are stored keys and values. There is no other nonlinearity, and "
        "nothing was trained: the anchors were computed."
    )


def _alt(x: Subject) -> str:
    if isinstance(x, Head):
        return "the function and the head, the error below its bound, and the attention weights"
    if isinstance(x, Learner):
        return "the coefficients after every step, and the attention weights of the first and the last step"
    return "the heads of each layer, the attention of its neurons, and the bounds of the errors"


def _statement(certificate: Certificate, changed: str | None) -> list[str]:
    """What the certificate says, in sentences; nothing if it does not apply any more."""
    if certificate.proved and changed is not None:
        return [f"Nothing of what runs now: the certificate does not apply, because {changed}."]
    where = f"every {certificate.dtype} input of {certificate.holds_for}"
    if isinstance(certificate.holds_for, Interval):
        where = f"every {certificate.dtype} number s from {certificate.holds_for.lo:g} to {certificate.holds_for.hi:g}"
    if not certificate.proved:
        return [
            f"Nothing: the status of the error is {certificate.status}. {dict(certificate.rows())['bound']}."
        ]
    claim = f"For {where}, what this computes in {certificate.dtype} differs from the exact value by at most"
    if certificate.subject == "learner":
        claim = (
            f"For every {certificate.holds_for} on which the step size does not diverge, the Euclidean distance of the "
            f"coefficients, as {certificate.dtype} computes them, to those of exact gradient descent is at most"
        )
    return [
        f"{claim} {at_most(certificate.bound)}.",
        f"Of this, {at_most(certificate.approximation)} is the error in exact arithmetic, and {at_most(certificate.rounding)} is "
        "what the rounding of the executed operations can add. Each is a worst case of its own, so that their sum can exceed the "
        "bound. This is a theorem about the stored numbers, proved by ball "
        "arithmetic on every part of the domain. It is not an estimate from samples.",
        *(
            [f"The largest error that was found is {certificate.error:.3g}."]
            if certificate.error is not None
            else []
        ),
    ]


def _checked(verdict: Verdict, seconds: float) -> str:
    if verdict:
        return f"A checker that imports nothing of the prover derived the bound again from the stored numbers in {seconds:.2f} s."
    return "The independent checker did not prove the bound:"


def _picture(x: Subject, f: AnyFunction | None, context: Examples | None) -> str | None:
    if isinstance(x, Learner):
        if context is None:
            return None
        figure = draw_learning(x, x=context[0], y=context[1])
    else:
        figure = draw_head(x, f=f) if isinstance(x, Head) else draw_network(x)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DOTS_PER_INCH)
    return base64.b64encode(written.getvalue()).decode("ascii")


def _usage(x: Subject, name: str) -> str:
    dtype = x.certificate.dtype
    if isinstance(x, Learner):
        return (
            f"import attnc, torch\n\nlearner = attnc.load({f'{name}.safetensors'!r})   # the file that -o or learner.save(…) "
            f"wrote\nx, y = torch.rand(9, {x.features}, dtype=torch.{dtype}), torch.zeros(9, dtype=torch.{dtype})\n"
            "learner(x, y, x[:2])   # predictions for two rows\nprint(learner.certificate)\nprint(attnc.verify(learner))"
        )
    shape = "3" if isinstance(x, Head) else ", ".join(map(str, (3, *x.program.shape)))
    file = repr(f"{name}.safetensors")
    return (
        f"import attnc, torch\n\nx = attnc.load({file})   # the file that -o or x.save(…) wrote\n"
        f"x(torch.zeros({shape}, dtype=torch.{dtype}))\nprint(x.certificate)\nprint(attnc.verify(x))"
    )


def _numbers(x: Subject) -> str:
    """The anchors of a small head: its position, key and value."""
    if not isinstance(x, Head) or x.heads > 1 or x.key.shape[1] > _MOST_ANCHORS:
        return ""
    columns = torch.cat([x.anchors[:, None], x.key[0].double(), x.value[0].double()], 1)
    rows = [[f"{number:.6g}" for number in row] for row in columns.tolist()]
    return folded(
        "all the numbers", table(("position", "slope of the score", "offset", "value · s", "value"), rows)
    )


def _versions(certificate: Certificate) -> str:
    made = ", ".join(f"{name} {version}" for name, version in certificate.versions.items())
    return f"<p style='opacity:.7'>Made with {escape(made)}.</p>" if made else ""
