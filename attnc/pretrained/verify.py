"""attnc.verify of converted models: every head, window and block proved anew, from the numbers that are in the model now."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import nn

from attnc import functions
from attnc.arithmetic import probe_network
from attnc.check import verify as certified
from attnc.check.block import BlockClaim, HeadErrors, SquareErrors, check_block
from attnc.check.head import check
from attnc.check.window import window_error
from attnc.domain import Box
from attnc.errors import AttncError
from attnc.frontends.transformers import Site, read_sites
from attnc.frontends.transformers.calls import example_call
from attnc.functions import Function
from attnc.functions.balls import working
from attnc.network.activation import AnchorActivation
from attnc.network.gate import AnchorGate
from attnc.network.head import Head
from attnc.network.running import autocast_is_on
from attnc.pretrained.directory import from_pretrained
from attnc.pretrained.entering import GIVEN, PROVED
from attnc.pretrained.flow import check_flow
from attnc.pretrained.report import BlockReport, ConversionReport
from attnc.pretrained.store import call_of, digest, report_of, wiring
from attnc.records.certificate import Certificate, Status
from attnc.records.verdict import Verdict
from attnc.records.window_numbers import window_of

_POINTS = 33
Inputs = Box | Mapping[str, Box] | None


def verify(what: str | os.PathLike[str] | nn.Module, function: Function | str | None = None) -> Verdict:
    """Prove anew, from the stored numbers alone, what is claimed of a head, a network or a converted model.

    Takes a module; the file of a head or a network; or the directory of a converted model. `function` is needed only where the
    certificate of a head speaks of a function of your own that is not registered.

    >>> import attnc
    >>> attnc.verify(attnc.head("tanh", domain=(-8, 8), eps=1e-5)).status
    'proved'
    """
    if isinstance(what, nn.Module):
        converted = isinstance(getattr(what, "_attnc_report", None), ConversionReport)
    else:
        converted = isinstance(what, (str, os.PathLike)) and Path(what).is_dir()
    return verify_conversion(what) if converted else certified.verify(what, function)


def verify_conversion(what: str | os.PathLike[str] | nn.Module, *, inputs: Inputs = None) -> Verdict:
    """Prove anew what the report of a converted model says of each of its blocks, from the weights as they are now.

    Takes the model, or its directory. Heads are proved by the checker of heads, windows by that of windows, and the bounds of a
    block by that of blocks; nothing of the prover is used. Where a report holds for a box that was given, that box has to be
    given here too.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    >>> import attnc
    >>> _ = attnc.convert_(model, eps=1e-3)
    >>> verify_conversion(model).status
    'proved'
    """
    model: nn.Module = what if isinstance(what, nn.Module) else from_pretrained(what)
    report = report_of(model)
    try:
        call = call_of(model) or example_call(model)
        sites = {site.name: site for site in read_sites(model, call)}
        check_flow(model, call, [*sites.values()])
    except AttncError as reason:
        return Verdict(Status.UNKNOWN, str(reason))
    problem = _whole(model, report, sites)
    if problem is not None:
        return Verdict(Status.UNKNOWN, problem)
    records, proofs = dict(_records(model)), _Proofs()
    found = []
    for block in report.blocks:
        try:
            site = sites[block.name]
            norm = None if site.norm is None else model.get_submodule(site.norm.name)
            subject = _Subject(block, site, records.get(block.name), _box(block, inputs), norm)
            found.append(replace(_verdict(subject, report.eps, proofs), name=block.name))
        except AttncError as reason:
            found.append(Verdict(Status.UNKNOWN, str(reason), block.bound, name=block.name))
    return _summary(report, tuple(found), proofs)


@dataclass(frozen=True, eq=False)
class _Subject:
    """A block: what is said of it, where it stands, what was recorded of its numbers, and the box that enters it, if any."""

    report: BlockReport
    site: Site
    record: Mapping[str, Any] | None
    box: Box | None
    norm: nn.Module | None

    @property
    def module(self) -> AnchorActivation | AnchorGate:
        found = self.site.replaced
        assert isinstance(found, (AnchorActivation, AnchorGate))
        return found

    @property
    def activation(self) -> AnchorActivation:
        return self.module.activation if isinstance(self.module, AnchorGate) else self.module


@dataclass
class _Proofs:
    """What was proved already: blocks share heads."""

    heads: dict[object, Verdict] = field(default_factory=dict)
    windows: dict[object, float] = field(default_factory=dict)

    def head(self, head: Head, function: str) -> Verdict:
        """The verdict on a head that should imitate the function."""
        certificate, numbers = head.certificate, head.numbers()
        if not certificate.proved or certificate.facts["function"] != function:
            about = f"{certificate.status}, for {certificate.facts.get('function')}"
            return Verdict(
                Status.UNKNOWN,
                f"a head of {function} is expected to have a proved certificate: it is {about}",
            )
        key = (certificate.seal(), *numbers.digests().values())
        if key not in self.heads:
            self.heads[key] = check(numbers, certificate)
        return self.heads[key]

    def executed(self, head: Head, certificate: Certificate, engine: str) -> float:
        """At least |executed - f| on the domain of the certificate, which was proved."""
        window = window_of(head.numbers()) if engine == "closed-form" else None
        if window is None:
            parts = math.nextafter(certificate.approximation + certificate.rounding, math.inf)
            return min(certificate.bound, parts)
        f = functions.get(certificate.facts["function"])
        key = (window, f, certificate.interval)
        if key not in self.windows:
            self.windows[key] = window_error(window, f, certificate.interval)
        return self.windows[key]


def _whole(model: nn.Module, report: ConversionReport, sites: Mapping[str, Site]) -> str | None:
    """What is wrong with the model as a whole, or None."""
    if not report.blocks:
        return "the report says nothing of any block"
    if autocast_is_on("cpu"):
        return "torch.autocast is on: the bounds are for code that runs without it"
    absent = [
        b.name for b in report.blocks if b.name not in sites or not _is_converted(sites[b.name].replaced)
    ]
    if absent:
        return f"the report speaks of {absent[0]}: there is no converted block of that name"
    named = {b.name for b in report.blocks}
    silent = [name for name, site in sites.items() if _is_converted(site.replaced) and name not in named]
    if silent:
        return f"{silent[0]} was converted, and the report says nothing of it"
    held = {
        id(part)
        for site in sites.values()
        if isinstance(site.replaced, nn.Module)
        for part in site.replaced.modules()
    }
    for name, part in model.named_modules():
        if _is_converted(part) and id(part) not in held:
            return f"{name} is attention over anchors in no block that is known"
    return None


def _is_converted(module: object) -> bool:
    return isinstance(module, (AnchorActivation, AnchorGate))


def _records(model: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What configs of parts record of blocks, by their names in the model."""
    for name, part in model.named_modules():
        record = getattr(getattr(part, "config", None), "attnc", None)
        if isinstance(record, Mapping):
            inside = f"{name}." if name else ""
            yield from ((f"{inside}{entry['name']}", entry) for entry in record["blocks"])


