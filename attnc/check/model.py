"""The verdict on a converted model: every head, window and block is proved again, from plain numbers or from the files of a
directory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnc import functions
from attnc.arithmetic import probe_network
from attnc.check.block import BlockClaim, Map, block_program, check_block
from attnc.check.files import Directory, read_json
from attnc.check.head import check_head
from attnc.check.values import CheckError, HeadErrors, SquareErrors
from attnc.check.window import window_error
from attnc.domain import Array, Box, Normed
from attnc.errors import AttncError, CertificateError, FileError
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up, unsealed
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.verdict import Verdict
from attnc.records.window_numbers import window_of

VERSION = 1


@dataclass(frozen=True, eq=False)
class BlockHead:
    """The neurons that use a head (None: all), its numbers and its certificate."""

    neurons: Any  # (k,) whole numbers
    numbers: HeadNumbers
    certificate: Certificate | None


@dataclass(frozen=True, eq=False)
class Block:
    """A feed-forward block as plain numbers, and what is claimed of it; `roundings` by engine."""

    name: str
    function: str
    dtype: str
    first: Map
    second: Map
    up: Map | None
    domain: Box | Normed
    heads: Sequence[BlockHead]
    square: BlockHead | None
    scale: Array | None  # powers of two, (neurons,)
    radius: Array | None
    approximation: float
    roundings: Mapping[str, float]
    products: float

    @property
    def certificates(self) -> tuple[Certificate | None, ...]:
        """Those of its heads, the square's last."""
        square = () if self.square is None else (self.square,)
        return tuple(head.certificate for head in (*self.heads, *square))

    @property
    def bound(self) -> float:
        return round_up(self.approximation + max(self.roundings.values()))


@dataclass
class Proofs:
    """What was proved already: blocks share heads."""

    heads: dict[object, Verdict] = field(default_factory=dict)
    windows: dict[object, float] = field(default_factory=dict)

    def head(self, head: BlockHead, function: str) -> Verdict:
        """The verdict on a head that should approximate the function."""
        about = None if head.certificate is None else head.certificate.facts.get("function")
        if head.certificate is None or about != function:
            return Verdict(Status.UNKNOWN, f"its certificate is about {about}, not about {function}")
        key = (head.certificate.seal(), *head.numbers.digests().values())
        if key not in self.heads:
            self.heads[key] = check_head(head.numbers, head.certificate)
        return self.heads[key]

    def executed(self, head: BlockHead, engine: str) -> float:
        """At least |executed - f| on the domain of the certificate, which was proved."""
        certificate = head.certificate
        assert certificate is not None
        window = window_of(head.numbers) if engine == "closed-form" else None
        if window is None:
            parts = math.nextafter(certificate.approximation + certificate.rounding, math.inf)
            return min(certificate.bound, parts)
        key = (window, certificate.facts["function"], certificate.interval)
        if key not in self.windows:
            f = functions.get(certificate.facts["function"])
            self.windows[key] = window_error(window, f, certificate.interval)
        return self.windows[key]


def check_heads(block: Block, proofs: Proofs) -> Verdict | None:
    """The verdict on the first head of a block that is not proved, or None."""
    parts = [(head, block.function) for head in block.heads]
    parts += [] if block.square is None else [(block.square, "square")]
    for head, function in parts:
        verdict = proofs.head(head, function)
        if not verdict:
            return replace(verdict, reason=f"a head of {function}: {verdict.reason}", name=block.name)
    if block.square is not None:
        assert block.square.certificate is not None
        domain = block.square.certificate.interval
        if not domain.lo <= -1 <= 1 <= domain.hi:
            return _unknown(block, "the head of the square is not proved on [-1, 1]")
    return None


def check_engine(block: Block, engine: str, proofs: Proofs) -> Verdict:
    """The bounds of a block whose heads were proved, as one engine executes them."""
    try:
        verdict = _check_engine(block, engine, proofs)
    except CheckError as problem:
        verdict = _unknown(block, str(problem))
    reason = verdict.reason if verdict else f"engine {engine}: {verdict.reason}"
    return replace(verdict, reason=reason, name=block.name)


