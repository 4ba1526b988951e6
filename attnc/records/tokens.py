"""The numbers of token networks, and token programs as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import FileError, InputError
from attnc.program.step import Numbers
from attnc.program.tokens import KINDS, Node, Predicate, TokenProgram
from attnc.program.tokens.program import CACHED, DERIVED
from attnc.records.fields import check_types, seal, with_fields
from attnc.records.numbers import Array, digest

MATRICES = ("query", "key", "value", "output")
ROLES = ("get", "count", "mean", "step", "anchor")
ALONE = ("step", "anchor")  # roles that name no node of the program
_PROGRAM = {"vocabulary", "length", "causal", "nodes", "names", "output"}


@dataclass(frozen=True)
class HeadRole:
    """What a head is for: it computes a node of the program, or a function of numbers of the stream: a step, or a head over
    anchors (node None). `name` is for people.

    The checker treats it as a claim: it proves from the matrices that the head does that."""

    name: str
    kind: str
    node: int | None = None

    def __post_init__(self) -> None:
        check_types({"name": self.name, "kind": self.kind}, {"name": str, "kind": str})
        if self.kind not in ROLES or type(self.node) is not (type(None) if self.kind in ALONE else int):
            expected = f"one of {ROLES}, with a node unless it is one of {ALONE}"
            raise InputError(
                f"head {self.name!r} is {self.kind!r} of node {self.node!r}: expected {expected}"
            )


@dataclass(frozen=True)
class TokenLayer:
    """H heads: q = xQ, k = xK, v = xV, and the stream gets Σ_h softmax(q kᵀ) v O."""

    query: Array  # (H, d, r)
    key: Array  # (H, d, r)
    value: Array  # (H, d, w)
    output: Array  # (H, w, d)
    roles: tuple[HeadRole, ...]

    def shapes(self, d: int) -> dict[str, tuple[int, ...]]:
        """The shapes that the matrices must have."""
        heads, r, w = len(self.roles), self.query.shape[-1], self.value.shape[-1]
        return {"query": (heads, d, r), "key": (heads, d, r), "value": (heads, d, w), "output": (heads, w, d)}


@dataclass(frozen=True)
class TokenNumbers:
    """All numbers of a token network. The first position holds the token V (its last row), called BOS, which the network adds."""

    tokens: Array  # (V + 1, d)
    positions: Array  # (n + 1, d)
    layers: tuple[TokenLayer, ...]
    unembedding: Array  # (d, classes)
    coordinates: tuple[str, ...]  # d names
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: token networks run in float32 or float64")
        d = len(self.coordinates)
        shapes: dict[str, tuple[int, ...]] = {
            "tokens": (self.tokens.shape[0], d),
            "positions": (self.positions.shape[0], d),
            "unembedding": (d, self.unembedding.shape[-1]),
        }
        for i, layer in enumerate(self.layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.shapes(d).items()}
        if any(type(name) is not str for name in self.coordinates) or not all(
            layer.roles for layer in self.layers
        ):
            raise InputError("every coordinate has a name, and every layer a head")
        for name, array in self._arrays().items():
            if array.shape != shapes[name] or min(array.shape) < 1:
                raise InputError(f"tensor {name!r} has shape {array.shape}: expected {shapes[name]}")
            self._check(name, array)

    def _check(self, name: str, array: Array) -> None:
        if not np.isfinite(array).all():
            raise InputError(f"tensor {name!r} contains NaN or infinity: use finite numbers")
        with np.errstate(over="ignore"):
            same = array.dtype == np.float64 and np.array_equal(array.astype(self.dtype), array)
        if not same:
            raise InputError(
                f"tensor {name!r} has numbers that {self.dtype} cannot represent: use smaller ones"
            )
        sizes = np.abs(array[array != 0])
        if sizes.size and sizes.min() < np.finfo(self.dtype).tiny:
            raise InputError(f"tensor {name!r} has subnormal numbers")

    def _arrays(self) -> dict[str, Array]:
        found = {"tokens": self.tokens, "positions": self.positions, "unembedding": self.unembedding}
        for i, layer in enumerate(self.layers):
            found |= {f"layers.{i}.{name}": getattr(layer, name) for name in MATRICES}
        return found

    def tensors(self) -> dict[str, Numbers]:
        """The arrays by name, in the dtype."""
        return {name: array.astype(self.dtype) for name, array in self._arrays().items()}

    def structure(self) -> dict[str, Any]:
        """Names and roles as JSON."""
        heads = [[[role.name, role.kind, role.node] for role in layer.roles] for layer in self.layers]
        return {"coordinates": list(self.coordinates), "heads": heads}

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor and of the structure."""
        found = {name: digest(name, array) for name, array in self.tensors().items()}
        return {**found, "structure": seal(self.structure())}

    @classmethod
    def of(
        cls, structure: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], dtype: str
    ) -> TokenNumbers:
        """The inverse of `tensors` and `structure`."""
        with_fields("the structure", structure, {"coordinates", "heads"})
        check_types(structure, {"coordinates": list, "heads": list})
        names = {"tokens", "positions", "unembedding"}
        names |= {f"layers.{i}.{name}" for i in range(len(structure["heads"])) for name in MATRICES}
        if set(tensors) != names or {a.dtype.name for a in tensors.values()} != {dtype}:
            raise FileError(f"it has the tensors {sorted(tensors)}: expected {sorted(names)} of {dtype}")
        wide = {name: array.astype(np.float64) for name, array in tensors.items()}
        layers = []
        for i, heads in enumerate(structure["heads"]):
            roles = tuple(HeadRole(name, kind, node) for name, kind, node in heads)
            q, k, v, o = (wide[f"layers.{i}.{name}"] for name in MATRICES)
            layers.append(TokenLayer(q, k, v, o, roles))
        ends = wide["tokens"], wide["positions"], tuple(layers), wide["unembedding"]
        return cls(*ends, tuple(structure["coordinates"]), dtype)


