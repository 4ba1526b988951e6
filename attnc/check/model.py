"""The verdict on a converted model: every head, window, block and norm is proved again, from plain numbers or from the files of a
directory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from attnc import functions
from attnc.check.block import BlockClaim, Map, block_program, check_block
from attnc.check.head import check_head, check_terms
from attnc.check.norm import check_norm
from attnc.check.values import CheckError, SquareErrors, head_errors, require, square_errors
from attnc.check.window import window_error
from attnc.domain import Ball, Box, Normed
from attnc.errors import AttncError, CertificateError, FileError
from attnc.program import Program
from attnc.program.step import Numbers
from attnc.records.certificate import HALF, Certificate, Status, Verdict
from attnc.records.fields import DAMAGE, unsealed
from attnc.records.files import Directory, read_json
from attnc.records.layers import Heads
from attnc.records.numbers import QUADRATIC, TENSORS, HeadNumbers, QuadraticNumbers, digest
from attnc.records.window_numbers import closed_form

VERSION = 2
_READ = ("1", "2")  # records of version 1 do not say what the modelling file runs
_EXPERT_MAPS = ("first.weight", "second.weight", "up.weight")  # (experts, outputs, inputs)


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
    others: tuple[Program, ...] = ()  # of the other experts, which share the heads
    subject: ClassVar[str] = "block"


@dataclass(frozen=True, eq=False)
class NormNumbers:
    """A converted norm as plain numbers, its certificate, and its gain and shift."""

    claim: Certificate
    numbers: QuadraticNumbers
    domain: Normed
    subject: ClassVar[str] = "norm"


@dataclass(frozen=True, eq=False)
class Activation:
    """An activation outside of blocks: its certificate, and the numbers of its one head."""

    claim: Certificate
    numbers: HeadNumbers
    subject: ClassVar[str] = "activation"


Part = Block | NormNumbers | Activation


@dataclass
class Proofs:
    """What was proved already: blocks share heads."""

    heads: dict[object, Verdict] = field(default_factory=dict)
    windows: dict[object, float] = field(default_factory=dict)
    blocks: dict[object, Verdict] = field(default_factory=dict)

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

    def block(self, block: Block, key: object, engine: str) -> Verdict:
        """The bounds of a block whose heads were proved, as one engine executes them. The files of a directory and the model
        that is built of them have the same numbers: `key` stands for them."""
        if (key, engine) not in self.blocks:
            self.blocks[key, engine] = _check_engine(block, engine, self)
        return self.blocks[key, engine]


Attack = Callable[[Block, str, Proofs], Verdict | None]


def check_part(part: Part, requested: float, proofs: Proofs, attack: Attack | None = None) -> Verdict:
    """The verdict on the certificate of a part; `attack` executes a running block under one engine."""
    claim = part.claim
    try:
        check_terms(claim, part.subject, requested)
        if isinstance(part, Block):
            _check_block(part, proofs, attack)
        elif isinstance(part, NormNumbers):
            check_norm(claim, part.numbers, part.domain)
        else:
            _check_activation(claim, part.numbers, proofs)
    except CheckError as problem:
        return problem.verdict(claim.bound, name=claim.name)
    except (AttncError, *DAMAGE) as problem:
        return Verdict(Status.UNKNOWN, str(problem), claim.bound, name=claim.name)
    if claim.dtype in HALF:
        reason = f"the approximation holds in every output, in exact arithmetic; rounding in {claim.dtype} is not claimed"
        return Verdict(Status.PROVED, reason, claim.approximation, name=claim.name, exact=True)
    reason = f"the bounds hold in every output, for {len(claim.facts['roundings'])} engines"
    return Verdict(Status.PROVED, reason, claim.bound, name=claim.name)


def _check_block(block: Block, proofs: Proofs, attack: Attack | None) -> None:
    claim = block.claim
    if block.domain is None or block.domain != claim.holds_for:
        raise CheckError(f"its certificate holds for {claim.holds_for}, its domain is {block.domain}")
    named = [(head, claim.facts["activation"]) for _, head in block.heads]
    named += [] if block.square is None else [(block.square, "square")]
    if len(claim.children) != len(named):
        raise CheckError(f"it has {len(named)} heads, its certificate {len(claim.children)}")
    for (numbers, function), certificate in zip(named, claim.children, strict=True):
        if certificate.facts.get("function") != function:
            raise CheckError(f"the certificate of a head of {function} is about another function")
        require(proofs.head(numbers, certificate), f"a head of {function}")
    key = _key(block)
    for engine in ("softmax", "closed-form") if claim.dtype in HALF else claim.facts["roundings"]:
        refuted = None if attack is None else attack(block, engine, proofs)
        verdict = proofs.block(block, key, engine) if refuted is None else refuted
        require(verdict, f"engine {engine}")


def _key(block: Block) -> object:
    """Digests of all that the proof of a block reads; its domain is that of the certificate."""
    programs = (block.program, *block.others)
    arrays = {
        f"{i} {j} {name}": array
        for i, program in enumerate(programs)
        for j, step in enumerate(program.steps)
        for name, array in step.tensors().items()
    }
    arrays |= {f"neurons {g}": own for g, (own, _) in enumerate(block.heads) if own is not None}
    arrays |= {n: a for n, a in (("scale", block.scale), ("radius", block.radius)) if a is not None}
    numbers = [head for _, head in block.heads] + ([] if block.square is None else [block.square])
    steps = tuple(tuple((step.kind, step.inputs) for step in program.steps) for program in programs)
    heads = tuple((*head.digests().values(), head.dtype) for head in numbers)
    return block.claim.seal(), steps, heads, tuple(digest(name, array) for name, array in arrays.items())


def _check_engine(block: Block, engine: str, proofs: Proofs) -> Verdict:
    """The bounds of a block whose heads were proved, as one engine executes them."""
    claim, squares = block.claim, None
    own = claim.children[: len(block.heads)]
    executed = [proofs.executed(n, c, engine) for (_, n), c in zip(block.heads, own, strict=True)]
    errors = head_errors(block.heads, own, executed, block.program.shapes[1])
    if block.square is not None and block.scale is not None and block.radius is not None:
        square, multiplied = claim.children[-1], engine == "closed-form"
        error = math.inf if multiplied else proofs.executed(block.square, square, engine)
        squares = square_errors(square, (block.scale, block.radius), error, multiplied)
    elif len(block.program.steps) > 3:  # the product is a multiplication
        ones = np.ones(block.program.shapes[1])
        squares = SquareErrors(ones, ones, 0.0, 0.0, multiplied=True)
    facts = claim.facts
    rounding = None if claim.dtype in HALF else facts["roundings"][engine]
    terms = BlockClaim(claim.approximation, rounding, facts["products"], facts["interval"])
    assert block.domain is not None
    for program in (block.program, *block.others):
        verdict = check_block(program, block.domain, errors, squares, terms, _executed(claim))
        if not verdict:
            break
    return verdict


def _executed(claim: Certificate) -> str:
    """The dtype in which heads run."""
    return "float32" if claim.dtype in HALF else claim.dtype


def _check_activation(claim: Certificate, numbers: HeadNumbers, proofs: Proofs) -> None:
    """The terms follow from those of the head."""
    facts, (head,) = claim.facts, claim.children
    if head.facts.get("function") != facts["activation"]:
        raise CheckError("its certificate is not about a head of its function")
    require(proofs.head(numbers, head), f"the head of {facts['activation']}")
    terms = (claim.approximation, claim.holds_for, _executed(claim))
    if terms != (head.approximation, head.interval, head.dtype):
        raise CheckError("its terms are not those of its head")
    for engine, rounding in facts["roundings"].items():
        if engine not in ("softmax", "closed-form") or not proofs.executed(numbers, head, engine) <= rounding:
            raise CheckError(f"rounding ({engine}) is larger when derived again")


def summary(verdicts: Sequence[Verdict], proofs: Proofs) -> Verdict:
    """One verdict on a model: proved if every block is."""
    bound, cells = max(v.bound or 0.0 for v in verdicts), sum(v.cells for v in proofs.heads.values())
    failed = [v for status in (Status.REFUTED, Status.UNKNOWN) for v in verdicts if v.status is status]
    if failed:
        reason = f"{failed[0].name}: {failed[0].reason}"
        return replace(failed[0], reason=reason, bound=bound, cells=cells, name="", children=tuple(verdicts))
    count = f"{len(verdicts)} part{'s' * (len(verdicts) > 1)}, {len(proofs.heads)} different heads"
    exact = any(verdict.exact for verdict in verdicts)
    what = "the approximation holds, in exact arithmetic alone" if exact else "the bounds hold"
    reason = f"{what}: {count}, {len(proofs.windows)} closed forms"
    return Verdict(Status.PROVED, reason, bound, cells=cells, children=tuple(verdicts), exact=exact)


def model_problem(model: Certificate) -> str | None:
    """Why the terms of a model are not those of its blocks, or None."""
    subjects = {part.subject for part in model.children}
    if not subjects or not subjects <= {"block", "norm", "activation"}:
        return "the certificate has no blocks"
    dtypes = {block.dtype for block in model.children}
    if model.holds_for is not None or model.dtype != (dtypes.pop() if len(dtypes) == 1 else "mixed"):
        return f"the model is stated to be {model.dtype} and to hold for {model.holds_for}"
    for term in ("approximation", "rounding", "bound"):
        largest = max(getattr(block, term) for block in model.children)
        if getattr(model, term) != largest:
            return f"{term} of the model is {getattr(model, term):g}, that of its blocks {largest:g}"
    return None


def check_directory(
    path: str | os.PathLike[str],
    proofs: Proofs | None = None,
    progress: Callable[[str, int, int], None] = lambda message, done, total: None,
) -> Verdict:
    """The verdict on the directory of a converted model, from config.json and the safetensors files alone. One part at a time is
    in memory."""
    where, proofs = Path(path), proofs or Proofs()
    model, record = read_record(where)
    with _intact(where):
        reason = model_problem(model)
        if reason is not None:
            raise ValueError(reason)
        requested, read, verdicts = float(model.facts["requested"]), set[int](), list[Verdict]()
        for name, part in read_parts(where, model, record):
            progress(name, len(verdicts), len(record["blocks"]))
            read.add(id(part.claim))
            verdicts.append(check_part(part, requested, proofs))
        missing = [claim.name for claim in model.children if id(claim) not in read]
        if missing:
            raise ValueError(f"{missing[0]} has no record")
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
    if not isinstance(record, dict) or repr(record.get("version")) not in _READ:
        reason = f"its config.json has no 'attnc' record of version {' or '.join(_READ)}"
        raise FileError(f"{where} is not a model that attnc converted: {reason}")
    with _intact(where, (*DAMAGE, CertificateError)):
        record = unsealed(record, "the record")
        return Certificate.from_json(record["report"]["certificate"]), record


def read_parts(where: Path, model: Certificate, record: Mapping[str, Any]) -> Iterator[tuple[str, Part]]:
    """The parts of a record and their names there, one after the other; every tensor must have the digest that is recorded of
    it."""
    tensors = Directory(where)
    with _intact(where):
        for entry in record["blocks"]:
            yield entry["name"], _read_part(model, entry, tensors)


def _read_part(model: Certificate, entry: Mapping[str, Any], tensors: Directory) -> Part:
    name = entry["name"]
    subject = "block" if "transposed" in entry else "norm" if "epsilon" in entry else entry["kind"]
    claims = [part for part in model.parts(subject) if same_place(part.name, name)]
    if not claims:
        raise ValueError(f"{name} has no certificate")
    claim = min(claims, key=lambda claim: abs(len(claim.name) - len(name)))
    if subject == "activation":
        return Activation(claim, _read_head(f"{name}.0", claim.children[0], tensors))
    stored = {role: tensors.find(place, role, known) for role, (place, known) in entry["tensors"].items()}
    return (_read_block if subject == "block" else _read_norm)(claim, entry, stored, tensors)


def same_place(one: str, other: str) -> bool:
    """Whether both may name one block: a part was converted and the whole saved, or the other way round."""
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def _read_norm(
    claim: Certificate, entry: Mapping[str, Any], stored: Mapping[str, Numbers], tensors: Directory
) -> NormNumbers:
    slope, intercept, value = (stored[role].astype(np.float64) for role in QUADRATIC)
    about = (entry["features"], entry["epsilon"], 0.5, _executed(claim))
    numbers = QuadraticNumbers(slope, intercept, value, *about)
    most = entry["most"] * entry["features"]
    if not isinstance(claim.holds_for, Ball) or most > claim.holds_for.radius**2 * (1 + 1e-12):
        raise ValueError(f"{claim.name} accepts larger tokens than its certificate holds for")
    exact = {**entry, "half": False}  # its own gain and shift, not what follows from them
    return NormNumbers(claim, numbers, _normed(exact, stored.get("weight"), stored.get("bias")))


def _read_block(
    claim: Certificate, entry: Mapping[str, Any], stored: Mapping[str, Numbers], tensors: Directory
) -> Block:
    roles = [role for role in ("first", "second", "up") if f"{role}.weight" in stored]
    norm, name, experts = entry["norm"], entry["name"], entry.get("experts", 0)
    gated = len(roles) == 3 and not experts
    weights = (stored.get("norm.weight"), stored.get("norm.bias"))
    domain = claim.box if norm is None else _normed(norm, *weights)
    rows = entry.get("rows", {})  # of a larger map
    f, turned = functions.get(claim.facts["activation"]), entry["transposed"]
    programs = []
    for expert in range(max(1, experts)):
        own = {role: x[expert] for role, x in stored.items() if experts and role in _EXPERT_MAPS}
        programs.append(
            block_program(f, *(_map(role, {**stored, **own}, turned, rows.get(role)) for role in roles))
        )
    program = programs[0]
    inside, count = f"{name}.activation" if gated else name, len(claim.children) - gated
    numbers = [_read_head(f"{inside}.{g}", claim.children[g], tensors) for g in range(count)]
    heads = [(stored.get(f"neurons_{g}"), head) for g, head in enumerate(numbers)]
    if sum(neurons is None for neurons, _ in heads) != (count == 1):
        raise ValueError(f"the neurons of {name} are not assigned to its heads")
    if not gated:
        return Block(claim, program, domain, heads, others=tuple(programs[1:]))
    square = _read_head(f"{name}.product.square.0", claim.children[-1], tensors)
    return Block(claim, program, domain, heads, square, stored["scale"], stored["radius"])


def _map(
    role: str, stored: Mapping[str, Numbers], transposed: Sequence[str], rows: Sequence[int] | None
) -> Map:
    W = stored[f"{role}.weight"].astype(np.float64)
    W = W.T.copy() if role in transposed else W
    b = stored.get(f"{role}.bias", np.zeros(len(W))).astype(np.float64)
    if rows is None:
        return W, b
    start, stop = rows
    if not 0 <= start < stop <= len(W):
        raise ValueError(f"the outputs {start} to {stop} of a map of {len(W)}")
    return W[start:stop], b[start:stop]


def _normed(norm: Mapping[str, Any], weight: Numbers | None, bias: Numbers | None) -> Normed:
    """gain∘y + shift with gain = weight, or 1 + weight summed in the dtype `one_plus`; rounded in half precision."""
    gain = np.ones(norm["features"]) if weight is None else weight
    if norm["one_plus"] in HALF:
        raise ValueError(f"a gain that is summed in {norm['one_plus']} cannot be read from files")
    if norm["one_plus"] is not None:
        gain = gain.astype(norm["one_plus"]) + np.ones((), norm["one_plus"])
    found = Normed(norm["kind"] == "layer", gain, np.zeros(norm["features"]) if bias is None else bias)
    return found.rounded() if norm.get("half", False) else found


def _read_head(prefix: str, certificate: Certificate, tensors: Directory) -> HeadNumbers:
    arrays = {name: tensors.find(f"{prefix}.{name}", name, certificate.digests[name]) for name in TENSORS}
    return HeadNumbers.of(arrays, certificate.dtype)
