"""One block of a large model, planned and tested by itself: in memory are the layer around it, and nothing else of the model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from attnc.errors import Problem
from attnc.extras import optional
from attnc.frontends.problems import tensor_problem
from attnc.frontends.transformers import ActivationSite, Call, NormSite, PartSite, Site
from attnc.pretrained.blocks import PlannedPart, check_norms, plan_activation, plan_block, plan_norm
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.guard import check_reached, check_runs, refuse
from attnc.pretrained.inputs import Entering
from attnc.pretrained.mapped import MappedModel, Sources, in_memory
from attnc.pretrained.store import part_record
from attnc.program.step import Numbers

_ALONE = threading.Lock()  # the threads of a process share the precision of ball arithmetic


@dataclass(frozen=True, eq=False)
class Task:
    """A block to convert, in the layer around it; and where the matrices of the layer are stored, which it does not hold."""

    site: Site
    model: str  # the class of the model
    path: str  # of the layer
    layer: nn.Module
    call: Call  # of the layer
    entering: Entering
    sources: Sources
    approximation: float
    config: ConvertConfig


@dataclass(frozen=True, eq=False)
class Converted:
    """The numbers of a converted block by their names in it, and what is recorded of it as JSON."""

    tensors: Mapping[str, Numbers]
    about: Mapping[str, Any]
    memory: int = 0  # of the process so far, at most, in bytes


class Layers:
    """The smallest part of a model around each block that holds all of it, norm included, and that the model calls; and the
    arguments of its first call."""

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self.model, self.calls = model, dict[str, Call]()
        self.around = {site.name: list(_around(model, site)) for site in sites}

    def hooks(self) -> list[RemovableHandle]:
        """Record the calls of a run."""
        paths = dict.fromkeys(path for paths in self.around.values() for path in paths)

        def note(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if path not in self.calls:
                self.calls[path] = Call(*pytree.tree_map_only(Tensor, _copied, (args, kwargs)))

        return [
            self.model.get_submodule(path).register_forward_pre_hook(
                lambda _, args, kwargs, path=path: note(path, args, kwargs), with_kwargs=True
            )
            for path in paths
        ]

    def task(
        self, mapped: MappedModel, site: Site, domain: Entering, approximation: float, config: ConvertConfig
    ) -> Task:
        path = next(path for path in self.around[site.name] if path in self.calls)
        inside = f"{path}." if path else ""
        return Task(
            site=_without_graph(site), model=type(self.model).__name__, path=path, layer=self.model.get_submodule(path),
            call=self.calls[path], entering=domain, approximation=approximation, config=config,
            sources={name: at for name, at in mapped.sources.items() if name.startswith(inside)},
        )  # fmt: skip


def _copied(x: Tensor) -> Tensor:
    return x.detach().clone()


def _around(model: nn.Module, site: Site) -> Iterator[str]:
    """The paths of the parts that hold a block, its norm and its places, from the inside out; the last one is the model."""
    needed = {id(m.module) for m in site.maps()} | {id(owner) for owner, _ in site.places}
    needed |= {id(owner) for owner, _, _ in site.settings}
    needed |= {id(model.get_submodule(site.norm_name))} if site.norm_name else set()
    steps = site.name.split(".")
    for depth in range(len(steps) - 1, -1, -1):
        path = ".".join(steps[:depth])
        if needed <= {id(part) for part in model.get_submodule(path).modules()}:
            yield path


def _without_graph(site: Site) -> Site:
    """The site without the nodes of the recorded graph, which only reading needs."""
    none: Any = None
    first, second, up = (
        m and replace(m, node=none, input=none, routes=None) for m in (site.first, site.second, site.up)
    )
    assert first is not None and second is not None
    return replace(site, uses=(), first=first, second=second, up=up)


def convert_alone(task: Task) -> Converted:
    """Plan a block, compare it as it runs with what was read, and return what is stored of it. One thread computes, so that no
    digit depends on the number of cores."""
    with _ALONE, _one_thread():
        site, call = task.site, task.call
        held = _in_place(task.model, task.path, task.layer)
        with in_memory(held, task.sources):
            tensors = [named for m in site.maps() for named in m.tensors()]
            found = ((name, tensor_problem(tensor, half=True)) for name, tensor in tensors)
            refuse(held, [Problem(name, reason) for name, reason in found if reason])
            planned = plan_block(site, task.entering, task.approximation, task.config, lambda _: None)
            check_runs(held, call, [planned])
            undo = site.replace(planned.module)
            try:
                check_reached(held, call, [planned])
            finally:
                undo()
            about = _about(held, planned)
            kept = {id(t) for m in site.maps() for t in (*m.module.parameters(), *m.module.buffers())}
            state = planned.module.state_dict(keep_vars=True)
            own = {name: t.detach().numpy().copy() for name, t in state.items() if id(t) not in kept}
    return Converted(own, about, peak_memory())


def plan_part(model: nn.Module, site: PartSite, approximation: float, config: ConvertConfig) -> PlannedPart:
    """Plan a norm, or an activation outside of blocks. A norm is called and compared with what was read; its vectors are in
    memory in a mapped model too."""
    with _ALONE, _one_thread():
        if isinstance(site, NormSite):
            planned = plan_norm(site, approximation, config)
            check_norms(model, [site])
            return planned
        assert isinstance(site, ActivationSite)
        return plan_activation(site, approximation, config)


def part_converted(model: nn.Module, planned: PlannedPart) -> Converted:
    """What is stored of a planned norm or activation; the tensors of the original keep their places."""
    site, module = planned.site, planned.module
    kept = {id(t) for _, t in site.norm.tensors()} if isinstance(site, NormSite) else set[int]()
    state = module.state_dict(keep_vars=True)
    own = {name: t.detach().numpy().copy() for name, t in state.items() if id(t) not in kept}
    return Converted(own, _about(model, planned), peak_memory())


def _about(model: nn.Module, planned: PlannedPart) -> dict[str, Any]:
    return {
        "record": part_record(model, planned.site, planned.module),
        "certificate": planned.certificate.to_json(),
        "parameters_added": planned.module.parameters_added,
    }


def _in_place(model: str, path: str, layer: nn.Module) -> nn.Module:
    """A model that consists of one layer, under its name."""
    if not path:
        return layer
    held = type(model, (nn.Module,), {"forward": lambda self, *args, **kwargs: layer(*args, **kwargs)})()
    *parents, last = path.split(".")
    inner = held
    for name in parents:
        inner.add_module(name, nn.Module())
        inner = inner.get_submodule(name)
    inner.add_module(last, layer)
    found: nn.Module = held.eval()
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    threadpoolctl = optional("threadpoolctl", "transformers", "model directories")
    threads = torch.get_num_threads()
    with threadpoolctl.threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where it is not known."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):  # no Linux
        return _peak_of_usage()


def _peak_of_usage() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) * (1 if sys.platform == "darwin" else 1024)
