"""A module left as it was, whatever running its forward does to it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import Problem
from attnc.frontends.problems import called


@contextmanager
def preserved(model: nn.Module, problems: list[Problem]) -> Iterator[None]:
    """Put back every attribute that running the forward changes, and report each: a function keeps no state.

    torch.export puts copies of lists and dicts in their places; those are put back, and not reported.
    """
    before = [(name, part, dict(vars(part)), _inside(part)) for name, part in model.named_modules()]
    try:
        yield
    finally:
        for name, part, attributes, inside in before:
            changed = {
                a for a in vars(part).keys() | attributes.keys() if vars(part).get(a) is not attributes.get(a)
            }
            now = {a: vars(part).pop(a, None) for a in changed}
            vars(part).update({a: attributes[a] for a in changed & attributes.keys()})
            changed = {a for a in changed if not _is_copy(now[a], inside.get(a, attributes.get(a)))}
            changed |= {a for a, content in inside.items() if _put_back(attributes[a], content)}
            if changed:
                listed = ", ".join(sorted(changed))
                reason = f"changes {listed} when it runs: a forward that only computes is accepted"
                problems.append(Problem(called(name, part), reason))


def _inside(part: nn.Module) -> dict[str, Any]:
    """Copies of the attributes that can change while they stay the same object."""
    kinds = (list, dict, OrderedDict, set)
    found: dict[str, Any] = {a: copy.copy(v) for a, v in vars(part).items() if type(v) in kinds}
    plain = {a: v.detach().clone() for a, v in vars(part).items() if type(v) is Tensor and not v.is_meta}
    return found | plain


def _put_back(current: Any, content: Any) -> bool:
    """Whether it had changed."""
    if isinstance(content, Tensor):
        if torch.equal(current, content) or bool(torch.isnan(content).any()):
            return False
        with torch.no_grad():
            current.copy_(content)
        return True
    if isinstance(content, set):
        same = current == content
    elif isinstance(content, dict):
        same = current.keys() == content.keys() and all(current[k] is v for k, v in content.items())
    else:
        same = len(current) == len(content) and all(a is b for a, b in zip(current, content, strict=True))
    if not same:
        current.clear()
        current.extend(content) if isinstance(content, list) else current.update(content)
    return not same


def _is_copy(new: Any, old: Any) -> bool:
    """Whether a container holds what another of its kind held."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(old, dict):
        return list(new) == list(old) and all(_is_copy(new[k], v) for k, v in old.items())
    if isinstance(old, (list, tuple)):
        return len(new) == len(old) and all(map(_is_copy, new, old))
    return isinstance(old, (int, float, str, bytes)) and new == old
