"""The verdict on a converted model: every head, window and block is proved again, from plain numbers or from the files of a
directory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnc import functions
from attnc.arithmetic import probe_network
from attnc.check.block import BlockClaim, Map, block_program, check_block
from attnc.check.head import check_head
from attnc.check.norm import check_norm
from attnc.check.values import CheckError, HeadErrors, SquareErrors
from attnc.check.window import window_error
from attnc.domain import Ball, Box, Normed
from attnc.errors import AttncError, CertificateError, FileError
from attnc.program import Program
from attnc.program.step import Numbers
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import DAMAGE, round_up, unsealed
from attnc.records.files import Directory, read_json
from attnc.records.layers import Heads
from attnc.records.numbers import QUADRATIC, TENSORS, HeadNumbers, QuadraticNumbers
from attnc.records.window_numbers import closed_form

VERSION = 1


@dataclass(frozen=True, eq=False)
class Block:
    """A converted block as plain numbers, and its certificate, whose children are those of the heads, the square's last."""

    claim: Certificate
    program: Program
    domain: Box | Normed | None
    heads: Heads
    square: HeadNumbers | None = None  # of a gated block, with its powers of two
    scale: Numbers | None = None  # log2, (neurons,)
    radius: Numbers | None = None

    def certified(self) -> list[tuple[HeadNumbers, Certificate, str]]:
        """Every head with its certificate and the function that it should approximate."""
        named = [(head, self.claim.facts["activation"]) for _, head in self.heads]
        named += [] if self.square is None else [(self.square, "square")]
        if len(self.claim.children) != len(named):
            raise CheckError(f"it has {len(named)} heads, its certificate {len(self.claim.children)}")
        return [(head, c, name) for (head, name), c in zip(named, self.claim.children, strict=True)]


@dataclass(frozen=True, eq=False)
class NormNumbers:
    """A converted norm as plain numbers, its certificate, and its gain and shift."""

    claim: Certificate
    numbers: QuadraticNumbers
    domain: Normed


@dataclass
class Proofs:
    """What was proved already: blocks share heads."""

    heads: dict[object, Verdict] = field(default_factory=dict)
    windows: dict[object, float] = field(default_factory=dict)

    def head(self, numbers: HeadNumbers, certificate: Certificate) -> Verdict:
        key = (certificate.seal(), *numbers.digests().values())
        if key not in self.heads:
            self.heads[key] = check_head(numbers, certificate)
        return self.heads[key]

    def executed(self, numbers: HeadNumbers, certificate: Certificate, engine: str) -> float:
        """At least |executed - f| on the domain of the certificate, which was proved."""
        function = certificate.facts["function"]
        window = closed_form(numbers, function) if engine == "closed-form" else None
        if window is None:
            parts = math.nextafter(certificate.approximation + certificate.rounding, math.inf)
            return min(certificate.bound, parts)
        key = (window, function, certificate.interval)
        if key not in self.windows:
            self.windows[key] = window_error(window, functions.get(function), certificate.interval)
        return self.windows[key]


Attack = Callable[[Block, str, Proofs], Verdict | None]


def check_numbers(block: Block, requested: float, proofs: Proofs, attack: Attack | None = None) -> Verdict:
    """The verdict on the certificate of a block; `attack` executes the running block under one engine."""
    claim = block.claim
    try:
        _check_claim(block, requested)
        for numbers, certificate, function in block.certified():
            verdict = proofs.head(numbers, certificate)
            if certificate.facts.get("function") != function:
                raise CheckError(f"the certificate of a head of {function} is about another function")
            if not verdict:
                return replace(verdict, reason=f"a head of {function}: {verdict.reason}", name=claim.name)
        for engine in claim.facts["roundings"]:
            refuted = None if attack is None else attack(block, engine, proofs)
            verdict = _check_engine(block, engine, proofs) if refuted is None else refuted
            if not verdict:
                return replace(verdict, reason=f"engine {engine}: {verdict.reason}", name=claim.name)
    except (CheckError, AttncError, *DAMAGE) as problem:
        return Verdict(Status.UNKNOWN, str(problem), claim.bound, name=claim.name)
    reason = f"the bounds hold in every output, for {len(claim.facts['roundings'])} engines"
    return Verdict(Status.PROVED, reason, claim.bound, name=claim.name)


