"""attnc.verify of converted models: the numbers of the running model go to the checker, and the model must run what was read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import nn

from attnc import functions
from attnc.check.block import block_program
from attnc.check.execution import error_of
from attnc.check.model import (
    Activation,
    Block,
    NormNumbers,
    Proofs,
    check_directory,
    check_part,
    model_problem,
    summary,
)
from attnc.check.verify import CHECKERS
from attnc.check.verify import verify as check
from attnc.domain import Ball, Box
from attnc.errors import AttncError, CertificateError, MissingExtraError
from attnc.frontends.transformers import NormSite, PartSite, Site, example_call, read_sites
from attnc.frontends.transformers.blocks import LinearMap
from attnc.functions import Function
from attnc.functions.balls import working
from attnc.network.head import Head
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.network.running import autocast_is_on
from attnc.pretrained.blocks import site_facts
from attnc.pretrained.directory import map_converted
from attnc.pretrained.executed import ConvertedRun, difference, run_parts
from attnc.pretrained.mapped import MappedModel, in_memory, laid_out
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.shipped import original_config
from attnc.pretrained.store import call_of, records_in, report_of, why_not_recorded
from attnc.progress import Progress, current, silent, watched
from attnc.records.certificate import HALF, Certificate, Status, Verdict

_POINTS = 33


def verify_conversion(
    what: str | os.PathLike[str] | nn.Module, *, proofs: Proofs | None = None, progress: Progress = silent
) -> Verdict:
    """Prove again what the report of a converted model, or of its directory, states of each of its parts, from the weights as
    they are now. The verdict has one child for each part. The matrices of a directory are in memory one part at a time."""
    mapped = MappedModel(what, {}) if isinstance(what, nn.Module) else map_converted(Path(what))
    model: nn.Module = mapped.model
    report, proofs = report_of(model), proofs or Proofs()
    try:
        parts = _parts(mapped, report)
    except AttncError as problem:
        return Verdict(Status.UNKNOWN, str(problem))
    verdicts: list[Verdict] = []
    for part in parts:
        progress(part.claim.name, len(verdicts), len(parts))
        with in_memory(model, mapped.of(part.site)):
            verdicts.append(_verdict(part, report.approximation, proofs))
    return summary(verdicts, proofs)


def why_not_applicable(model: nn.Module) -> str | None:
    """Why the report is not about the model as it is now, or None. Bounds are proved again only where the digests of the weights
    were not recorded."""
    report, proofs = report_of(model), Proofs()
    try:
        for part in _parts(MappedModel(model, {}), report):
            reason = _claims(part) or _numbers(part) or _code(part) or difference(part.runs)
            if reason is None and part.record is None:
                verdict = _verdict(part, report.approximation, proofs)
                reason = None if verdict.status is Status.PROVED else verdict.reason
            if reason is not None:
                return f"{part.claim.name}: {reason}"
    except AttncError as problem:
        return str(problem)
    return None


def _parts(mapped: MappedModel, report: ConversionReport) -> list[_Part]:
    """The converted parts of the model, read from the operations that it executes now; raises if the report is not about them."""
    model: nn.Module = mapped.model
    with in_memory(model, mapped.sources, release=True):
        call = call_of(model) or example_call(model)
    with laid_out(mapped):
        sites = {site.name: site for site in read_sites(model, call)}
    if (reason := _whole(model, report, sites)) is not None:
        raise CertificateError(reason)
    with in_memory(model, mapped.sources, release=True):
        runs = run_parts(model, call, [*sites.values()])
    records, parts = dict(records_in(model)), []
    for claim in report.certificate.children:
        site = sites[claim.name]
        assert isinstance(site.replaced, Converted)
        own = tuple(runs.get(claim.name, ()))
        parts.append(_Part(model, claim, site, site.replaced, records.get(claim.name), own))
    return parts


def verify_directory(
    path: str | os.PathLike[str], function: Function | None = None, progress: Progress = silent
) -> Verdict:
    """The verdict from the files; then the model is built and must run what was read. Without transformers it is "unknown". A
    modelling file that is not attnc's raises an error: what it runs is not what is proved."""
    proofs = Proofs()
    original_config(Path(path))
    verdict = check_directory(path, proofs, progress)
    if not verdict:
        return verdict
    try:
        return verify_conversion(path, proofs=proofs, progress=progress)
    except MissingExtraError as problem:
        reason = f"the files fit the certificate, but the model was not built, so what it runs was not compared: {problem}"
        return replace(verdict, status=Status.UNKNOWN, reason=reason)