def _box(block: BlockReport, inputs: Inputs) -> Box | None:
    return inputs.get(block.name) if isinstance(inputs, Mapping) else inputs


def _verdict(subject: _Subject, eps: float, proofs: _Proofs) -> Verdict:
    block, module = subject.report, subject.module
    problem = _claims(subject, eps) or _numbers(subject) or _running(subject)
    if problem is not None:
        return Verdict(Status.UNKNOWN, problem, block.bound)
    parts = [(head, block.activation) for _, head in subject.activation.groups]
    if isinstance(module, AnchorGate):
        parts.append((module.square.groups[0][1], "square"))
    for head, function in parts:
        proved = proofs.head(head, function)
        if not proved:
            return replace(proved, reason=f"a head of {function}: {proved.reason}")
    for engine in block.roundings:
        attacked = _attack(subject, engine, proofs)
        found = _check(subject, engine, proofs) if attacked is None else attacked
        if not found:
            return replace(found, reason=f"engine {engine}: {found.reason}")
    return Verdict(
        Status.PROVED, f"the bounds of {len(block.roundings)} engines hold in every output", block.bound
    )


def _claims(subject: _Subject, eps: float) -> str | None:
    """What the report says that cannot be proved, or contradicts itself or the module."""
    block, module = subject.report, subject.module
    if block.holds_for not in (PROVED, GIVEN):
        return f"its bound holds for inputs {block.holds_for}: they are not proved, so neither is it"
    if block.holds_for == GIVEN and subject.box is None:
        return "its bound holds for a box that was given: give it here, verify_conversion(model, inputs=Box(lo, hi))"
    if not block.exact <= eps:
        return f"exact is {block.exact:g}, which is above eps={eps:g}"
    if block.roundings.get(module.engine) != block.rounding or module.runs != block.engine:
        said = f"the report says {block.engine!r}, rounding {block.rounding:g}"
        return f"it runs {module.runs!r} as engine={module.engine!r}: {said}"
    functions.get(block.activation)
    return probe_network(block.dtype)


def _numbers(subject: _Subject) -> str | None:
    """Why the numbers are not those of which something was proved."""
    site, block, record = subject.site, subject.report, subject.record
    parts = (subject.module, *(m.module for m in site.maps()))
    tensors = [t for part in parts for t in (*part.parameters(), *part.buffers()) if t.is_floating_point()]
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors}
    if dtypes != {block.dtype} or any(t.device.type != "cpu" for t in tensors):
        return f"it was proved in {block.dtype} on a CPU: it is {', '.join(sorted(dtypes))} on {tensors[0].device}"
    if record is not None:
        if digest(replace(site.feed_forward(), activation=block.activation)) != record["digest"]:
            return "its weights are not those that were converted"
        if wiring(subject.module) != record["wiring"]:
            return "what says which neurons use which head was changed"
    return None