def _check_claim(block: Block, requested: float) -> None:
    """Raise `CheckError` if a certificate contradicts itself, or is not about the domain of the block."""
    claim = block.claim
    if not claim.proved:
        raise CheckError(f"its status is {claim.status}: the domain is not proved, so neither is the bound")
    if block.domain is None or block.domain != claim.holds_for:
        raise CheckError(f"its certificate holds for {claim.holds_for}, its domain is {block.domain}")
    if not claim.approximation <= requested:
        raise CheckError(f"approximation is {claim.approximation:g}, above the requested {requested:g}")
    if claim.bound != round_up(claim.approximation + claim.rounding):
        raise CheckError(f"its bound {claim.bound:g} is not the sum of its terms")
    if claim.rounding not in claim.facts["roundings"].values():
        raise CheckError(f"rounding is {claim.rounding:g}, which is not that of an engine")
    broken = probe_network(claim.dtype)
    if broken is not None:
        raise CheckError(f"this machine does not satisfy the assumptions of certificates: {broken}")


def _check_engine(block: Block, engine: str, proofs: Proofs) -> Verdict:
    """The bounds of a block whose heads were proved, as one engine executes them."""
    claim, squares = block.claim, None
    errors = HeadErrors(*np.full((4, *block.program.shapes[1]), np.nan))
    for (neurons, numbers), head in zip(block.heads, claim.children, strict=False):
        part = slice(None) if neurons is None else neurons
        errors.lo[part], errors.hi[part] = head.interval.lo, head.interval.hi
        errors.approximation[part] = head.approximation
        errors.executed[part] = proofs.executed(numbers, head, engine)
    if block.square is not None and block.scale is not None and block.radius is not None:
        square = claim.children[-1]
        if not square.interval.lo <= -1 <= 1 <= square.interval.hi:
            raise CheckError("the head of the square is not proved on [-1, 1]")
        scale, radius = (np.exp2(k.astype(np.float64)) for k in (block.scale, block.radius))
        multiplied = engine == "closed-form"
        executed = math.inf if multiplied else proofs.executed(block.square, square, engine)
        squares = SquareErrors(scale, radius, square.approximation, executed, multiplied)
    facts = claim.facts
    terms = BlockClaim(claim.approximation, facts["roundings"][engine], facts["products"], facts["interval"])
    assert block.domain is not None
    return check_block(block.program, block.domain, errors, squares, terms, claim.dtype)


def summary(verdicts: Sequence[Verdict], proofs: Proofs) -> Verdict:
    """One verdict on a model: proved if every block is."""
    bound, cells = max(v.bound or 0.0 for v in verdicts), sum(v.cells for v in proofs.heads.values())
    failed = [v for status in (Status.REFUTED, Status.UNKNOWN) for v in verdicts if v.status is status]
    if failed:
        reason = f"{failed[0].name}: {failed[0].reason}"
        return replace(failed[0], reason=reason, bound=bound, cells=cells, name="", children=tuple(verdicts))
    count = f"{len(verdicts)} part{'s' * (len(verdicts) > 1)}, {len(proofs.heads)} different heads"
    reason = f"the bounds hold: {count}, {len(proofs.windows)} windows"
    return Verdict(Status.PROVED, reason, bound, cells=cells, children=tuple(verdicts))


def model_problem(model: Certificate) -> str | None:
    """Why the terms of a model are not those of its blocks, or None."""
    if not model.children or any(
        part.subject not in ("block", "norm", "activation") for part in model.children
    ):
        return "the certificate has no blocks"
    dtypes = {block.dtype for block in model.children}
    if model.holds_for is not None or model.dtype != (dtypes.pop() if len(dtypes) == 1 else "mixed"):
        return f"the model is stated to be {model.dtype} and to hold for {model.holds_for}"
    for term in ("approximation", "rounding", "bound"):
        largest = max(getattr(block, term) for block in model.children)
        if getattr(model, term) != largest:
            return f"{term} of the model is {getattr(model, term):g}, that of its blocks {largest:g}"
    return None