CHECKERS |= {
    "directory": lambda path, function: verify_directory(path, function, current()),
    "model": lambda model, function: verify_conversion(model, progress=current()),
}
verify = watched("proving again")(check)


Converted = Pointwise | GatedBlock | Norm


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


@dataclass(frozen=True, eq=False)
class _Part:
    """A converted part of the model: its certificate, its place, its module, its record and how it ran."""

    model: nn.Module
    claim: Certificate
    site: Site | PartSite
    module: Converted
    record: Mapping[str, Any] | None
    runs: tuple[ConvertedRun, ...]  # of a block

    @property
    def maps(self) -> tuple[LinearMap, ...]:
        return self.site.maps() if isinstance(self.site, Site) else ()

    @property
    def activation(self) -> Pointwise | None:
        module = self.module.activation if isinstance(self.module, GatedBlock) else self.module
        return None if isinstance(module, Norm) else module

    @property
    def groups(self) -> list[tuple[torch.Tensor | None, Head]]:
        """The neurons and the head of each group of the activation."""
        return [] if self.activation is None else self.activation.groups

    @property
    def heads(self) -> list[Head]:
        """The heads of the activation, then that of the square."""
        square = self.module.product.square.groups if isinstance(self.module, GatedBlock) else []
        return [head for _, head in (*self.groups, *square)]


def _verdict(part: _Part, requested: float, proofs: Proofs) -> Verdict:
    claim, site, module = part.claim, part.site, part.module
    try:
        reason = _claims(part) or _numbers(part) or _code(part) or difference(part.runs)
        if reason is None and isinstance(site, Site):
            return check_part(_block(part, site), requested, proofs, partial(_attack, part))
        if reason is None and isinstance(site, NormSite) and isinstance(module, Norm):
            norm = NormNumbers(claim, module.heads.numbers(), site.norm.gain_and_shift())
            return check_part(norm, requested, proofs)
        if reason is None and len(part.heads) == 1:
            return check_part(Activation(claim, part.heads[0].numbers()), requested, proofs)
    except AttncError as problem:
        reason = str(problem)
    reason = reason or "it is not the part of its certificate"
    return Verdict(Status.UNKNOWN, reason, claim.bound, name=claim.name)


def _block(part: _Part, site: Site) -> Block:
    """The block as plain numbers. Its domain is the outputs of the norm in front, or the box of the certificate."""
    claim, module = part.claim, part.module
    f, maps = functions.get(claim.facts["activation"]), (site.first, site.second, site.up)
    program, *others = (
        block_program(f, *(m.numbers(expert) for m in maps if m is not None))
        for expert in range(max(1, site.experts))
    )
    domain = site.domain() or (claim.holds_for if isinstance(claim.holds_for, Box) else None)
    heads = [(None if own is None else own.numpy(), head.numbers()) for own, head in part.groups]
    if not isinstance(module, GatedBlock):
        return Block(claim, program, domain, heads, others=tuple(others))
    powers = (module.product.scale.numpy(), module.product.radius.numpy())
    return Block(claim, program, domain, heads, part.heads[-1].numbers(), *powers)


