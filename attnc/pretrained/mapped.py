"""A model of a directory whose matrices stay in their files: they are mapped into memory where they are used, and released.

transformers itself places the tensors: it loads placeholders of the stored shapes, and each parameter is traced back to the
placeholder that it received, whatever transformers renames or ties. Matrices that transformers stacks or joins, as it does with
those of experts, become one placeholder, which remembers its pieces. Vectors (biases, norms) are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnc.errors import FileError
from attnc.frontends.transformers import PartSite, Site
from attnc.pretrained.inputs import removed
from attnc.records.files import Directory, TensorFile


@dataclass(frozen=True)
class Stored:
    """A tensor of a file."""

    path: Path
    name: str


@dataclass(frozen=True)
class Merged:
    """Tensors that are stacked along a new dimension, or joined along one that they have."""

    pieces: tuple[Source, ...]
    dim: int
    stacked: bool


Source = Stored | Merged
Sources = Mapping[str, Source]  # by the name in the model


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


class Placeholders(TorchFunctionMode):
    """A tensor for each one that is stored: vectors and integers as they are, instead of each matrix a column of zeros, expanded,
    by whose storage and strides it is recognised. While the mode is on, stacking or joining some of them makes another one."""

    def __init__(self, stored: Directory) -> None:
        super().__init__()
        stored.check_floats()
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[int, tuple[Tensor, Source]] = {}  # by the address of the storage
        for name, file in stored.files.items():
            tensor = file.tensor(name)
            if _is_matrix(tensor):
                self.tensors[name] = self._new(tensor.shape, tensor.dtype, Stored(file.path, name))
            else:
                self.tensors[name] = tensor.clone()

    def _new(self, shape: torch.Size, dtype: torch.dtype, source: Source) -> Tensor:
        column = torch.zeros((shape[0], *(1 for _ in shape[1:])), dtype=dtype)
        found = column.expand(shape)
        self._known[found.untyped_storage().data_ptr()] = found, source
        return found

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor has the storage of a placeholder."""
        return tensor.untyped_storage().data_ptr() in self._known

    def source(self, tensor: Tensor) -> Source | None:
        """Where the numbers of a tensor are stored, if it is a placeholder as it was made."""
        known, source = self._known.get(tensor.untyped_storage().data_ptr(), (None, None))
        return source if known is not None and _alike(tensor, known) else None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.stack, torch.cat):
            merged = self._merged(func, *args, **kwargs)
            if merged is not None:
                return merged
        return func(*args, **kwargs)

    def _merged(self, func: Callable[..., Any], tensors: Any, dim: int = 0, **others: Any) -> Tensor | None:
        sources = [
            self.source(t) if isinstance(t, Tensor) and t.device.type == "cpu" else None for t in tensors
        ]
        pieces = tuple(source for source in sources if source is not None)
        if others or not pieces or len(pieces) != len(sources):
            return None
        like: Tensor = func([torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors], dim)
        return self._new(like.shape, like.dtype, Merged(pieces, dim, func is torch.stack))


def traced(model: nn.Module, given: Placeholders) -> MappedModel:
    """The model that received these tensors, with the place in the files of each of its matrices."""
    sources = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in _tensors(model):
        source = given.source(tensor)
        if source is not None:
            sources[name] = source
        elif given.knows(tensor) or (name in state and _is_matrix(tensor)):
            what = f"{name} is computed from stored tensors, or cast to {tensor.dtype}"
            raise NotMappableError(f"{what}, when transformers loads the model")
    return MappedModel(model, sources)


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.is_floating_point()


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = (model.named_parameters, model.named_buffers)
    return [pair for listed in named for pair in listed(remove_duplicate=False)]


@contextmanager
def laid_out(mapped: MappedModel) -> Iterator[None]:
    """Give the matrices of experts the strides that they have in memory: grouped products are recorded with those alone. numpy's
    zeros are not written, so they use no memory."""
    held = [t for name, t in _tensors(mapped.model) if name in mapped.sources and t.ndim > 2]
    before = [tensor.data for tensor in held]
    try:
        for tensor in held:
            tensor.data = (
                torch.from_numpy(np.zeros(tensor.nbytes, np.uint8)).view(tensor.dtype).view(tensor.shape)
            )
        yield
    finally:
        for tensor, data in zip(held, before, strict=True):
            tensor.data = data


@contextmanager
def in_memory(model: nn.Module, sources: Sources, *, release: bool = False) -> Iterator[None]:
    """Map the matrices of a model, or of a part of it under its names in the model, until the end of the context. Pages are read
    when they are used. With `release`, those of each module leave memory when its forward returns; matrices that have to be
    merged are in memory only while the forward of their module runs."""
    held = {name: tensor for name, tensor in _tensors(model) if name in sources}
    before = {name: tensor.data for name, tensor in held.items()}
    late = {name for name in held if release and isinstance(sources[name], Merged)}
    own: dict[str, list[str]] = {}
    for name in held:
        own.setdefault(name.rpartition(".")[0], []).append(name)

    def fill(names: list[str]) -> None:
        opened: dict[Path, TensorFile] = {}  # anew: of a new mapping no page is in memory yet
        for name in names:
            held[name].data = _read(sources[name], opened)

    def leave(part: str, names: list[str]) -> None:
        called.add(part)
        fill([name for name in names if name not in late])
        for name in late.intersection(names):
            held[name].data = before[name]

    called, handles = set[str](), []
    for part, names in own.items() if release else ():
        module, merged = model.get_submodule(part), [name for name in names if name in late]
        handles.append(module.register_forward_hook(lambda *_, part=part, names=names: leave(part, names)))
        if merged:
            handles.append(module.register_forward_pre_hook(lambda *_, merged=merged: fill(merged)))
    try:
        with removed(handles):
            fill([name for name in held if name not in late])
            yield
        unread = {part for part, names in own.items() if late.intersection(names)} - called
        if called and unread:  # another module may use its weights, which were not there
            raise NotMappableError(f"{min(unread)} has weights that have to be merged, and is not called")
    finally:
        for name, tensor in held.items():
            tensor.data = before[name]


def _read(source: Source, opened: dict[Path, TensorFile]) -> Tensor:
    """A map of a stored tensor; a new tensor, if pieces have to be merged."""
    if isinstance(source, Merged):
        pieces = [_read(piece, opened) for piece in source.pieces]
        return (torch.stack if source.stacked else torch.cat)(pieces, source.dim)
    if source.path not in opened:
        opened[source.path] = TensorFile(source.path)
    return opened[source.path].tensor(source.name)
