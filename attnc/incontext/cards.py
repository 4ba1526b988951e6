"""The cards of learners and solvers, as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnc.incontext.settings import EXAMPLES
from attnc.network.cards import head_picture, module_card
from attnc.records.cards import folded, table

if TYPE_CHECKING:
    from attnc.incontext.base import InContext

_LAYERS = (
    ("A", "every example reads the coefficients", "u = w·x"),
    ("B", "every example attends to the anchors of its residual", "r = ψ(u) - y"),
    ("C", "the weight token attends to all examples", "w ← w - η Σ r x/n"),
)
_THRESHOLD = ("D", "the weight token attends to the anchors of the threshold", "w ← w - clip(w, -ηλ, ηλ)")


def learner_card(learner: InContext) -> str:
    """What the forward pass does, what is proved of it, and the head of its activation."""
    settings, radius = learner.settings, vars(learner.settings.radius)
    about = "the coefficients after the last step, compared with the same algorithm in exact arithmetic"
    facts = [("the bound is for", about)]
    facts += [
        (
            "number of examples",
            f"up to {EXAMPLES:,}; error_bound(n) is the bound for n, `bound_` of an estimator for its own",
        )
    ]
    facts += [("features", f"{learner.features}{' and an intercept' * learner.intercept}")]
    facts += [
        (name.replace("_", " "), f"{getattr(learner, name):g}")
        for name in ("steps", "step_size", "ridge")
        if isinstance(getattr(learner, name, None), (int, float))
    ]
    facts += [
        ("radius", ", ".join(f"{name} {size:g}" for name, size in radius.items())),
        ("dtype", settings.dtype),
    ]
    body, picture = "", ""
    if learner.algorithm == "gradient_descent":
        layers = [*_LAYERS, *([_THRESHOLD] if learner.threshold is not None else [])]
        body = table(("layer", "attention", "computes"), layers)
    if learner.activation is not None:
        name = learner.activation.certificate.facts["function"]
        picture = folded(f"layer B: the head of {name}", head_picture(learner.activation))
    what = "learner" if learner.algorithm == "gradient_descent" else "solver"
    title = f"{learner.certificate.name} in context: a {what} with fixed weights"
    return module_card(learner, title, facts, "", body, picture)
