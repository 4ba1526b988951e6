"""Checks of arguments. Each returns the argument in the form in which the package uses it, or raises InputError."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from attnc.arithmetic import probe, probe_network
from attnc.domain import Box, Interval
from attnc.errors import InputError, PrecisionError, page

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_NAMES = {"float": "float32", "double": "float64"}  # torch's other names
ENGINES = ("softmax", "sdpa", "closed-form")
LARGEST = {"float32": 2.0**80, "float64": 2.0**400}  # squares of larger intermediate results would overflow


def checked_eps(eps: object, name: str = "eps") -> float:
    """A positive, finite error bound."""
    return checked_positive(name, eps, f", e.g. {name}=1e-6")


def checked_positive(name: str, given: object, advice: str = "") -> float:
    """A positive, finite number."""
    number = _as_float(given)
    if not 0 < number < 2.0**1023:
        raise InputError(f"{name}={given!r}: give a positive, finite number{advice}")
    return number


def checked_nonnegative(name: str, given: object) -> float:
    """A finite number that is at least 0."""
    number = _as_float(given)
    if not 0 <= number < math.inf:
        raise InputError(f"{name}={given!r}: give a finite number that is at least 0")
    return number


def checked_count(name: str, given: object, least: int = 1, most: int | None = None, why: str = "") -> int:
    """An integer from `least` to `most`."""
    integer = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    if not integer or not least <= given <= (math.inf if most is None else most):  # type: ignore[operator]
        accepted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}={given!r}: give an integer {accepted}{why and f' ({why})'}")
    return int(given)  # type: ignore[call-overload, no-any-return]


def checked_jobs(given: object) -> int:
    """A number of parallel jobs as joblib takes it: -1 is one for each core, -2 one less."""
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or given == 0:
        raise InputError(f"jobs={given!r}: give a positive integer, or -1 for one job on each core")
    return int(given)


def checked_choice(name: str, given: object, accepted: Sequence[str], advice: str = "") -> str:
    """One word of a list."""
    if not isinstance(given, str) or given not in accepted:
        near = difflib.get_close_matches(given, accepted, 1) if isinstance(given, str) else []
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"{name}={given!r}{hint}: accepted are {', '.join(map(repr, accepted))}{advice}")
    return given


def checked_engine(engine: object, accepted: Sequence[str] = ENGINES) -> str:
    """How a softmax over anchors is evaluated."""
    return checked_choice("engine", engine, accepted)


def checked_strict(strict: object) -> bool | None:
    """What a module does with inputs outside its domain."""
    if strict is None or isinstance(strict, bool):
        return strict
    raise InputError(f"strict={strict!r}: give None (warn once), True (raise) or False (ignore)")


def checked_dtype(dtype: object) -> str:
    """The name of a dtype that attnc runs in: torch.float64, "float64" and "double" mean the same."""
    name = DTYPES.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    name = _NAMES.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in DTYPES.values():
        raise InputError(
            f"dtype={dtype!r}: torch.float32 and torch.float64 are accepted, or 'float32' and 'float64'"
        )
    return name


def torch_dtype(dtype: object) -> torch.dtype:
    """The dtype of a name, or the dtype itself, if attnc runs in it."""
    found: torch.dtype = getattr(torch, checked_dtype(dtype))
    return found


def resolve_dtype(dtype: object, source: object = None) -> str:
    """The name of `dtype`; where it is None, of the source's dtype; where the source has none, of torch's default dtype.

    The dtype of a module is that of its first floating-point tensor, the dtype of a fitted scikit-learn network that of its
    first weight."""
    if dtype is not None:
        return checked_dtype(dtype)
    if isinstance(source, nn.Module):
        tensors = (*source.parameters(), *source.buffers())
        found = next((tensor.dtype for tensor in tensors if tensor.dtype in DTYPES), None)
        return checked_dtype(found or torch.get_default_dtype())
    steps = getattr(source, "steps", None)  # of a Pipeline
    network = steps[-1][1] if isinstance(steps, list) and steps else source
    weights = getattr(network, "coefs_", None)
    name = weights[0].dtype.name if isinstance(weights, list) and weights else ""
    return name if name in DTYPES.values() else checked_dtype(torch.get_default_dtype())


def checked_interval(domain: object, dtype: str) -> Interval:
    """An interval whose numbers can be squared in a dtype."""
    if not isinstance(domain, Interval):
        if not isinstance(domain, (tuple, list)) or len(domain) != 2:
            raise InputError(f"domain={domain!r}: give an interval, domain=(lo, hi)")
        domain = Interval(*domain)
    largest, least_width = LARGEST[dtype], 1 / LARGEST[dtype]
    if max(abs(domain.lo), abs(domain.hi)) > largest or domain.width < least_width:
        advice = f"give ends of at most {largest:.3g} and a width of at least {least_width:.3g}"
        raise InputError(f"the interval ({domain.lo}, {domain.hi}) exceeds the range of {dtype}: {advice}")
    return domain


def checked_domain(domain: object) -> Box:
    if not isinstance(domain, Box):
        raise InputError(f"domain is an attnc.Box(lo, hi, shape=(…)): got {type(domain).__name__}")
    return domain


def check_box(box: Box, dtype: str) -> None:
    """Every side of the box must contain a number of the dtype: a bound for no input at all would mean nothing."""
    with np.errstate(over="ignore"):
        near = box.lo.astype(dtype)
    low = np.where(near < box.lo, np.nextafter(near, np.array(np.inf, dtype)), near)
    empty = np.argwhere(~(low <= box.hi))
    if len(empty):
        at = tuple(int(i) for i in empty[0])
        where = f"between lo={box.lo[at]!r} and hi={box.hi[at]!r} at coordinate {at}"
        raise InputError(f"no {dtype} lies {where}: widen the box there, or use another dtype")


def check_arithmetic(dtype: str, network: bool = False) -> None:
    """Raise PrecisionError on a machine, or under a setting of torch, whose arithmetic breaks what certificates assume."""
    broken = probe(dtype) or (probe_network(dtype) if network else None)
    if broken is not None:
        what = f"this machine's {dtype} arithmetic is not what certificates assume ({broken})"
        raise PrecisionError(f"{what}: see {page('arithmetic')}")


def _as_float(given: object) -> float:
    """A number as a float; NaN for anything else."""
    if isinstance(given, bool) or not isinstance(given, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.inf
