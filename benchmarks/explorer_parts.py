"""Four parts of the explorer's data: heads, functions of two tokens, learners, token programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attnc
from attnc import zoo
from attnc.errors import AttncError
from attnc.incontext import Learner, Radius, gradient_descent
from attnc.network.layer import LookupLayer

FUNCTIONS = {
    "gelu": (-8, 8),
    "relu": (-4, 4),
    "silu": (-8, 8),
    "tanh": (-4, 4),
    "sin": (-6, 6),
    "clip(-1,1)": (-3, 3),
}
SIZES = {
    "nearest": (6, 8, 12, 16, 24, 32),
    "smooth": (6, 8, 12, 16, 24, 32),
    "graded": (6, 8, 12, 16, 24, 32),
    "tuned": (2, 4, 6, 8, 11),
    "gated": (2,),
}
ROUNDING = (
    2e-11  # heads with a larger proved rounding are left out: browser and Python may differ by too much
)
USELESS = 0.5  # a bound from which on a head is left out
EXAMPLES = 12


def head_numbers(head: attnc.Head) -> dict[str, Any]:
    """The tensors of one head, the positions of its anchors, and the terms of its certificate."""
    numbers, proved = head.numbers(), head.certificate
    return {
        "query": numbers.query[0].tolist(),
        "slope": numbers.key[0, :, 0].tolist(),
        "offset": numbers.key[0, :, 1].tolist(),
        "gain": numbers.value[0, :, 0].tolist() if numbers.value[..., 0].any() else None,
        "value": numbers.value[0, :, 1].tolist(),
        "output": float(numbers.output[0]),
        "anchors": head.anchors.tolist(),
        "bound": proved.bound,
        "approximation": proved.approximation,
        "rounding": proved.rounding,
    }


def heads() -> list[dict[str, Any]]:
    """For each function, each design and each size: one head, its numbers and its certificate."""
    found = []
    for name, (lo, hi) in FUNCTIONS.items():
        designs = {design: dict(_sizes(name, (lo, hi), design)) for design in SIZES}
        found.append({"name": name, "lo": lo, "hi": hi, "designs": {d: s for d, s in designs.items() if s}})
    return found


def _sizes(name: str, domain: tuple[int, int], design: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for size in SIZES[design]:
        try:
            head = attnc.head(name, domain=domain, anchors=size, design=design, dtype=torch.float64)
        except AttncError:  # graded needs a kink
            return
        proved = head.certificate
        if proved.rounding <= ROUNDING and proved.bound < USELESS and head.heads == 1:
            yield str(size), head_numbers(head)


@dataclass(frozen=True)
class TwoTokens:
    """A function of two tokens of one number each, and how it is compiled."""

    label: str
    formula: str  # of the first output
    function: Callable[[Tensor], Tensor]
    options: tuple[dict[str, float], ...]


SURFACES = (
    TwoTokens(
        "difference",
        "sin(2(x₂ − x₁))/2",
        lambda x: torch.sin(2 * (x.flip(1) - x)) / 2,
        ({"eps": 0.2, "lipschitz": 1.4143}, {"eps": 1e-2}, {"eps": 1e-4}, {"eps": 1e-6}),
    ),
    TwoTokens(
        "smaller first",
        "min(x₁, x₂)",
        lambda x: x.sort(1).values,
        ({"eps": 0.3, "lipschitz": 1}, {"eps": 0.15, "lipschitz": 1}),
    ),
    TwoTokens(
        "product",
        "x₁·x₂",
        lambda x: x * x.flip(1),
        ({"eps": 0.3, "lipschitz": 1.4143}, {"eps": 0.2, "lipschitz": 1.4143}),
    ),
)


def two_tokens() -> list[dict[str, Any]]:
    """Functions of two tokens as two layers of self-attention, the literal form: maps and matrices."""
    box, found = attnc.Box(-1, 1, shape=(2, 1)), []
    for surface in SURFACES:
        nets = []
        for options in surface.options:
            net = attnc.compile(surface.function, domain=box, dtype=torch.float64, **options)
            nets.append(_literal(net) | {"eps": options["eps"], "lipschitz": options.get("lipschitz")})
        found.append({"label": surface.label, "formula": surface.formula, "networks": nets})
    return found


def _literal(net: attnc.Network) -> dict[str, Any]:
    """The steps of the literal form, and what is proved or measured of the network."""
    literal, certificate = net.as_self_attention(), net.certificate
    steps: list[dict[str, Any]] = []
    for name, index in literal.order:
        step = literal.steps[index]
        if step.kind == "map":
            bias = step.bias.detach()
            at = bias.nonzero()[:, 0]
            steps.append({
                "name": name, "kind": "map", "in": list(step.in_shape), "out": list(step.out_shape),
                "rows": step.rows.tolist(), "columns": step.columns.tolist(), "core": step.core.tolist(),
                "biasAt": at.tolist(), "bias": bias[at].tolist(),
            })  # fmt: skip
        else:
            matrices = {letter: getattr(step, letter)[0].tolist() for letter in ("W_Q", "W_K", "W_V", "W_O")}
            steps.append({"name": name, "kind": "attention", **matrices})
    return {
        "steps": steps,
        "tokens": len(literal.layouts["anchors beside"].tokens),
        "anchors": _positions(net.selections[0]),
        "status": str(certificate.status),
        "method": certificate.facts["method"],
        "bound": certificate.bound if certificate.proved else None,
        "error": certificate.error,
        "points": certificate.facts.get("points"),
    }


def _positions(lookup: LookupLayer) -> list[list[float]]:
    """Where the anchors lie, for a picture. Scores are -Σ_j b_j (x_j - g_j)² up to a term that all share: with the slopes
    2b_j(g_j - centre_j), the offsets are linear in the squares of the slopes, with the coefficients -1/(4b_j)."""
    slope, offset = lookup.key.double().numpy(), lookup.offset.double().numpy()
    known = np.linalg.lstsq(np.column_stack([-(slope**2), np.ones(len(slope))]), offset, rcond=None)[0]
    found: list[list[float]] = (lookup.centre.double().numpy() + 2 * known[:-1] * slope).round(6).tolist()
    return found


def learners() -> list[dict[str, Any]]:
    """A line fitted by least squares and a boundary by logistic regression: gradient descent in context on 12 examples."""
    common: dict[str, Any] = {"steps": 40, "intercept": True, "dtype": torch.float64}
    small, large = Radius(x=1.0, y=1.0, w=4.0, u=6.0), Radius(x=1.0, y=1.0, w=8.0, u=16.0)
    line = gradient_descent("squared", features=1, step_size=0.5, radius=small, **common)
    boundary = gradient_descent("logistic", features=2, step_size=2.0, radius=large, **common)
    return [
        {"label": "a line, least squares", "plane": False, **_learner(line), "examples": LINE},
        {"label": "a boundary, logistic regression", "plane": True, **_learner(boundary), "examples": CLOUDS},
    ]


def _learner(learner: Learner) -> dict[str, Any]:
    settings = learner.settings
    return {
        "loss": settings.loss.name,
        "features": settings.features,
        "steps": settings.steps,
        "stepSize": settings.step_size,
        "e": settings.e,
        "radius": dict(vars(settings.radius)),
        "reading": {
            "query": learner.reading.query[:, 0].tolist(),
            "value": learner.reading.value[:, :, 1].tolist(),
            "output": learner.reading.output.tolist(),
        },
        "activation": None if learner.activation is None else head_numbers(learner.activation),
        "bound": learner.error_bound(EXAMPLES),
    }


LINE = [  # x, y
    [-0.92, -0.44], [-0.78, -0.58], [-0.61, -0.21], [-0.45, -0.33], [-0.3, 0.02], [-0.12, -0.14],
    [0.08, 0.16], [0.22, 0.02], [0.4, 0.38], [0.58, 0.24], [0.77, 0.56], [0.93, 0.47],
]  # fmt: skip
CLOUDS = [  # x₁, x₂, label
    [-0.75, 0.35, 0], [-0.6, 0.7, 0], [-0.42, 0.2, 0], [-0.3, 0.55, 0], [-0.85, -0.1, 0], [-0.1, 0.8, 0],
    [0.15, -0.35, 1], [0.4, 0.1, 1], [0.55, -0.6, 1], [0.7, -0.15, 1], [0.85, 0.3, 1], [-0.15, -0.55, 1],
]  # fmt: skip

PROGRAMS = (
    "induction", "reverse", "histogram", "double-histogram", "sort", "most-frequent", "parity", "dyck-1", "dyck-2",
)  # fmt: skip


def token_programs() -> list[dict[str, Any]]:
    """Models of the zoo in float64: embeddings, the matrices of every head, the unembedding; zeros are left out."""
    found = []
    for name in PROGRAMS:
        net, task = zoo.load(name, dtype=torch.float64), zoo.about(name)
        numbers = net.numbers()
        layers = [
            [
                {"name": role.name}
                | {
                    letter: _sparse(getattr(layer, letter)[h])
                    for letter in ("query", "key", "value", "output")
                }
                for h, role in enumerate(layer.roles)
            ]
            for layer in numbers.layers
        ]
        found.append({
            "name": name,
            "computes": task.computes,
            "mechanism": task.mechanism,
            "example": [str(token) for token in task.tokens],
            "vocabulary": [str(token) for token in net.vocabulary],
            "outputs": [_shown(value) for value in net.outputs],
            "length": net.program.length,
            "causal": net.program.causal,
            "coordinates": list(net.coordinates),
            "tokens": _sparse(numbers.tokens),
            "positions": _sparse(numbers.positions),
            "unembedding": _sparse(numbers.unembedding),
            "layers": layers,
            "sequences": net.certificate.holds_for.count,
        })  # fmt: skip
    return found


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _sparse(matrix: Any) -> dict[str, Any]:
    """A matrix as its shape and the numbers that are not 0: [row, column, number, row, …]."""
    rows, columns = matrix.nonzero()
    flat = [
        n for i, j in zip(rows.tolist(), columns.tolist(), strict=True) for n in (i, j, float(matrix[i, j]))
    ]
    return {"shape": list(matrix.shape), "at": flat}
