"""dtypes in a recorded function: refuses what torch rounds, and converts constants as torch does where dtypes are mixed.

Truth values and float32 numbers in a function of float64 numbers are narrow: torch converts a constant that meets them, so that
(x > 0) * 0.1 is the float32 number nearest to a tenth, and -1.0 as a truth value is True."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from attnc.frontends import aten
from attnc.frontends.activations import RefusedError
from attnc.frontends.tape import Symbols
from attnc.frontends.trace_operations import MOVES
from attnc.frontends.trace_piecewise import COMPARISONS, LOGICAL

_OPERANDS = ("self", "other")


def values(node: fx.Node) -> list[Any]:
    """What a node computes, as far as shapes and dtypes go."""
    found = node.meta.get("val", node.meta.get("tensor_meta"))
    return list(found) if isinstance(found, (list, tuple)) and not hasattr(found, "dtype") else [found]


def constants_as(node: fx.Node, symbolic: Collection[fx.Node], own: torch.dtype) -> torch.dtype | None:
    """The dtype that constants of an operation are converted to, None if they stay as they are; `own` is that of f's input.

    Raises `RefusedError` if an operation rounds numbers that depend on the input to fewer digits, or computes with fewer."""
    name, results = aten.name(node), [v for v in values(node) if v is not None]
    before = [v.dtype for n in symbolic for v in values(n) if v is not None]
    if not results:
        return None
    made = results[0].dtype
    if name in COMPARISONS:
        _check_comparison(node, symbolic, any(_narrow(dtype, own) for dtype in before))
        return None
    if made == torch.bool and name in LOGICAL.keys() | MOVES and all(d == torch.bool for d in before):
        return torch.bool
    if not made.is_floating_point or made in (torch.float16, torch.bfloat16):
        raise RefusedError(f"returns {made} numbers that depend on the input")
    if made == torch.float32 and torch.float64 in before:
        raise RefusedError("casts numbers from float64 to float32, which rounds them")
    if _narrow(made, own) and not (name in MOVES or _selects(name, before)):
        raise RefusedError("computes in float32 in a function of float64 numbers: use .to(x.dtype)")
    return made if name in MOVES or _narrow(made, own) else None


def _narrow(dtype: torch.dtype, own: torch.dtype) -> bool:
    return dtype == torch.bool or (dtype == torch.float32 and own == torch.float64)


def _selects(name: str, before: list[torch.dtype]) -> bool:
    """Whether it returns one of its operands or 0, without rounding."""
    return name == "where" or (name == "mul" and torch.bool in before)


def _check_comparison(node: fx.Node, symbolic: Collection[fx.Node], narrow: bool) -> None:
    given = aten.arguments(node)
    if narrow and "other" in given and not all(given[key] in symbolic for key in _OPERANDS):
        raise RefusedError("compares truth values or float32 numbers with constants, which torch rounds")


def converted(given: dict[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """The arguments of an operation, with its constants as numbers of a dtype."""
    if dtype is None:
        return given
    return {key: converted_one(value, dtype) if key in _OPERANDS else value for key, value in given.items()}


def converted_one(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None or value is None or isinstance(value, Symbols):
        return value
    return (
        value.to(dtype) if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64).to(dtype)
    )
