"""attnc.verify of converted models: the numbers of the running model go to the checker, and the model must run what was read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import nn

from attnc import functions
from attnc.check.block import block_program
from attnc.check.model import (
    Block,
    Proofs,
    check_activation,
    check_directory,
    check_numbers,
    model_problem,
    summary,
)
from attnc.check.norm import check_norm
from attnc.check.verify import CHECKERS, verify
from attnc.check.witness import error_of
from attnc.domain import Ball, Box
from attnc.errors import AttncError, MissingExtraError
from attnc.frontends.transformers import NormSite, PartSite, Site, example_call, read_sites
from attnc.functions import Function
from attnc.functions.balls import working
from attnc.network.gated_block import GatedBlock
from attnc.network.head import Head
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.running import autocast_is_on
from attnc.pretrained.blocks import site_facts
from attnc.pretrained.directory import from_pretrained
from attnc.pretrained.guard import check_flow
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.store import call_of, report_of, why_not_recorded
from attnc.records.certificate import Certificate, Status
from attnc.records.verdict import Verdict

_POINTS = 33


def verify_conversion(what: str | os.PathLike[str] | nn.Module, *, proofs: Proofs | None = None) -> Verdict:
    """Prove again what the report of a converted model states of each of its blocks, from the weights as they are now.

    Takes the model, or its directory. The verdict has one child for each block.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    >>> import attnc
    >>> _ = attnc.convert_(model, approximation=1e-3)
    >>> print(verify_conversion(model).status)
    proved
    """
    model: nn.Module = what if isinstance(what, nn.Module) else from_pretrained(what)
    report, proofs = report_of(model), proofs or Proofs()
    try:
        call = call_of(model) or example_call(model)
        sites = {site.name: site for site in read_sites(model, call)}
        check_flow(model, call, [site for site in sites.values() if isinstance(site, Site)])
    except AttncError as problem:
        return Verdict(Status.UNKNOWN, str(problem))
    reason = _whole(model, report, sites)
    if reason is not None:
        return Verdict(Status.UNKNOWN, reason)
    records = dict(records_in(model))
    verdicts = []
    for claim in report.certificate.children:
        site, record = sites[claim.name], records.get(claim.name)
        if isinstance(site, Site):
            verdicts.append(_verdict(model, claim, site, record, report.approximation, proofs))
        else:
            verdicts.append(_part_verdict(model, claim, site, record, report.approximation, proofs))
    return summary(verdicts, proofs)


def verify_directory(path: str | os.PathLike[str], function: Function | None = None) -> Verdict:
    """The verdict from the files; then the model is built and must run what was read. Without transformers it is "unknown"."""
    proofs = Proofs()
    verdict = check_directory(path, proofs)
    if not verdict:
        return verdict
    try:
        return verify_conversion(path, proofs=proofs)
    except MissingExtraError as problem:
        reason = f"the files fit the certificate, but the model was not built, so what it runs was not compared: {problem}"
        return replace(verdict, status=Status.UNKNOWN, reason=reason)


CHECKERS |= {"directory": verify_directory, "model": lambda model, function: verify_conversion(model)}


Converted = Pointwise | GatedBlock


@dataclass(frozen=True, eq=False)
class _Running:
    """A converted block in the model: its certificate, its place and its module."""

    claim: Certificate
    site: Site
    module: Converted

    @property
    def activation(self) -> Pointwise:
        return self.module.activation if isinstance(self.module, GatedBlock) else self.module

    @property
    def heads(self) -> list[Head]:
        """The heads of the activation, then that of the square."""
        square = self.module.product.square.groups if isinstance(self.module, GatedBlock) else []
        return [head for _, head in (*self.activation.groups, *square)]

    def numbers(self) -> Block:
        """The block as plain numbers. Its domain is the outputs of the norm in front, or the box of the certificate."""
        site, claim = self.site, self.claim
        maps = [m.numbers() for m in (site.first, site.second, site.up) if m is not None]
        program = block_program(functions.get(claim.facts["activation"]), *maps)
        domain = site.domain() or (claim.holds_for if isinstance(claim.holds_for, Box) else None)
        heads = [
            (None if neurons is None else neurons.numpy(), head.numbers())
            for neurons, head in self.activation.groups
        ]
        if not isinstance(self.module, GatedBlock):
            return Block(claim, program, domain, heads)
        powers = (self.module.product.scale.numpy(), self.module.product.radius.numpy())
        return Block(claim, program, domain, heads, self.heads[-1].numbers(), *powers)


def _part_verdict(
    model: nn.Module,
    claim: Certificate,
    site: PartSite,
    record: Mapping[str, Any] | None,
    requested: float,
    proofs: Proofs,
) -> Verdict:
    """The verdict on a norm, or on an activation outside of blocks."""
    module, subject = site.replaced, "norm" if isinstance(site, NormSite) else "activation"
    assert isinstance(module, Norm | Pointwise)
    tensors = (*module.parameters(), *module.buffers())
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()}
    runs = (module.runs, claim.facts["roundings"].get(module.engine))
    if (claim.subject, *runs, dtypes) != (subject, claim.facts["engine"], claim.rounding, {claim.dtype}):
        reason: str | None = f"it runs {module.runs!r} in {', '.join(dtypes)}: the report states otherwise"
    else:
        reason = module.why_not_certified()
    if reason is None and record is not None:
        reason = why_not_recorded(model, site, module, record)
    if isinstance(site, NormSite) and isinstance(module, Norm) and reason is None:
        if site.norm.kind != claim.facts["kind"] or claim.holds_for != _ball(module):
            reason = "its kind or its domain is not that of its certificate"
        else:
            domain = site.norm.domain()
            return check_norm(claim, module.heads.numbers(), domain.gain, domain.shift, requested)
    if isinstance(module, Pointwise) and reason is None:
        heads = [head for _, head in module.groups]
        if tuple(head.certificate for head in heads) == claim.children and len(heads) == 1:
            return check_activation(claim, heads[0].numbers(), requested, proofs)
        reason = "its heads are not those of its certificate"
    return Verdict(
        Status.UNKNOWN, reason or "it is not the part of its certificate", claim.bound, name=claim.name
    )


def _ball(module: Norm) -> Ball:
    """The tokens that a norm accepts."""
    return Ball(module.heads.dim, math.sqrt(module.heads.dim * module.most), module.centred)


def _whole(model: nn.Module, report: ConversionReport, sites: Mapping[str, Site | PartSite]) -> str | None:
    """What is wrong with the model as a whole, or None."""
    reason = model_problem(report.certificate)
    if reason is not None:
        return reason
    if autocast_is_on("cpu"):
        return "torch.autocast is on: the bounds are for code that runs without it"
    named = {part.name for part in report.certificate.children}
    absent = [name for name in named if name not in sites or not _is_converted(sites[name].replaced)]
    if absent:
        return f"the report has {absent[0]}: the model has no converted block of that name"
    missing = [name for name, site in sites.items() if _is_converted(site.replaced) and name not in named]
    if missing:
        return f"{missing[0]} was converted, and the report does not have it"
    parts = [site.replaced for site in sites.values() if isinstance(site.replaced, nn.Module)]
    held = {id(inner) for part in parts for inner in part.modules()}
    for name, part in model.named_modules():
        if _is_converted(part) and id(part) not in held:
            return f"{name} is attention over anchors outside of the blocks that were read"
    return None


def _is_converted(module: object) -> bool:
    return isinstance(module, (GatedBlock, Norm)) or (isinstance(module, Pointwise) and not module.inputs)


def records_in(model: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of blocks in the configs of parts, by their names in the model."""
    for name, part in model.named_modules():
        record = getattr(getattr(part, "config", None), "attnc", None)
        if isinstance(record, Mapping):
            inside = f"{name}." if name else ""
            yield from ((f"{inside}{entry['name']}", entry) for entry in record["blocks"])


