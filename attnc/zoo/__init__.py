"""A zoo of transformers whose mechanism is known: built when they are asked for, each with a certificate.

>>> from attnc import zoo
>>> zoo.names()[:3]
('copy-previous', 'reverse', 'histogram')
>>> net = zoo.load("induction")
>>> "".join(net.run("abcab")), net.certificate.proved
('---bc', True)
"""

from __future__ import annotations

import difflib

import torch

from attnc.errors import InputError
from attnc.frontends.tokens import ProgramBuilder, Variable
from attnc.network.tokens import TokenNetwork
from attnc.zoo.token_tasks import TASKS, TokenTask

__all__ = ["TokenTask", "about", "load", "names", "program"]


def names() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(TASKS)


def about(name: str) -> TokenTask:
    """What a model computes, its mechanism in words, its size and an example.

    >>> about("parity").computes
    'the parity of the ones up to each position'
    """
    if not isinstance(name, str) or name not in TASKS:
        near = difflib.get_close_matches(str(name), TASKS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f": the names are {', '.join(TASKS)}"
        raise InputError(f"there is no model {name!r} in the zoo{hint}")
    return TASKS[name]


def program(
    name: str, vocabulary: int | None = None, length: int | None = None
) -> tuple[ProgramBuilder, Variable]:
    """The program of a model and its output, to compile, change or interpret.

    >>> p, output = program("histogram", vocabulary=3, length=4)
    >>> p.interpret(output, "aba")
    [2, 1, 2]
    """
    task = about(name)
    for what, given in (("vocabulary", vocabulary), ("length", length)):
        if given is not None and (type(given) is not int or given < 1):
            raise InputError(f"{what}={given!r}: give a positive whole number")
    fixed = task.fixed_vocabulary and vocabulary not in (None, task.vocabulary)
    if fixed or (vocabulary or 0) > task.most_vocabulary:
        most = f"exactly {task.vocabulary}" if task.fixed_vocabulary else f"at most {task.most_vocabulary}"
        raise InputError(f"vocabulary={vocabulary}: {name} has {most} tokens")
    return task.build(vocabulary or task.vocabulary, length or task.length)


def load(
    name: str,
    dtype: torch.dtype = torch.float32,
    vocabulary: int | None = None,
    length: int | None = None,
) -> TokenNetwork:
    """Build a model and prove it. `vocabulary` and `length` change its size.

    >>> load("histogram", vocabulary=2, length=5).run("aab")
    [2, 2, 1]
    """
    p, output = program(name, vocabulary, length)
    return p.compile(output, dtype)
