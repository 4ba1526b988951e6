"""Domains as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnc.domain import Array, Ball, Box, Context, Domain, Interval, Normed, Sequences, Tokens
from attnc.errors import CertificateError, InputError
from attnc.records.fields import check_type, with_fields

_LISTED = 64  # numbers that are written as a list; longer arrays are written in base64
_FIELDS = {
    "interval": ("lo", "hi"),
    "box": ("lo", "hi", "shape"),
    "tokens": ("vocabulary", "length"),
    "sequences": ("vocabulary", "length"),
    "ball": ("features", "radius", "centred"),
    "context": ("examples", "limits"),
    "normed": ("centred", "gain", "shift", "shape"),
}


def domain_to_json(domain: Domain | None) -> dict[str, Any] | None:
    """A JSON object with the kind and the numbers of a domain.

    >>> domain_to_json(Box(-1, 1, shape=(3,)))
    {'kind': 'box', 'lo': -1.0, 'hi': 1.0, 'shape': [3]}
    """
    if domain is None:
        return None
    kind = type(domain).__name__.lower()
    return {"kind": kind, **{name: _to_json(getattr(domain, name)) for name in _FIELDS[kind]}}


def domain_from_json(record: object) -> Domain | None:
    """Read the result of `domain_to_json`."""
    if record is None:
        return None
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in _FIELDS:
        raise CertificateError(f"unknown domain {kind!r}: expected one of {', '.join(_FIELDS)}")
    body = with_fields(kind, record, {"kind", *_FIELDS[kind]})
    try:
        if kind == "interval":
            for end in ("lo", "hi"):
                check_type(end, body[end], float)
            return Interval(body["lo"], body["hi"])
        if kind == "tokens":
            return Tokens(body["vocabulary"], body["length"])
        if kind == "sequences":
            return Sequences(body["vocabulary"], body["length"])
        if kind == "ball":
            return Ball(body["features"], body["radius"], body["centred"])
        if kind == "context":
            return Context(body["examples"], dict(body["limits"]))
        shape = tuple(body["shape"])
        if kind == "box":
            return Box(_from_json(body["lo"], shape), _from_json(body["hi"], shape), shape)
        check_type("centred", body["centred"], bool)
        return Normed(body["centred"], _from_json(body["gain"], shape), _from_json(body["shift"], shape))
    except (InputError, TypeError, ValueError, KeyError) as problem:
        raise CertificateError(f"the domain is not valid: {problem}") from problem


def _to_json(value: Any) -> Any:
    """An array becomes one number if all are equal, else a list or, of many, base64."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, np.ndarray):
        return list(value) if isinstance(value, tuple) else value
    flat = value.ravel()
    if (flat == flat[0]).all() and not (flat[0] == 0 and np.signbit(flat).any()):
        return float(flat[0])
    if len(flat) <= _LISTED:
        return flat.tolist()
    with np.errstate(over="ignore"):
        short = flat.astype("<f4")
    dtype, stored = ("<f4", short) if np.array_equal(short.astype(np.float64), flat) else ("<f8", flat)
    return {dtype: base64.b64encode(stored.astype(dtype).tobytes()).decode()}


def _from_json(record: object, shape: tuple[int, ...]) -> Array:
    if isinstance(record, dict):
        ((dtype, text),) = record.items()
        if dtype not in ("<f4", "<f8"):
            raise CertificateError(f"unknown dtype {dtype!r}: expected '<f4' or '<f8'")
        return np.frombuffer(base64.b64decode(text), dtype).astype(np.float64).reshape(shape)
    if not all(type(x) is float for x in (record if isinstance(record, list) else [record])):
        raise CertificateError(f"expected numbers, got {record!r}")
    array = np.array(record, dtype=np.float64)
    return np.array(np.broadcast_to(array, shape)) if array.ndim == 0 else array.reshape(shape)
