"""Tensors of experts: a model has one tensor for all experts of a layer. transformers stores it under another name, or as one
or two tensors for each expert."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from attnc.program.step import Numbers

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class TensorReader(Protocol):
    """A file of tensors."""

    def read(self, name: str) -> Numbers: ...
    def shape(self, name: str) -> tuple[int, ...]: ...


Files = Mapping[str, TensorReader]  # by the names of tensors


def merged(files: Files, name: str, role: str) -> Iterator[Numbers]:
    """What a tensor (experts, outputs, inputs) of a model can be: one of another name, or the matrices of experts 0, 1, …
    stacked, or those of two maps, one below the other. The digest of the tensor decides. The likely ones come first: a block
    has one second map, and a first map beside that of its gate."""
    numbers = NUMBER.findall(name)
    whole = [one for one in files if NUMBER.findall(one) == numbers and len(files[one].shape(one)) == 3]
    yield from (files[one].read(one) for one in whole)
    groups = [
        (group, shape) for group in _groups(files, name) if (shape := _common(files, group)) is not None
    ]
    count = {shape: sum(shape == other for _, other in groups) for _, shape in groups}
    alone = [(group,) for group, shape in sorted(groups, key=lambda found: count[found[1]])]
    beside = [
        (a, b)
        for (a, one), (b, other) in itertools.permutations(groups, 2)
        if (one, len(a)) == (other, len(b))
    ]
    for found in (*alone, *beside) if role.startswith("second") else (*beside, *alone):
        stacked = [np.stack([files[one].read(one) for one in group]) for group in found]
        yield np.concatenate(stacked, axis=1)


def _groups(files: Files, name: str) -> Iterator[list[str]]:
    """The tensors whose names are equal but for their last number, which goes from 0 to some end; the other numbers (that of the
    layer) are those of the name."""
    numbers, found = NUMBER.findall(name), dict[tuple[str, str], dict[int, str]]()
    for other in files:
        places = list(NUMBER.finditer(other))
        if places and [place[0] for place in places[:-1]] == numbers:
            around = other[: places[-1].start()], other[places[-1].end() :]
            found.setdefault(around, {})[int(places[-1][0])] = other
    for _, group in sorted(found.items()):
        if {*group} == {*range(len(group))}:
            yield [group[i] for i in range(len(group))]


def _common(files: Files, group: Sequence[str]) -> tuple[int, ...] | None:
    """The shape of the matrices of a group, if they all have the same one."""
    shapes = {files[one].shape(one) for one in group}
    shape = shapes.pop()
    return None if shapes or len(shape) != 2 else shape
