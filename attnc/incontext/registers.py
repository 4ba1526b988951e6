"""Named registers: which coordinates of a token hold what, in the residual stream of a learner.

The first coordinates are flags, one for each kind of token: a token has a 1 in exactly one of them. Then come the registers.
A context becomes tokens by affine maps, the same for every example; the weight token, BOS and the anchors are the same for every
context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnc.errors import InputError
from attnc.network.head import Head
from attnc.records.numbers import Array, HeadNumbers

ALWAYS = ("weight", "bos", "data", "query")  # kinds of tokens that every learner has
ACTIVATION = ("anchor+", "anchor-")
THRESHOLD = ("threshold",)

_HOLDS = {
    "weight": "flag: the weight token",
    "bos": "flag: the BOS token",
    "data": "flag: an example, each twice, τ = ±1",
    "query": "flag: a query, τ = 1",
    "anchor+": "flag: an anchor of the activation for τ = 1",
    "anchor-": "flag: an anchor of the activation for τ = -1",
    "threshold": "flag: an anchor of the soft threshold",
    "x": "features of an example or a query, the intercept's 1 last",
    "tx": "τx",
    "y": "label of an example",
    "ty": "τy",
    "tau": "τ",
    "w": "coefficients, in the weight token",
    "u": "τ w·x, written by layer A, cleared by C",
    "g": "τψ, written by layer B, cleared by C",
    "kappa": "slope of an anchor's score, one for each head of the activation",
    "c": "constant of an anchor's score",
    "v": "value of an anchor",
    "threshold kappa": "the same of the soft threshold's anchors",
    "threshold c": "the same of the soft threshold's anchors",
    "threshold v": "the same of the soft threshold's anchors",
}


class Registers(Mapping[str, slice]):
    """name → coordinates of a token, for d features and as many heads as the activation and the threshold have (0: none).

    >>> registers = Registers(3)
    >>> registers["x"], registers["w"], registers.width
    (slice(4, 7, None), slice(13, 16, None), 17)
    >>> list(registers)
    ['weight', 'bos', 'data', 'query', 'x', 'tx', 'y', 'ty', 'tau', 'w', 'u']
    """

    def __init__(self, features: int, activation: int = 0, threshold: int = 0) -> None:
        self.kinds = ALWAYS + ACTIVATION * bool(activation) + THRESHOLD * bool(threshold)
        widths = dict.fromkeys(self.kinds, 1)
        widths |= {"x": features, "tx": features, "y": 1, "ty": 1, "tau": 1, "w": features, "u": 1}
        if activation:
            widths |= {"g": 1, "kappa": activation, "c": activation, "v": activation}
        if threshold:
            widths |= dict.fromkeys(("threshold kappa", "threshold c", "threshold v"), threshold)
        self._slices, self.width = dict[str, slice](), 0
        for name, size in widths.items():
            self._slices[name] = slice(self.width, self.width + size)
            self.width += size

    def __getitem__(self, name: str) -> slice:
        if name not in self._slices:
            raise InputError(f"no register {name!r}: this stream has {', '.join(map(repr, self))}")
        return self._slices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._slices

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def at(self, name: str) -> int:
        """The first coordinate of a register."""
        return int(self[name].start)

    def marks(self, *kinds: str) -> Array:
        """(D,): the linear form that is 1 on tokens of these kinds and 0 on all others."""
        form = np.zeros(self.width)
        form[[self.at(kind) for kind in kinds]] = 1.0
        return form

    def form(self, name: str, offset: int = 0) -> Array:
        """(D,): the linear form that reads one coordinate of a register."""
        form = np.zeros(self.width)
        form[self.at(name) + offset] = 1.0
        return form

    def holders(self, name: str) -> tuple[str, ...]:
        """The kinds of tokens in which a register has a meaning; a flag has one in every token."""
        if name in ("x", "tx", "y", "ty", "tau", "u", "g"):
            return ("data", "query")
        if name in ("kappa", "c", "v"):
            return ACTIVATION
        if name.startswith("threshold "):
            return THRESHOLD
        return ("weight",) if name == "w" else self.kinds

    def others(self, *kinds: str) -> tuple[str, ...]:
        """The kinds of tokens that are none of these."""
        return tuple(kind for kind in self.kinds if kind not in kinds)

    def describe(self) -> str:
        """A line for each register: its coordinates and what it holds.

        >>> print(Registers(2).describe().splitlines()[-1])
        u      13:14  τ w·x, written by layer A, cleared by C
        """
        longest = max(map(len, self))
        where = {name: f"{at.start}:{at.stop}" for name, at in self._slices.items()}
        return "\n".join(f"{name:<{longest}} {where[name]:>5}  {_HOLDS[name]}" for name in self)

    def __repr__(self) -> str:
        return f"Registers({', '.join(f'{name} {at.start}:{at.stop}' for name, at in self._slices.items())})"


@dataclass(frozen=True)
class Group:
    """Tokens on which the linear form `who` is 1 attend to the kinds `keys` alone."""

    who: Array  # (D,)
    keys: tuple[str, ...]


def gates(registers: Registers, groups: Sequence[Group], distance: float) -> tuple[Array, Array]:
    """Columns for W_Q and W_K, one for each group: the query holds -M, the key 1 where this group may not look.

    So scores with the group's own keys are untouched, and all others are lower by M.

    >>> registers = Registers(1)
    >>> query, key = gates(registers, [Group(registers.marks("weight"), ("data",))], 1024.0)
    >>> (query @ key.T)[registers.at("weight")][:4]
    array([-1024., -1024.,     0., -1024.])
    """
    closed = [registers.marks(*registers.others(*group.keys)) for group in groups]
    return np.stack([-distance * group.who for group in groups], 1), np.stack(closed, 1)


def plain_numbers(name: str, head: Head) -> HeadNumbers:
    """The numbers of a head that does not attend to itself: data tokens have no position to find themselves by."""
    numbers = head.numbers()
    if numbers.gated:
        raise InputError(
            f"the {name} of this learner is a head that attends to itself: it has no place in plain self-attention"
        )
    return numbers


def fixed_tokens(
    registers: Registers, activation: HeadNumbers | None, threshold: HeadNumbers | None
) -> Array:
    """(tokens, D): the weight token with w = 0, BOS, the activation's anchors (κ, c, v) and (-κ, c, -v), the threshold's."""
    rows = [registers.marks("weight")[None], registers.marks("bos")[None]]
    if activation is not None:
        rows += [
            _anchors(registers, activation, *copy) for copy in (("anchor+", "", 1.0), ("anchor-", "", -1.0))
        ]
    if threshold is not None:
        rows.append(_anchors(registers, threshold, "threshold", "threshold ", 1.0))
    return np.concatenate(rows)


def _anchors(registers: Registers, numbers: HeadNumbers, kind: str, prefix: str, sign: float) -> Array:
    rows = np.tile(registers.marks(kind), (numbers.anchors_per_head, 1))
    rows[:, registers[f"{prefix}kappa"]] = sign * numbers.key[:, :, 0].T
    rows[:, registers[f"{prefix}c"]] = numbers.key[:, :, 1].T
    rows[:, registers[f"{prefix}v"]] = sign * numbers.value[:, :, 1].T
    return rows


def token_maps(registers: Registers, features: int) -> Array:
    """(3, features + 2, D): from (x, y, 1) to the token of an example with τ = 1, of one with τ = -1, and of a query.

    Where the registers hold one feature more than is given, it is the intercept's 1."""
    made = np.zeros((3, features + 2, registers.width))
    given = np.arange(features)
    for matrix, kind, tau in zip(made, ("data", "data", "query"), (1.0, -1.0, 1.0), strict=True):
        for name, sign in (("x", 1.0), ("tx", tau)):
            matrix[given, registers.at(name) + given] = sign
            matrix[-1, registers.at(name) + features : registers[name].stop] = sign
        matrix[features, [registers.at("y"), registers.at("ty")]] = (1.0, tau)
        matrix[-1, [registers.at(kind), registers.at("tau")]] = (1.0, tau)
    return made