def _check_engine(block: Block, engine: str, proofs: Proofs) -> Verdict:
    neurons, squares = len(block.first[1]), None
    errors = HeadErrors(*(np.full(neurons, np.nan) for _ in range(4)))
    for head in block.heads:
        part = slice(None) if head.neurons is None else head.neurons
        assert head.certificate is not None
        errors.lo[part], errors.hi[part] = head.certificate.interval.lo, head.certificate.interval.hi
        errors.approximation[part] = head.certificate.approximation
        errors.executed[part] = proofs.executed(head, engine)
    if block.square is not None and block.scale is not None and block.radius is not None:
        assert block.square.certificate is not None
        approximation = block.square.certificate.approximation
        squares = SquareErrors(
            block.scale, block.radius, approximation, proofs.executed(block.square, engine)
        )
    program = block_program(functions.get(block.function), block.first, block.second, block.up)
    claim = BlockClaim(block.approximation, block.roundings[engine], block.products)
    return check_block(program, block.domain, errors, squares, claim, block.dtype)


def check_numbers(block: Block, proofs: Proofs) -> Verdict:
    """The verdict on the claims of a block, from its numbers alone."""
    broken = probe_network(block.dtype)
    if broken is not None:
        return _unknown(block, broken)
    failed = check_heads(block, proofs)
    if failed is not None:
        return failed
    for engine in block.roundings:
        verdict = check_engine(block, engine, proofs)
        if not verdict:
            return verdict
    reason = f"the bounds hold in every output, for {len(block.roundings)} engines"
    return Verdict(Status.PROVED, reason, block.bound, name=block.name)


def _unknown(block: Block, reason: str) -> Verdict:
    return Verdict(Status.UNKNOWN, reason, block.bound, name=block.name)


def summary(verdicts: Sequence[Verdict], proofs: Proofs) -> Verdict:
    """One verdict on a model: proved if every block is."""
    bound, cells = max(v.bound or 0.0 for v in verdicts), sum(v.cells for v in proofs.heads.values())
    for status in (Status.REFUTED, Status.UNKNOWN):
        for v in verdicts:
            if v.status is status:
                reason = f"{v.name}: {v.reason}"
                return Verdict(status, reason, bound, v.input, v.error, cells, "", tuple(verdicts))
    count = f"{len(verdicts)} block{'s' * (len(verdicts) > 1)}, {len(proofs.heads)} different heads"
    reason = f"the bounds hold: {count}, {len(proofs.windows)} windows"
    return Verdict(Status.PROVED, reason, bound, cells=cells, children=tuple(verdicts))


def model_problem(model: Certificate) -> str | None:
    """Why the terms of a model are not those of its blocks, or None."""
    if not model.children or any(block.subject != "block" for block in model.children):
        return "the certificate has no blocks"
    for term in ("approximation", "rounding", "bound"):
        largest = max(getattr(block, term) for block in model.children)
        if getattr(model, term) != largest:
            return f"{term} of the model is {getattr(model, term):g}, that of its blocks {largest:g}"
    return None


def check_directory(path: str | os.PathLike[str], proofs: Proofs | None = None) -> Verdict:
    """The verdict on the directory of a converted model, from config.json and the safetensors files alone."""
    where, proofs = Path(path), proofs or Proofs()
    record = _record(where)
    tensors, found = Directory(where), []
    try:
        model = Certificate.from_json(record["report"]["certificate"])
        reason = model_problem(model)
        if reason is not None:
            raise ValueError(reason)
        entries = {entry["name"]: entry for entry in record["blocks"]}
        for block in model.parts("block"):
            entry = next((e for n, e in entries.items() if f".{block.name}".endswith(f".{n}")), None)
            found.append(_verdict(block, entry, float(model.facts["requested"]), tensors, proofs))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise _damaged(where, problem) from problem
    if not found:
        return Verdict(Status.UNKNOWN, "the record has no blocks")
    return summary(found, proofs)


def _record(where: Path) -> dict[str, Any]:
    """The record of config.json, if its seal fits."""
    record = read_json(where / "config.json").get("attnc")
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise FileError(
            f"{where} is not a model that attnc converted: its config.json has no 'attnc' record of version {VERSION}"
        )
    try:
        return unsealed(record, "the record")
    except CertificateError as problem:
        raise _damaged(where, problem) from problem


def _damaged(where: Path, problem: Exception) -> CertificateError:
    return CertificateError(f"the 'attnc' record in {where / 'config.json'} is damaged or edited: {problem}")


