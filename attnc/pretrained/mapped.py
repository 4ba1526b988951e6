"""A model of a directory whose matrices stay in their files: they are mapped into memory where they are used, and released.

transformers itself places the tensors: it loads placeholders of the stored shapes, and each parameter is traced back to the
placeholder that it received, whatever transformers renames or ties. Vectors (biases, norms) are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import FileError
from attnc.frontends.transformers import PartSite, Site
from attnc.pretrained.inputs import removed
from attnc.records.files import Directory, TensorFile

Sources = Mapping[str, tuple[Path, str]]  # name in the model → file, and name there


class NotMappableError(FileError):
    """A directory whose tensors are not the parameters of its model one by one."""


@dataclass(frozen=True, eq=False)
class MappedModel:
    """A model whose matrices are placeholders, and where they are stored."""

    model: Any
    sources: Sources

    def of(self, site: PartSite) -> Sources:
        """The matrices that a block uses."""
        used = {id(m.weight) for m in site.maps()} if isinstance(site, Site) else set[int]()
        names = {name for name, tensor in _tensors(self.model) if id(tensor) in used}
        return {name: source for name, source in self.sources.items() if name in names}


def placeholders(stored: Directory) -> dict[str, Tensor]:
    """A tensor for each one that is stored: vectors and integers as they are, instead of each matrix a column of zeros, expanded,
    by whose storage and strides it is recognised."""
    found = {}
    for name, file in stored.files.items():
        tensor = file.tensor(name)
        shape = tensor.shape
        if len(shape) < 2 or not tensor.is_floating_point():
            found[name] = tensor.clone()
        else:
            column = torch.zeros((shape[0], *(1 for _ in shape[1:])), dtype=tensor.dtype)
            found[name] = column.expand(shape)
    return found


def traced(model: nn.Module, given: Mapping[str, Tensor], stored: Directory) -> MappedModel:
    """The model that received these tensors, with the place in the files of each of its matrices."""
    by_storage = {t.untyped_storage().data_ptr(): name for name, t in given.items() if _is_matrix(t)}
    sources = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in _tensors(model):
        source = by_storage.get(tensor.untyped_storage().data_ptr())
        if source is not None and _are_experts(model, name, tensor):
            raise NotMappableError(
                f"{name} holds a matrix for each expert, and torch multiplies no placeholders of these"
            )
        if source is not None and _alike(tensor, given[source]):
            sources[name] = (stored.files[source].path, source)
        elif source is not None or (name in state and _is_matrix(tensor)):
            what = f"{name} is computed from stored tensors, or cast to {tensor.dtype}"
            raise NotMappableError(f"{what}, when transformers loads the model")
    return MappedModel(model, sources)


def _are_experts(model: nn.Module, name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds a matrix for each of several experts: products of groups do not take placeholders."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return tensor.ndim == 3 and len(tensor) > 1 and not isinstance(owner, nn.modules.conv._ConvNd)


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.is_floating_point()


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = (model.named_parameters, model.named_buffers)
    return [pair for listed in named for pair in listed(remove_duplicate=False)]


@contextmanager
def in_memory(model: nn.Module, sources: Sources, *, release: bool = False) -> Iterator[None]:
    """Map the matrices of a model, or of a part of it under its names in the model, until the end of the context. Pages are read
    when they are used. With `release`, those of each module leave memory when its forward returns."""
    held = {name: tensor for name, tensor in _tensors(model) if name in sources}
    before = {name: tensor.data for name, tensor in held.items()}
    own: dict[str, list[str]] = {}
    for name in held:
        own.setdefault(name.rpartition(".")[0], []).append(name)

    def fill(names: list[str]) -> None:
        files = {path: TensorFile(path) for path in {sources[name][0] for name in names}}
        for name in names:  # by a new mapping, of which no page is in memory yet
            path, key = sources[name]
            held[name].data = files[path].tensor(key)

    parts = [(model.get_submodule(part), names) for part, names in own.items()]
    hooked = parts if release else []
    handles = [part.register_forward_hook(lambda *_, names=names: fill(names)) for part, names in hooked]
    try:
        with removed(handles):
            for _, names in parts:
                fill(names)
            yield
    finally:
        for name, tensor in held.items():
            tensor.data = before[name]