def _verdict(
    model: nn.Module,
    claim: Certificate,
    site: Site,
    record: Mapping[str, Any] | None,
    requested: float,
    proofs: Proofs,
) -> Verdict:
    assert isinstance(site.replaced, Converted)
    running = _Running(claim, site, site.replaced)
    try:
        reason = _claims(running) or _numbers(model, running, record) or _code(model, running)
        if reason is None:
            return check_numbers(running.numbers(), requested, proofs, partial(_attack, running))
    except AttncError as problem:
        reason = str(problem)
    return Verdict(Status.UNKNOWN, reason, claim.bound, name=claim.name)


def _claims(running: _Running) -> str | None:
    """What the certificate states of the module that is not so."""
    claim, module = running.claim, running.module
    stated = claim.facts["engine"]
    if claim.facts["roundings"].get(module.engine) != claim.rounding or module.runs != stated:
        return f"it runs {module.runs!r} as engine={module.engine!r}: the report states {stated!r}, rounding {claim.rounding:g}"
    if tuple(head.certificate for head in running.heads) != claim.children:
        return "its heads are not those of its certificate"
    found = site_facts(running.site, [head for _, head in running.activation.groups])
    changed = [name for name, value in found.items() if claim.facts.get(name) != value]
    return f"its certificate states other facts: {', '.join(changed)}" if changed else None