def check_directory(path: str | os.PathLike[str], proofs: Proofs | None = None) -> Verdict:
    """The verdict on the directory of a converted model, from config.json and the safetensors files alone."""
    where, proofs = Path(path), proofs or Proofs()
    model, record = read_record(where)
    with _intact(where):
        reason = model_problem(model)
        if reason is not None:
            raise ValueError(reason)
        blocks, norms = read_blocks(where, model, record).values(), read_norms(where, model, record).values()
        outside = read_activations(where, model, record).values()
        read = {id(block.claim) for block in blocks} | {id(norm.claim) for norm in norms}
        read |= {id(claim) for claim, _ in outside}
        missing = [claim.name for claim in model.children if id(claim) not in read]
        if missing:
            raise ValueError(f"{missing[0]} has no record")
        requested = float(model.facts["requested"])
        verdicts = [check_numbers(block, requested, proofs) for block in blocks]
        verdicts += [check_norm(n.claim, n.numbers, n.domain.gain, n.domain.shift, requested) for n in norms]
        verdicts += [check_activation(claim, numbers, requested, proofs) for claim, numbers in outside]
        return summary(verdicts, proofs)


@contextmanager
def _intact(where: Path, kinds: tuple[type[Exception], ...] = DAMAGE) -> Iterator[None]:
    """Report what cannot be read of a record as damage."""
    try:
        yield
    except kinds as problem:
        reason = f"the 'attnc' record in {where / 'config.json'} is damaged or edited: {problem}"
        raise CertificateError(reason) from problem


def read_record(where: Path) -> tuple[Certificate, dict[str, Any]]:
    """The certificate of a converted model and its record in config.json, whose seals fit."""
    record = read_json(where / "config.json").get("attnc")
    if not isinstance(record, dict) or repr(record.get("version")) != repr(VERSION):
        raise FileError(
            f"{where} is not a model that attnc converted: its config.json has no 'attnc' record of version {VERSION}"
        )
    with _intact(where, (*DAMAGE, CertificateError)):
        record = unsealed(record, "the record")
        return Certificate.from_json(record["report"]["certificate"]), record


def read_blocks(where: Path, model: Certificate, record: Mapping[str, Any]) -> dict[str, Block]:
    """The blocks of a record, by their names there; every tensor must have the digest that is recorded of it."""
    tensors = Directory(where)
    with _intact(where):
        return {
            entry["name"]: _read_block(_claim(model, "block", entry["name"]), entry, tensors)
            for entry in record["blocks"]
            if "transposed" in entry
        }


def read_norms(where: Path, model: Certificate, record: Mapping[str, Any]) -> dict[str, NormNumbers]:
    """The norms of a record, by their names there."""
    tensors = Directory(where)
    with _intact(where):
        return {
            entry["name"]: _read_norm(_claim(model, "norm", entry["name"]), entry, tensors)
            for entry in record["blocks"]
            if "epsilon" in entry
        }


def read_activations(
    where: Path, model: Certificate, record: Mapping[str, Any]
) -> dict[str, tuple[Certificate, HeadNumbers]]:
    """The certificates and heads of the activations outside of blocks, by their names in the record."""
    tensors = Directory(where)
    with _intact(where):
        names = [entry["name"] for entry in record["blocks"] if entry.get("kind") == "activation"]
        claims = {name: _claim(model, "activation", name) for name in names}
        return {n: (c, _read_head(f"{n}.0", c.children[0], tensors)) for n, c in claims.items()}


def check_activation(claim: Certificate, numbers: HeadNumbers, requested: float, proofs: Proofs) -> Verdict:
    """The verdict on an activation outside of blocks: that on its head, and the terms follow from it."""

    def unknown(reason: str) -> Verdict:
        return Verdict(Status.UNKNOWN, reason, claim.bound, name=claim.name)

    facts, head = claim.facts, claim.children[0] if len(claim.children) == 1 else None
    if head is None or not claim.proved or head.facts.get("function") != facts["activation"]:
        return unknown("its certificate is not about one proved head of its function")
    verdict = proofs.head(numbers, head)
    if not verdict:
        return replace(verdict, name=claim.name)
    terms = (claim.approximation, claim.bound, claim.holds_for, claim.dtype)
    stated = (head.approximation, round_up(claim.approximation + claim.rounding), head.interval, head.dtype)
    if (
        terms != stated
        or not claim.approximation <= requested
        or claim.rounding not in facts["roundings"].values()
    ):
        return unknown("its terms are not those of its head")
    for engine, rounding in facts["roundings"].items():
        if engine not in ("softmax", "closed-form") or not proofs.executed(numbers, head, engine) <= rounding:
            return unknown(f"rounding ({engine}) is larger when derived again")
    return Verdict(Status.PROVED, "the bounds hold", claim.bound, name=claim.name)


