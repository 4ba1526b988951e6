"""The built-in functions as expressions over Coq's reals, and how each branch is rewritten for the tactic `interval`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from attnc.errors import Problem, UnsupportedError
from attnc.functions import Function
from attnc.functions.function import is_builtin, label_of


@dataclass(frozen=True)
class Formula:
    """`text` is f(s) over Coq's reals. `branches[i]` rewrites it between the i-th pair of neighbouring kinks. A smooth function
    has one branch, and `right` is a form for s > 0 in which no exponential overflows."""

    text: str
    branches: tuple[str, ...] = ("",)
    right: str | None = None
    gaussian: bool = False  # whether it has the normal distribution function Φ

    def rewriting(self, branch: int, middle: float) -> str:
        """The tactic for a stretch around `middle`, within a branch."""
        if self.right is not None and middle > 0:
            return self.right
        return self.branches[branch]


def rational(x: Fraction | float | int) -> str:
    """An exact number as a real of Coq.

    >>> rational(-0.375), rational(8.0)
    ('(-3 / 8)', '8')
    """
    q = Fraction(x)
    if q.denominator == 1:
        return f"({q})" if q < 0 else f"{q}"
    return f"({q.numerator} / {q.denominator})"


_BELOW = "rewrite (Rmax_right s 0) by lra"
_ABOVE = "rewrite (Rmax_left s 0) by lra"
_FIXED = {
    "identity": Formula("s"),
    "square": Formula("s * s"),
    "exp": Formula("exp s"),
    "sin": Formula("sin s"),
    "cos": Formula("cos s"),
    "abs": Formula("Rabs s", ("rewrite (Rabs_left1 s) by lra", "rewrite (Rabs_pos_eq s) by lra")),
    "tanh": Formula("tanh s", ("rewrite tanh_left",), "rewrite tanh_right"),
    "sigmoid": Formula("1 / (1 + exp (- s))", ("rewrite gate_left",), "idtac"),
    "silu": Formula("s / (1 + exp (- s))", ("rewrite gate_left",), "idtac"),
    "quick_gelu": Formula("s / (1 + exp (- (1.702 * s)))", ("rewrite gate_left",), "idtac"),
    "mish": Formula("s * tanh (ln (1 + exp s))", ("rewrite mish_left",), "rewrite mish_right"),
    "relu": Formula("Rmax s 0", (_BELOW, _ABOVE)),
    "relu2": Formula("Rmax s 0 * Rmax s 0", (f"{_BELOW}; rewrite Rmult_0_l", _ABOVE)),
    "softsign": Formula(
        "s / (1 + Rabs s)", ("rewrite (Rabs_left1 s) by lra", "rewrite (Rabs_pos_eq s) by lra")
    ),
    "gelu": Formula("s * Phi s", gaussian=True),
    "gelu_10": Formula(
        "Rmin s 10 * Phi (Rmin s 10)",
        ("rewrite (Rmin_left s 10) by lra", "rewrite (Rmin_right s 10) by lra"),
        gaussian=True,
    ),
}


def _half_tanh(factor: str) -> Formula:
    return Formula(f"s / 2 * (1 + tanh ({factor}))", ("rewrite half_tanh_left",), "rewrite half_tanh_right")


_FIXED |= {
    "gelu_tanh": _half_tanh("sqrt (2 / PI) * (s + 0.044715 * (s * s * s))"),
    "gelu_fast": _half_tanh("0.7978845608 * s * (1 + 0.044715 * (s * s))"),
    "gelu_bloom": _half_tanh("0.79788456 * s * (1 + 0.044715 * (s * s))"),
}
_LINE = "s / 6 + 1 / 2"
_HARD = (
    f"rewrite (Rmax_right ({_LINE}) 0), (Rmin_left 0 1) by lra",
    f"rewrite (Rmax_left ({_LINE}) 0), (Rmin_left ({_LINE}) 1) by lra",
    f"rewrite (Rmax_left ({_LINE}) 0), (Rmin_right ({_LINE}) 1) by lra",
)
_FIXED |= {
    "hardsigmoid": Formula(f"Rmin (Rmax ({_LINE}) 0) 1", _HARD),
    "hardswish": Formula(f"s * Rmin (Rmax ({_LINE}) 0) 1", _HARD),
}
_ZERO = "rewrite (Rmax_left s 0), (Rmin_right s 0) by lra"
_NEGATIVE = "rewrite (Rmax_right s 0), (Rmin_left s 0), Rplus_0_l by lra"


def _exponential(text: str) -> Formula:
    """A function that is linear above 0, and has exp (Rmin s 0) below."""
    return Formula(text, (_NEGATIVE, f"{_ZERO}; rewrite ?nothing, exp_0"))


def _selu(_: Function) -> Formula:
    scale, alpha = 1.0507009873554805, 1.6732632423543772  # the floats that torch uses, as the enclosure does
    return _exponential(f"{rational(scale)} * (Rmax s 0 + {rational(alpha)} * (exp (Rmin s 0) - 1))")


def _elu(f: Function) -> Formula:
    return _exponential(f"Rmax s 0 + {rational(f.parameters.get('alpha', 1.0))} * (exp (Rmin s 0) - 1)")


def _celu(f: Function) -> Formula:
    alpha = rational(f.parameters.get("alpha", 1.0))
    return _exponential(f"Rmax s 0 + {alpha} * (exp (Rmin s 0 / {alpha}) - 1)")


def _leaky_relu(f: Function) -> Formula:
    return Formula(
        f"Rmax s 0 + {rational(f.parameters['slope'])} * Rmin s 0",
        (_NEGATIVE, f"{_ZERO}; rewrite Rmult_0_r, Rplus_0_r"),
    )


def _clip(f: Function) -> Formula:
    a, b = rational(f.parameters["a"]), rational(f.parameters["b"])
    branches = (
        f"rewrite (Rmax_right s {a}), (Rmin_left {a} {b}) by lra",
        f"rewrite (Rmax_left s {a}), (Rmin_left s {b}) by lra",
        f"rewrite (Rmax_left s {a}), (Rmin_right s {b}) by lra",
    )
    return Formula(f"Rmin (Rmax s {a}) {b}", branches)


def _soft_threshold(f: Function) -> Formula:
    lam = rational(f.parameters["lam"])
    low, high = f"(s - {lam})", f"(s + {lam})"
    branches = (
        f"rewrite (Rmax_right {low} 0), (Rmin_left {high} 0), Rplus_0_l by lra",
        f"rewrite (Rmax_right {low} 0), (Rmin_right {high} 0), Rplus_0_l by lra",
        f"rewrite (Rmax_left {low} 0), (Rmin_right {high} 0), Rplus_0_r by lra",
    )
    return Formula(f"Rmax {low} 0 + Rmin {high} 0", branches)


def _pinball(f: Function) -> Formula:
    tau, width = rational(f.parameters["tau"]), rational(f.parameters["width"])
    return Formula(f"1 / (1 + exp (- (s / {width}))) - {tau}", ("rewrite gate_left",), "idtac")


def _softplus(f: Function) -> Formula:
    beta = rational(f.parameters.get("beta", 1.0))
    return Formula(f"ln (1 + exp ({beta} * s)) / {beta}", ("idtac",), "rewrite softplus_right")


_WITH_PARAMETERS: dict[str, Callable[[Function], Formula]] = {
    "selu": _selu,
    "elu": _elu,
    "celu": _celu,
    "leaky_relu": _leaky_relu,
    "clip": _clip,
    "hardtanh": _clip,
    "soft_threshold": _soft_threshold,
    "pinball": _pinball,
    "softplus": _softplus,
}
NAMES = tuple(sorted((*_FIXED, *_WITH_PARAMETERS)))


def formula_of(f: Function) -> Formula:
    """The expression of a built-in function; raises UnsupportedError for any other."""
    if not is_builtin(f) or f.name not in NAMES:
        raise UnsupportedError(
            "this function has no expression over Coq's reals in attnc",
            [Problem(label_of(f), f"accepted are the built-in functions {', '.join(NAMES)}")],
        )
    fixed = _FIXED.get(f.name)
    return fixed if fixed is not None else _WITH_PARAMETERS[f.name](f)