def _running(subject: _Subject) -> str | None:
    """Whether something else runs than the modules of attnc as they were made."""
    site, module = subject.site, subject.module
    kept = [(m.name, m.module) for m in site.maps()]
    kept += [] if subject.norm is None else [(str(site.norm_name), subject.norm)]
    for name, part in kept:
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            return f"{name} has a hook or a forward of its own, which may change what is executed"
    if site.problems:
        return f"{site.problems[0].where} {site.problems[0].reason}"
    for part, name, value in site.settings:
        if getattr(part, name) != value:
            return f"{name} of {type(part).__name__} is {getattr(part, name)!r}: the block is not executed as attention"
    if type(module) not in (AnchorActivation, AnchorGate):
        return f"{type(module).__name__} is not a module of attnc"
    ask: Any = type(module).why_not_certified  # of the class: an attribute of the instance does not hide it
    reason: str | None = ask(module)
    if reason is not None:
        return reason
    if isinstance(module, AnchorGate) and tuple(m.attribute for m in site.maps()) != module._roles:
        return "the maps of the gated block have changed places"
    return None


def _check(subject: _Subject, engine: str, proofs: _Proofs) -> Verdict:
    """The block's bounds, from its weights and from what was proved of its heads."""
    block, module, ff = subject.report, subject.module, subject.site.feed_forward()
    neurons, squares = len(ff.b1), None
    known = [np.full(neurons, np.nan) for _ in range(4)]
    for where, head in subject.activation.groups:
        certificate = head.certificate
        assert certificate.proved
        found = (
            certificate.interval.lo, certificate.interval.hi, certificate.approximation,
            proofs.executed(head, certificate, engine),
        )  # fmt: skip
        for array, value in zip(known, found, strict=True):
            array[slice(None) if where is None else where.numpy()] = value
    if isinstance(module, AnchorGate):
        head = module.square.groups[0][1]
        certificate = head.certificate
        assert certificate.proved
        if not certificate.interval.lo <= -1 <= 1 <= certificate.interval.hi:
            return Verdict(Status.UNKNOWN, "the square's head is not proved on [-1, 1]", block.bound)
        scale, radius = (np.exp2(k.numpy().astype(np.float64)) for k in (module.scale, module.radius))
        executed = proofs.executed(head, certificate, engine)
        squares = SquareErrors(scale, radius, certificate.approximation, executed)
    claim = BlockClaim(block.exact, block.roundings[engine], block.products)
    enters = subject.box if block.holds_for == GIVEN else ff.norm
    ff = replace(ff, activation=block.activation, norm=None)
    return check_block(
        ff, functions.get(block.activation), HeadErrors(*known), claim, block.dtype, squares, enters
    )


def _attack(subject: _Subject, engine: str, proofs: _Proofs) -> Verdict | None:
    """Execute the activation as it stands, and compare with f: it must do what was proved of its heads."""
    f, neurons = functions.get(subject.report.activation), subject.site.first.sizes[0]
    for where, head in subject.activation.groups:
        certificate = head.certificate
        assert certificate.proved
        s = _points(certificate).to(head.key.dtype)
        with torch.no_grad():
            rows = subject.activation(s[:, None].expand(-1, neurons).contiguous(), engine, strict=False)
        allowed = arb(proofs.executed(head, certificate, engine))
        with working(192):
            for at, value in zip(
                s.tolist(), rows[:, 0 if where is None else int(where[0])].tolist(), strict=True
            ):
                error = abs(arb(value) - f.value(at)) if math.isfinite(value) else arb("inf")
                if not error <= allowed:
                    reason = (
                        f"at {at!r} the activation returns {value!r}, farther from {f.label} than was proved"
                    )
                    return Verdict(Status.REFUTED, reason, subject.report.bound, (at,), float(error.mid()))
    return None


def _points(certificate: Certificate) -> torch.Tensor:
    """Inputs of the domain, evenly over all of it and near 0, that float32 holds."""
    lo, hi = certificate.interval.lo, certificate.interval.hi
    even = [np.linspace(a, b, _POINTS) for a, b in ((lo, hi), (max(lo, -4.0), min(hi, 4.0)))]
    points = np.unique(np.concatenate(even).astype(np.float32).astype(np.float64))
    return torch.from_numpy(points[(points >= lo) & (points <= hi)])


def _summary(report: ConversionReport, found: tuple[Verdict, ...], proofs: _Proofs) -> Verdict:
    bound, cells = max(block.bound for block in report.blocks), sum(v.cells for v in proofs.heads.values())
    for status in (Status.REFUTED, Status.UNKNOWN):
        for verdict in found:
            if verdict.status is status:
                reason = f"{verdict.name}: {verdict.reason}"
                return replace(verdict, reason=reason, bound=bound, cells=cells, name="", children=found)
    count = f"{len(found)} block{'s' * (len(found) > 1)}, {len(proofs.heads)} different heads, {len(proofs.windows)} windows"
    return Verdict(Status.PROVED, f"the bounds hold: {count}", bound, cells=cells, children=found)


__all__ = ["Verdict", "verify", "verify_conversion"]
