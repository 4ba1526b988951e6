"""A feed-forward block in its model: where it stands, what its numbers are, and how its nonlinearity is replaced."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from attnc.errors import Problem
from attnc.frontends.problems import tensor_problem
from attnc.frontends.transformers import norms
from attnc.frontends.transformers.activations import CONVERTED, of_transformers, read
from attnc.frontends.transformers.norms import as_numbers
from attnc.program.block import FeedForward, Numbers

_QUANTISED = re.compile(
    r"8bit|4bit|NF4|FP4|Int8|Quant|WQLinear|HQQ|GPTQ|AWQ|Eetq|FbgemmFp8|FP8", re.IGNORECASE
)
_QUANTISERS = ("bitsandbytes.", "torchao.", "torch.ao.", "torch.nn.quantized", "auto_gptq.", "awq.", "hqq.")


@dataclass(frozen=True, eq=False)
class Map:
    """An affine map x ↦ W x + b of a model."""

    name: str  # dotted path in the model
    module: nn.Module  # nn.Linear, or transformers' Conv1D, which stores W transposed

    @property
    def attribute(self) -> str:
        """Its name in the module that holds it."""
        return self.name.rpartition(".")[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of W."""
        weight: torch.Tensor = self.module.get_parameter("weight")
        return weight.dtype

    @property
    def device(self) -> torch.device:
        """Where W is."""
        weight: torch.Tensor = self.module.get_parameter("weight")
        return weight.device

    @property
    def sizes(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        rows, columns = self.module.get_parameter("weight").shape
        return (columns, rows) if is_conv1d(self.module) else (rows, columns)

    def numbers(self) -> tuple[Numbers, Numbers]:
        """W (outputs, inputs) and b (outputs,), copies in float64 of what is stored.

        >>> W, b = Map("fc", nn.Linear(3, 2, bias=False)).numbers()
        >>> W.shape, b
        ((2, 3), array([0., 0.]))
        """
        W, b = as_numbers(self.module.get_parameter("weight")), getattr(self.module, "bias", None)
        return W.T.copy() if is_conv1d(self.module) else W, np.zeros(
            self.sizes[0]
        ) if b is None else as_numbers(b)

    def problem(self) -> str | None:
        """Why its numbers cannot be taken, or None."""
        kind = type(self.module).__name__
        if is_quantised(self.module):
            return f"is quantised ({kind}): load the model in float32 or float64"
        if type(self.module) is nn.Linear or is_conv1d(self.module):
            return None
        return f"is a {kind}: nn.Linear and Conv1D are accepted; adapters of peft are merged by model.merge_and_unload()"


@dataclass(frozen=True, eq=False)
class Site:
    """A feed-forward block, and the place where a module has to be put to convert it.

    plain: a module that maps pre-activations to activations, elementwise, takes the place of the activation.
    gated: a module that computes the whole block takes the place of the block; to keep the names of the weights it holds the
    maps `first`, `up`, `second` under their attributes.
    """

    name: str  # dotted path of what is replaced
    family: str
    activation: str  # a name of attnc.functions
    places: tuple[tuple[nn.Module, str], ...]  # (parent, attribute), more than one where a block is tied
    first: Map
    second: Map
    up: Map | None = None  # where gated
    norm_name: str | None = None
    norm: nn.Module | None = None  # what makes the block's input, for every input of the model
    settings: tuple[tuple[nn.Module, str, object], ...] = ()  # (module, attribute, value) to set beside
    also: tuple[str, ...] = ()  # other names of the same block: converting it once is enough
    remarks: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def parent(self) -> nn.Module:
        """The module that holds what is replaced."""
        return self.places[0][0]

    @property
    def attribute(self) -> str:
        """The name of what is replaced, in its parent."""
        return self.places[0][1]

    @property
    def gated(self) -> bool:
        return self.up is not None

    @property
    def dtype(self) -> torch.dtype:
        return self.first.dtype

    @property
    def replaced(self) -> object:
        """The activation (a module or a function), or the gated block, as it stands now."""
        return getattr(self.parent, self.attribute)

    @property
    def key(self) -> object:
        """What makes two sites one."""
        return id(self.replaced) if self.gated else (id(self.parent), self.attribute)

    def maps(self) -> tuple[Map, ...]:
        return (self.first, self.second) if self.up is None else (self.first, self.up, self.second)

    def feed_forward(self) -> FeedForward:
        """Its numbers, copied in float64.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.TransformerEncoderLayer(4, 1, 8, activation="gelu", norm_first=True).eval()
        >>> block = find_blocks(model).blocks[0].feed_forward()
        >>> block.activation, block.W1.shape, block.W2.shape, block.norm.kind
        ('gelu', (8, 4), (4, 8), 'layer')
        """
        (W1, b1), (W2, b2) = self.first.numbers(), self.second.numbers()
        U, c = (None, None) if self.up is None else self.up.numbers()
        norm = None if self.norm is None else norms.numbers(self.norm, W1.shape[1])
        return FeedForward(self.activation, W1, b1, W2, b2, U, c, norm)

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module at the place of the activation or gated block; what is returned puts back what was there.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
        >>> undo = find_blocks(model).blocks[0].replace(nn.Tanh())
        >>> model[1]
        Tanh()
        >>> undo()
        >>> model[1]
        ReLU()
        """
        changes = [(parent, attribute, module) for parent, attribute in self.places]
        before = [(m, a, getattr(m, a)) for m, a, _ in (*changes, *self.settings)]
        for part, attribute, value in (*changes, *self.settings):
            _put(part, attribute, value)

        def undo() -> None:
            for part, attribute, value in before:
                _put(part, attribute, value)

        return undo


@dataclass(frozen=True)
class Skipped:
    """A part of the model that is left as it is, and why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Found:
    """The feed-forward blocks of a model, in its order, and what is left alone."""

    blocks: tuple[Site, ...]
    skipped: tuple[Skipped, ...]


def site(
    name: str,
    layer: nn.Module,
    family: str,
    *,
    activation: str,
    first: str,
    second: str,
    up: str | None = None,
    norm: str | None = None,
    through: tuple[str, ...] = (),
    settings: tuple[tuple[nn.Module, str, object], ...] = (),
    remarks: tuple[str, ...] = (),
) -> Site | None:
    """The site in a layer of a model, from paths relative to the layer; None where one of them does not exist.

    `through` are the modules that the values pass on their way from the norm to the second map. Where the block is gated, the
    module that holds the activation is the block.
    """
    owner_path, _, attribute = activation.rpartition(".")
    paths = (owner_path, first, second, *filter(None, (up, norm)), *through)
    parts = {path: part for path in paths if (part := part_at(layer, path)) is not None}
    owner = parts.get(owner_path)
    converted = type(owner).__name__ in CONVERTED
    if owner is None or set(parts) != set(paths) or not (converted or hasattr(owner, attribute)):
        return None
    block_path, _, block = owner_path.rpartition(".")
    place = (part_at(layer, block_path) or layer, block) if up else (owner, attribute)
    replaced = joined(name, owner_path if up else activation)
    reading = read(owner if converted else getattr(owner, attribute))
    problems = [Problem(replaced, reading.problem)] if reading.problem else []
    before = parts[norm] if norm and norms.kind(parts[norm]) else None
    if norm and before is None:
        remarks = (
            *remarks,
            f"its norm, {type(parts[norm]).__name__}, is not known: nothing is proved of its input",
        )
    for path, part in {"": layer, **parts}.items():
        problems += [Problem(joined(name, path), why) for why in altered(part, part is layer)]
    owners = {p.rpartition(".")[0] for p in (activation, first, second, up or "")} | set(through)
    problems += [
        Problem(joined(name, path), why)
        for path, why in _foreign(layer, sorted(filter(None, owners)), replaced, name)
    ]
    made = Site(
        replaced, family, reading.name, (place,),
        Map(joined(name, first), parts[first]), Map(joined(name, second), parts[second]),
        Map(joined(name, up), parts[up]) if up else None, joined(name, norm) if norm and before else None, before,
        settings, (), remarks,
    )  # fmt: skip
    return dataclasses.replace(made, problems=(*problems, *_misfits(made)))


def part_at(module: nn.Module, path: str) -> nn.Module | None:
    """The module at a dotted path, or None."""
    part: object = module
    for step in filter(None, path.split(".")):
        part = getattr(part, step, None)
    return part if isinstance(part, nn.Module) else None


def joined(name: str, path: str) -> str:
    return ".".join(filter(None, (name, path))) or "the model"


def is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and of_transformers(module)


def is_quantised(module: nn.Module) -> bool:
    """By its class, or by its weights.

    >>> is_quantised(nn.Linear(2, 2)), is_quantised(type("Linear8bitLt", (nn.Linear,), {})(2, 2))
    (False, True)
    """
    kind, weight = type(module), getattr(module, "weight", None)
    whole = isinstance(weight, torch.Tensor) and not weight.is_floating_point()
    return whole or kind.__module__.startswith(_QUANTISERS) or bool(_QUANTISED.search(kind.__name__))


def is_map(module: object) -> bool:
    """An affine map, be it one whose numbers can be taken or not."""
    if not isinstance(module, nn.Module) or type(module).__name__ in CONVERTED:
        return False
    named = "Linear" in type(module).__name__ and hasattr(module, "weight")
    return isinstance(module, nn.Linear) or is_conv1d(module) or named


def _put(part: nn.Module, attribute: str, value: object) -> None:
    """setattr, also where a module gives way to a function."""
    if attribute in part._modules and not isinstance(value, nn.Module):
        delattr(part, attribute)
    setattr(part, attribute, value)


def altered(part: nn.Module, layer: bool) -> Iterator[str]:
    """What lets a part compute something else than its class says. Hooks of a whole layer act outside the block."""
    hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
    foreign = [h for h in hooks if not str(getattr(h, "__module__", "")).startswith("transformers.")]
    if foreign and not layer:
        yield "has forward hooks, which may change its result: remove them by handle.remove()"
    if "forward" in vars(part):
        yield "has a forward that was put on the object: give it back the forward of its class"


def _foreign(layer: nn.Module, owners: list[str], replaced: str, name: str) -> Iterator[tuple[str, str]]:
    """Parts of a block, the activation apart, of classes of neither torch nor transformers: what they compute is not known."""
    for path in owners:
        owner = part_at(layer, path)
        inner = [] if owner is None else [(joined(path, key), child) for key, child in owner.named_children()]
        for where, part in [(path, owner), *inner]:
            if part is None or _is_known(part) or joined(name, where) == replaced:
                continue
            yield (
                where,
                f"is a {type(part).__name__}, a class of neither torch nor transformers: what it computes is not known",
            )
        for where, part in inner:
            yield from (
                (where, why) for why in altered(part, False) if type(part) in (nn.Dropout, nn.Identity)
            )


def _is_known(part: nn.Module) -> bool:
    own = type(part).__module__.startswith(("torch.nn.", "torch.ao.nn."))
    return own or of_transformers(part) or type(part).__name__ in CONVERTED or is_map(part)


def _misfits(made: Site) -> Iterator[Problem]:
    """Tensors that cannot be taken, and sizes and dtypes that do not fit."""
    refused = [Problem(m.name, reason) for m in made.maps() if (reason := m.problem())]
    named = [] if refused else [(m.name, m.module) for m in made.maps()]
    if made.norm is not None and made.norm_name is not None:
        named.append((made.norm_name, made.norm))
        if reason := norms.problem(made.norm):
            refused.append(Problem(made.norm_name, reason))
    tensors = [(f"{name}.{n}", t) for name, part in named for n, t in part.named_parameters(recurse=False)]
    refused += [Problem(name, reason) for name, tensor in tensors if (reason := tensor_problem(tensor))]
    yield from refused
    if refused:
        return
    dtypes = sorted({str(tensor.dtype) for _, tensor in tensors})
    if len(dtypes) > 1:
        yield Problem(
            made.first.name,
            f"is of another dtype than its neighbours ({', '.join(dtypes)}): call model.float()",
        )
    width, features = made.first.sizes
    gain = getattr(made.norm, "weight", None)
    fit = made.second.sizes[1] == width and (made.up is None or made.up.sizes == made.first.sizes)
    if not fit or (gain is not None and gain.numel() != features):
        shapes = ", ".join(f"{m.attribute} {m.sizes[1]} → {m.sizes[0]}" for m in made.maps())
        yield Problem(made.first.name, f"has sizes that do not fit those of its neighbours: {shapes}")
