"""--form, --method, --lipschitz, --noise, --tokens, --seed: what `attnc compile` passes on, where it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnc.errors import InputError

FORMS = ("layers", "two-layer", "attention-softmax")
METHODS = ("auto", "lattice", "grid", "fit")


@dataclass(frozen=True)
class Wishes:
    """The form of the result, and how the values of a function are found; None leaves it to `attnc.compile`.

    >>> Wishes("two-layer", "lattice").given
    {'form': 'two-layer', 'method': 'lattice'}
    """

    form: str | None = None
    method: str | None = None
    lipschitz: float | None = None
    noise: float | None = None
    tokens: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_word("--form", self.form, FORMS)
        _check_word("--method", self.method, METHODS)
        if self.lipschitz is not None and not 0 <= self.lipschitz < math.inf:
            raise InputError(
                f"--lipschitz {self.lipschitz:g}: a finite number that is not negative is accepted, such that "
                "|f(x) - f(y)| <= K|x - y| in every output"
            )
        if self.noise is not None and not 0 <= self.noise < math.inf:
            raise InputError(f"--noise {self.noise:g}: a finite number that is not negative is accepted")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"--tokens {self.tokens}: a positive whole number is accepted")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"--seed {self.seed}: a whole number from 0 on is accepted")

    @property
    def given(self) -> dict[str, Any]:
        """By the names of `attnc.compile`'s arguments."""
        return {name: wish for name, wish in vars(self).items() if wish is not None}

    def check_file(self, source: str) -> None:
        """A file of weights is a network: its values need not be found."""
        names = [f"--{name}" for name in self.given if name != "form"]
        if names:
            raise InputError(
                f"{' and '.join(names)}: only for a function, module:object; {source} is a file of weights, which is "
                "compiled as it is"
            )


def _check_word(option: str, word: str | None, accepted: Sequence[str]) -> None:
    if word is not None and word not in accepted:
        raise InputError(f"{option} {word}: accepted are {', '.join(accepted)}")