def _claim(model: Certificate, subject: str, name: str) -> Certificate:
    claims = [part for part in model.children if part.subject == subject and same_place(part.name, name)]
    if not claims:
        raise ValueError(f"{name} has no certificate")
    return min(claims, key=lambda claim: abs(len(claim.name) - len(name)))


def _read_norm(claim: Certificate, entry: Mapping[str, Any], tensors: Directory) -> NormNumbers:
    stored = {role: tensors.find(name, role, known) for role, (name, known) in entry["tensors"].items()}
    slope, intercept, value = (stored[role].astype(np.float64) for role in QUADRATIC)
    numbers = QuadraticNumbers(slope, intercept, value, entry["features"], entry["epsilon"], 0.5, claim.dtype)
    tensors_of = {f"norm.{role}": stored[role] for role in ("weight", "bias") if role in stored}
    if not isinstance(claim.holds_for, Ball) or entry["most"] * entry[
        "features"
    ] > claim.holds_for.radius**2 * (1 + 1e-12):
        raise ValueError(f"{claim.name} accepts larger tokens than its certificate holds for")
    return NormNumbers(claim, numbers, _normed(entry, tensors_of))


def same_place(one: str, other: str) -> bool:
    """Whether both may name one block: a part was converted and the whole saved, or the other way round."""
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def _read_block(claim: Certificate, entry: Mapping[str, Any], tensors: Directory) -> Block:
    stored = {role: tensors.find(name, role, known) for role, (name, known) in entry["tensors"].items()}
    maps = [
        _map(role, stored, entry["transposed"])
        for role in ("first", "second", "up")
        if f"{role}.weight" in stored
    ]
    norm, name, gated = entry["norm"], entry["name"], len(maps) == 3
    domain = claim.box if norm is None else _normed(norm, stored)
    program = block_program(functions.get(claim.facts["activation"]), *maps)
    count = len(claim.children) - gated
    inside = f"{name}.activation" if gated else name
    heads = [
        (stored.get(f"neurons_{g}"), _read_head(f"{inside}.{g}", claim.children[g], tensors))
        for g in range(count)
    ]
    if sum(neurons is None for neurons, _ in heads) != (count == 1):
        raise ValueError(f"the neurons of {name} are not assigned to its heads")
    if not gated:
        return Block(claim, program, domain, heads)
    square = _read_head(f"{name}.product.square.0", claim.children[-1], tensors)
    return Block(claim, program, domain, heads, square, stored["scale"], stored["radius"])


def _map(role: str, stored: Mapping[str, Any], transposed: Sequence[str]) -> Map:
    W = stored[f"{role}.weight"].astype(np.float64)
    W = W.T.copy() if role in transposed else W
    return W, stored.get(f"{role}.bias", np.zeros(len(W))).astype(np.float64)


def _normed(norm: Mapping[str, Any], stored: Mapping[str, Any]) -> Normed:
    """gain∘y + shift with gain = weight, or 1 + weight summed in the dtype `one_plus`."""
    d = norm["features"]
    gain = stored.get("norm.weight", np.ones(d))
    if norm["one_plus"] is not None:
        gain = gain.astype(norm["one_plus"]) + np.ones((), norm["one_plus"])
    return Normed(norm["kind"] == "layer", gain, stored.get("norm.bias", np.zeros(d)))


def _read_head(prefix: str, certificate: Certificate, tensors: Directory) -> HeadNumbers:
    arrays = {name: tensors.find(f"{prefix}.{name}", name, certificate.digests[name]) for name in TENSORS}
    numbers = {name: array.astype(np.float64) for name, array in arrays.items()}
    return HeadNumbers(**numbers, dtype=certificate.dtype)
