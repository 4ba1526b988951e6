"""preserved: a module keeps its state, whatever running its forward does to it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import Problem
from attnc.frontends.problems import part_name


@contextmanager
def preserved(model: nn.Module, problems: list[Problem]) -> Iterator[None]:
    """Restore every attribute that running the forward changes, and report it: a function has no state."""
    before = [(name, part, dict(vars(part)), _contents(part)) for name, part in model.named_modules()]
    try:
        yield
    finally:
        for name, part, attributes, contents in before:
            now = vars(part)
            changed = {a for a in now.keys() | attributes.keys() if now.get(a) is not attributes.get(a)}
            for attribute in changed & now.keys():
                del now[attribute]
            now.update({a: attributes[a] for a in changed & attributes.keys()})
            changed |= {a for a, content in contents.items() if _restore(attributes[a], content)}
            if changed:
                reason = f"changes {', '.join(sorted(changed))} when it runs: a forward that only computes is accepted"
                problems.append(Problem(part_name(name, part), reason))


def _contents(part: nn.Module) -> dict[str, Any]:
    """Copies of the attributes that can change while they remain the same object."""
    kinds = (list, dict, OrderedDict, set)
    found: dict[str, Any] = {a: copy.copy(v) for a, v in vars(part).items() if type(v) in kinds}
    tensors = {a: v.detach().clone() for a, v in vars(part).items() if type(v) is Tensor and not v.is_meta}
    return found | tensors


def _restore(current: Any, content: Any) -> bool:
    """Put the content back; whether it had changed."""
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