def _verdict(
    claim: Certificate,
    entry: Mapping[str, Any] | None,
    requested: float,
    tensors: Directory,
    proofs: Proofs,
) -> Verdict:
    if claim.bound != round_up(claim.approximation + claim.rounding):
        raise ValueError(f"the bound of {claim.name} is not the sum of its terms")
    reason = None
    if entry is None:
        reason = "it has no record"
    elif not claim.proved:
        reason = f"its status is {claim.status}: its domain was not proved"
    elif not claim.approximation <= requested:
        reason = f"approximation is {claim.approximation:g}, above the requested {requested:g}"
    elif claim.rounding not in claim.facts["roundings"].values():
        reason = f"rounding is {claim.rounding:g}, another than that of each engine"
    if entry is None or reason is not None:
        return Verdict(Status.UNKNOWN, str(reason), claim.bound, name=claim.name)
    try:
        block = _read_block(claim, entry, tensors)
        if block.certificates != claim.children or block.domain != claim.holds_for:
            reason = "its heads or its domain are not those of its certificate"
            return Verdict(Status.UNKNOWN, reason, claim.bound, name=claim.name)
        return check_numbers(block, proofs)
    except (CertificateError, FileError):
        raise
    except AttncError as problem:
        return Verdict(Status.UNKNOWN, str(problem), claim.bound, name=claim.name)


def _read_block(claim: Certificate, entry: Mapping[str, Any], tensors: Directory) -> Block:
    stored = {role: tensors.find(name, role, known) for role, (name, known) in entry["tensors"].items()}
    first, second, up = (_map(role, stored, entry["transposed"]) for role in ("first", "second", "up"))
    assert first is not None and second is not None
    gated = entry["square"] is not None
    inside = f"{entry['name']}.activation" if gated else entry["name"]
    groups = len(entry["activation"])
    heads = [
        BlockHead(stored.get(f"neurons_{g}"), *_read_head(f"{inside}.{g}", record, tensors))
        for g, record in enumerate(entry["activation"])
    ]
    if sum(head.neurons is None for head in heads) != (groups == 1):
        raise ValueError(f"the neurons of {entry['name']} are not assigned to its heads")
    square = (
        BlockHead(None, *_read_head(f"{entry['name']}.square.0", entry["square"][0], tensors))
        if gated
        else None
    )
    scale, radius = (
        np.exp2(stored[role].astype(np.float64)) if gated else None for role in ("scale", "radius")
    )
    return Block(
        claim.name, claim.facts["activation"], claim.dtype, first, second, up, _domain(claim, entry["norm"], stored), heads,
        square, scale, radius, claim.approximation, dict(claim.facts["roundings"]), claim.facts["products"],
    )  # fmt: skip


def _map(role: str, stored: Mapping[str, Any], transposed: Sequence[str]) -> Map | None:
    if f"{role}.weight" not in stored:
        return None
    W = stored[f"{role}.weight"].astype(np.float64)
    W = W.T.copy() if role in transposed else W
    return W, stored.get(f"{role}.bias", np.zeros(len(W))).astype(np.float64)


def _domain(claim: Certificate, norm: Mapping[str, Any] | None, stored: Mapping[str, Any]) -> Box | Normed:
    """The outputs of the norm in front; without a norm, the box of the certificate."""
    return claim.box if norm is None else _normed(norm, stored)


def _normed(norm: Mapping[str, Any], stored: Mapping[str, Any]) -> Normed:
    """gain∘y + shift with gain = weight, or 1 + weight summed in the dtype `one_plus`."""
    d = norm["features"]
    gain = stored.get("norm.weight", np.ones(d))
    if norm["one_plus"] is not None:
        gain = gain.astype(norm["one_plus"]) + np.ones((), norm["one_plus"])
    return Normed(norm["kind"] == "layer", gain, stored.get("norm.bias", np.zeros(d)))


def _read_head(prefix: str, record: Mapping[str, Any], tensors: Directory) -> tuple[HeadNumbers, Certificate]:
    certificate = Certificate.from_json(record["certificate"])
    arrays = {name: tensors.find(f"{prefix}.{name}", name, certificate.digests[name]) for name in TENSORS}
    numbers = {name: array.astype(np.float64) for name, array in arrays.items()}
    return HeadNumbers(**numbers, dtype=certificate.dtype), certificate