def _numbers(model: nn.Module, running: _Running, record: Mapping[str, Any] | None) -> str | None:
    """Why the numbers are not those of the report."""
    site, claim = running.site, running.claim
    parts = (running.module, *(m.module for m in site.maps()))
    tensors = [t for part in parts for t in (*part.parameters(), *part.buffers()) if t.is_floating_point()]
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors}
    if dtypes != {claim.dtype} or any(t.device.type != "cpu" for t in tensors):
        return f"it was proved in {claim.dtype} on a CPU: it is {', '.join(sorted(dtypes))} on {tensors[0].device}"
    return None if record is None else why_not_recorded(model, site, running.module, record)


def _code(model: nn.Module, running: _Running) -> str | None:
    """Whether other code runs than the modules of attnc as they were built."""
    site, module = running.site, running.module
    kept = [(m.name, m.module) for m in site.maps()]
    kept += [] if site.norm is None else [(site.norm.name, model.get_submodule(site.norm.name))]
    for name, part in kept:
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            return f"{name} has a hook or a forward of its own, which may change what is executed"
    if site.problems:
        return f"{site.problems[0].where} {site.problems[0].reason}"
    for part, name, value in site.settings:
        if getattr(part, name) != value:
            return f"{name} of {type(part).__name__} is {getattr(part, name)!r}: the block is not executed as attention"
    if type(module) not in (Pointwise, GatedBlock):
        return f"{type(module).__name__} is not a module of attnc"
    ask: Any = type(module).why_not_certified  # of the class: an attribute of the instance does not hide it
    reason: str | None = ask(module)
    if reason is not None:
        return reason
    if isinstance(module, GatedBlock) and tuple(m.attribute for m in site.maps()) != module.roles:
        return "the maps of the gated block are in other places"
    return None


def _attack(running: _Running, block: Block, engine: str, proofs: Proofs) -> Verdict | None:
    """Execute the activation, and compare with f: it must do what was proved of its heads."""
    claim, neurons = block.claim, running.site.first.sizes[0]
    f = functions.get(claim.facts["activation"])
    for (index, numbers), certificate in zip(block.heads, claim.children, strict=False):
        s = _points(certificate).to(getattr(torch, claim.dtype))
        with torch.no_grad():
            rows = running.activation(s[:, None].expand(-1, neurons).contiguous(), engine, strict=False)
        column = 0 if index is None else int(index[0])
        with working(192):
            allowed = arb(proofs.executed(numbers, certificate, engine))
            for at, value in zip(s.tolist(), rows[:, column].tolist(), strict=True):
                off = error_of(value, f.value(at))
                if not off <= allowed:
                    reason = (
                        f"at {at!r} the activation returns {value!r}, beyond the error proved for {f.label}"
                    )
                    return Verdict(Status.REFUTED, reason, claim.bound, (at,), float(off.mid()))
    return None


def _points(certificate: Certificate) -> torch.Tensor:
    """Inputs of the domain, evenly over all of it and near 0, that float32 can represent."""
    lo, hi = certificate.interval.lo, certificate.interval.hi
    even = [np.linspace(a, b, _POINTS) for a, b in ((lo, hi), (max(lo, -4.0), min(hi, 4.0)))]
    points = np.unique(np.concatenate(even).astype(np.float32).astype(np.float64))
    return torch.from_numpy(points[(points >= lo) & (points <= hi)])


__all__ = ["verify", "verify_conversion"]
