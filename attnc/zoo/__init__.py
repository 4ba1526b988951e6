"""A zoo of attention-only models whose mechanism is known: built when they are asked for, each with a certificate.

>>> from attnc import zoo
>>> zoo.names()[:3]
('copy-previous', 'reverse', 'histogram')
>>> net = zoo.load("induction")
>>> "".join(net.run("abcab")), net.certificate.proved
('---bc', True)
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import torch

from attnc.arguments import torch_dtype
from attnc.errors import InputError
from attnc.frontends.tokens import ProgramBuilder, Variable
from attnc.progress import watched
from attnc.zoo.continuous import MODELS, ContinuousModel
from attnc.zoo.token_tasks import TASKS, TokenTask

__all__ = ["ContinuousModel", "TokenTask", "about", "load", "names", "program"]
_KINDS = {None: (*TASKS, *MODELS), "tokens": tuple(TASKS), "continuous": tuple(MODELS)}


def names(kind: str | None = None) -> tuple[str, ...]:
    """The names of all models, or of those with tokens ("tokens") or numbers ("continuous") as inputs.

    >>> names("continuous")[:2]
    ('sort-numbers', 'running-maximum')
    """
    if kind not in _KINDS:
        raise InputError(f"kind={kind!r}: give 'tokens', 'continuous' or None")
    return _KINDS[kind]


def about(name: str) -> TokenTask | ContinuousModel:
    """What a model computes, and its mechanism in words; of a token model also its size and an example.

    >>> about("parity").computes
    'the parity of the ones up to each position'
    """
    if isinstance(name, str) and name in _KINDS[None]:
        return TASKS[name] if name in TASKS else MODELS[name]
    near = difflib.get_close_matches(str(name), _KINDS[None], 1)
    hint = f"; did you mean {near[0]!r}?" if near else f": the names are {', '.join(_KINDS[None])}"
    if modulus := re.fullmatch(r"add-mod-([1-9]\d{0,3})", str(name)):
        hint = f". {_others('add-mod-7', f'range({modulus[1]})', 2)}"
    raise InputError(f"there is no model {name!r} in the zoo{hint}")


def _others(name: str, vocabulary: str, length: int) -> str:
    """How to build the program of a model with other tokens."""
    return (
        f"For other tokens use its program: p, output = zoo.about({name!r}).build({vocabulary}, {length}); net = "
        "p.compile(output)"
    )


def program(
    name: str, vocabulary: int | None = None, length: int | None = None
) -> tuple[ProgramBuilder, Variable]:
    """The program of a token model and its output, to compile, change or interpret.

    >>> p, output = program("histogram", vocabulary=3, length=4)
    >>> p.interpret(output, "aba")
    [2, 1, 2]
    """
    task = about(name)
    if not isinstance(task, TokenTask):
        raise InputError(f"{name} is not a token program: those are {', '.join(TASKS)}")
    for what, given in (("vocabulary", vocabulary), ("length", length)):
        if given is not None and (type(given) is not int or given < 1):
            raise InputError(f"{what}={given!r}: give a positive whole number")
    most_tokens = len(task.symbols)
    fixed = task.fixed_vocabulary and vocabulary not in (None, task.vocabulary)
    if fixed or (vocabulary or 0) > most_tokens:
        most = f"exactly {task.vocabulary}" if task.fixed_vocabulary else f"at most {most_tokens}"
        own = (
            f"range({vocabulary})" if isinstance(task.symbols, range) else "[…]"
        )  # what brackets mean is in the program
        advice = (
            "" if task.fixed_vocabulary and own == "[…]" else f". {_others(name, own, length or task.length)}"
        )
        raise InputError(f"vocabulary={vocabulary}: {name} has {most} tokens{advice}")
    return task.program(vocabulary, length)


@watched("building a model of the zoo")
def load(
    name: str,
    dtype: torch.dtype | str | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
) -> Any:
    """Build a model with its certificate: an `attnc.tokens.TokenNetwork`, or a Network, Learner or Solver.

    The dtype is float32 for token models and float64 for the others unless it is given. `vocabulary` and `length` change the size
    of a token model.

    >>> load("histogram", vocabulary=2, length=5).run("aab")
    [2, 2, 1]
    """
    model = about(name)
    if isinstance(model, ContinuousModel):
        if vocabulary is not None or length is not None:
            raise InputError(f"{name} has no vocabulary and no length to choose")
        return model.build(torch_dtype(dtype or torch.float64))
    p, output = program(name, vocabulary, length)
    return p.compile(output, dtype or torch.float32)