def _claims(part: _Part) -> str | None:
    """What the certificate states of the module that is not so."""
    claim, site, module = part.claim, part.site, part.module
    kind = "block" if isinstance(site, Site) else "norm" if isinstance(site, NormSite) else "activation"
    if claim.subject != kind or isinstance(module, Norm) != (kind == "norm"):
        return f"it is a {type(module).__name__} in the place of a {kind}, its certificate is about a {claim.subject}"
    said = claim.facts["engine"]
    stated = math.inf if claim.dtype in HALF else claim.facts["roundings"].get(module.engine)
    if stated != claim.rounding or module.runs != said:
        return f"it runs {module.runs!r} as engine={module.engine!r}: the report states {said!r}, rounding {claim.rounding:g}"
    if tuple(head.certificate for head in part.heads) != claim.children:
        return "its heads are not those of its certificate"
    found: dict[str, Any] = {}
    if isinstance(site, Site):
        found = site_facts(site, [head for _, head in part.groups])
    if isinstance(site, NormSite) and isinstance(module, Norm):
        found, size = {"kind": site.norm.kind}, module.heads.dim
        if claim.holds_for != Ball(size, math.sqrt(size * module.most), module.centred):
            return "its domain is not that of its certificate"
    changed = [name for name, value in found.items() if claim.facts.get(name) != value]
    return f"its certificate states other facts: {', '.join(changed)}" if changed else None


def _numbers(part: _Part) -> str | None:
    """Why the numbers are not those of the report."""
    claim, module = part.claim, part.module
    own = [
        m.heads if isinstance(m, Norm) else m for m in module.modules() if isinstance(m, (Pointwise, Norm))
    ]
    heads, modules = [t for m in own for t in m.buffers()], (module, *(m.module for m in part.maps))
    tensors = [t for m in modules for t in (*m.parameters(), *m.buffers()) if t.is_floating_point()]
    kept = {id(t) for t in heads} if claim.dtype in HALF else set()
    less = any(t.is_floating_point() and t.dtype != torch.float32 for t in heads) and bool(kept)
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors if id(t) not in kept} or {claim.dtype}
    if less or dtypes != {claim.dtype} or any(t.device.type != "cpu" for t in tensors):
        return f"it was proved in {claim.dtype} on a CPU: it is {', '.join(sorted(dtypes))} on {tensors[0].device}"
    if part.record is None:
        return None
    return why_not_recorded(part.model, part.site, part.module, part.record)


def _code(part: _Part) -> str | None:
    """Whether other code runs than the modules of attnc as they were built."""
    site, module, kept = part.site, part.module, [(m.name, m.module) for m in part.maps]
    if isinstance(site, Site) and site.norm is not None:
        kept.append((site.norm.name, part.model.get_submodule(site.norm.name)))
    for name, held in kept:
        if held._forward_hooks or held._forward_pre_hooks or "forward" in vars(held):
            return f"{name} has a hook or a forward of its own, which may change what is executed"
    if site.problems:
        return f"{site.problems[0].where} {site.problems[0].reason}"
    for owner, name, value in site.settings if isinstance(site, Site) else ():
        if getattr(owner, name) != value:
            return f"{name} of {type(owner).__name__} is {getattr(owner, name)!r}: the block is not executed as attention"
    if type(module) not in (Pointwise, GatedBlock, Norm):
        return f"{type(module).__name__} is not a module of attnc"
    ask: Any = type(module).why_not_certified  # of the class: an attribute of the instance does not hide it
    reason: str | None = ask(module)
    if reason is not None:
        return reason
    roles = tuple(dict.fromkeys(m.attribute for m in part.maps))
    if isinstance(module, GatedBlock) and (roles, getattr(site, "rows", None)) != (module.roles, module.rows):
        return "the maps of the gated block are in other places"
    return None


def _attack(part: _Part, block: Block, engine: str, proofs: Proofs) -> Verdict | None:
    """Execute the activation, and compare with f: it must do what was proved of its heads."""
    claim, activation = block.claim, part.activation
    assert isinstance(part.site, Site) and activation is not None
    f, neurons = functions.get(claim.facts["activation"]), part.site.first.sizes[0]
    for (index, numbers), certificate in zip(block.heads, claim.children, strict=False):
        s = _points(certificate).to(getattr(torch, certificate.dtype))
        with torch.no_grad():
            rows = activation(s[:, None].expand(-1, neurons).contiguous(), engine, strict=False)
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