def program_to_json(program: TokenProgram) -> dict[str, Any]:
    """A token program as a JSON object."""
    return {
        "vocabulary": list(program.vocabulary),
        "length": program.length,
        "causal": program.causal,
        "nodes": [_node_json(node) for node in program.nodes],
        "names": list(program.names),
        "output": program.output,
    }


def program_from_json(record: object) -> TokenProgram:
    """Read the result of `program_to_json`."""
    body = with_fields("the program", record, _PROGRAM)
    check_types(body, {"vocabulary": list, "nodes": list, "names": list, "length": int, "causal": bool})
    nodes = tuple(_node(node) for node in body["nodes"])
    vocabulary, names = tuple(body["vocabulary"]), tuple(body["names"])
    return TokenProgram(vocabulary, body["length"], body["causal"], nodes, names, body["output"])


def rebuilt(program: TokenProgram) -> TokenProgram:
    """The same program, derived again from its JSON; raises `InputError` if the given object has other domains or is a subclass.

    A program keeps what it derived; replaced, that would give the classes of a network another meaning."""
    if type(program) is not TokenProgram:
        raise InputError(f"the program is a {type(program).__name__}: expected a TokenProgram")
    fresh = _from_text(json.dumps(program_to_json(program)))
    known = vars(program)
    same = set(known) <= {*(f.name for f in fields(TokenProgram)), "domains", *DERIVED, *CACHED}
    same = same and [(type(v), v) for v in _plain(program)] == [(type(v), v) for v in _plain(fresh)]
    same = same and repr(program.domains) == repr(fresh.domains)  # by their text: True == 1
    same = same and all(known[name] == getattr(fresh, name) for name in DERIVED if name in known)
    if not same:
        raise InputError("the program has other values than its nodes give: it was changed after it was made")
    return fresh


def _plain(program: TokenProgram) -> tuple[Any, ...]:
    kinds = tuple(type(node) for node in program.nodes)
    return program.vocabulary, program.length, program.causal, program.names, program.output, kinds


@lru_cache(maxsize=32)
def _from_text(text: str) -> TokenProgram:
    return program_from_json(json.loads(text))


def _node_json(node: Node) -> dict[str, Any]:
    body = {f.name: _listed(getattr(node, f.name)) for f in fields(node)}
    if "where" in body:
        where: Sequence[Predicate] = getattr(node, "where")  # noqa: B009
        body["where"] = [[p.key, p.query, _bits(p)] for p in where]
    return {"kind": type(node).__name__.lower(), **body}


def _bits(p: Predicate) -> list[str]:
    """The rows of a predicate as strings of 0 and 1."""
    return ["".join("01"[bool(x)] for x in row) for row in p.table]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _node(record: Any) -> Node:
    kind = KINDS.get(str(record.get("kind"))) if isinstance(record, dict) else None
    if kind is None:
        raise FileError(f"unknown node {record!r:.80}: expected one of {', '.join(KINDS)}")
    body = with_fields("a node", record, {"kind", *(f.name for f in fields(kind))})
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items() if name != "kind"}
    if "where" in found:
        found["where"] = tuple(_predicate(*entry) for entry in body["where"])
    node: Node = kind(**found)
    return node


def _predicate(key: Any, query: Any, rows: Any) -> Predicate:
    if set("".join(rows)) - set("01"):
        raise FileError("a predicate is rows of 0 and 1")
    return Predicate(key, query, tuple(tuple(x == "1" for x in row) for row in rows))
