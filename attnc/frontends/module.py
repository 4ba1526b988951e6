"""module_to_program: the program of a trained torch module."""

from __future__ import annotations

import copy
import inspect
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Box
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.comparison import disagreement, fails, strided
from attnc.frontends.operations import Builder
from attnc.frontends.problems import DTYPES, inspected, model_dtype, part_name
from attnc.frontends.translate import KNOWN, Translator
from attnc.program import Affine, Program
from attnc.program.step import Shape

_SYMBOL = re.compile(r"\b[su]\d+\b")  # torch's names of sizes that may vary
_BATCH = 7  # of the example that is recorded: any number, as the axis is dynamic


def module_to_program(model: nn.Module, shape: Shape, box: Box | None = None) -> Program:
    """The program of a module in eval mode, for inputs of a shape (without the batch axis).

    torch.export records the operations that the module executes, and they are translated one by one. The numbers of the program
    are the stored numbers of the module; numbers in the code (a slope, an alpha, x * 0.1) are python's floats. The error lists
    every operation that is not supported.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).eval()
    >>> [step.kind for step in module_to_program(model, (4,)).steps]
    ['affine', 'pointwise', 'affine']
    >>> module_to_program(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Softmax(-1)).eval(), (4,))
    Traceback (most recent call last):
        ...
    attnc.errors.UnsupportedError: Sequential cannot be compiled (supported operations: ...):
      - aten.layer_norm in 1 (LayerNorm): is not supported
      - aten.softmax in 2 (Softmax): is not supported: leave it off and compile the logits
    """
    problems, readable = inspected(model)
    program = _read(model, shape, problems) if readable else None
    if program is not None and not problems:
        with preserved(model, problems):
            found = disagreement(model, program, box)
        problems += [found] if found else []
    if problems or program is None:
        what = f"{type(model).__name__} cannot be compiled (supported operations: {', '.join(sorted(KNOWN))})"
        raise UnsupportedError(what, problems)
    return program


def _read(model: nn.Module, shape: Shape, problems: list[Problem]) -> Program | None:
    """The program that is the same in all recordings: with and without gradients, on contiguous and on strided input."""
    where = part_name("", model)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(None)
    except TypeError:
        names = [p.name for p in signature.parameters.values() if p.default is p.empty]
        taken = f"the inputs {', '.join(names)}" if names else "no input"
        reason = f"takes {taken}: one input is accepted; wrap the module in another one that sets the others"
        problems.append(Problem(where, reason))
        return None
    with preserved(model, problems), _without_hooks(model):
        found = _recordings(model, shape)
    if isinstance(found, Problem):
        problems.append(found)
        return None
    program = _translated(found[0], shape, problems)
    if program is None or problems:
        return program
    for other in found[1:]:
        others: list[Problem] = []
        again = _translated(other, shape, others)
        if again is None or again.digest() != program.digest():
            reason = "computes different results with and without gradients, or on strided input"
            problems.append(Problem(where, f"{reason}{''.join(f' ({p})' for p in others[:1])}"))
            return None
    return program


def _recordings(model: nn.Module, shape: Shape) -> list[Captured] | Problem:
    """What the module executes with and without gradients, on contiguous and on strided input, and on input that requires
    gradients. A call that fails (`view` does on strided input) computes nothing, and is left out."""
    tensors = (*model.parameters(), *model.buffers())
    like = next((t for t in tensors if t.dtype in DTYPES), torch.empty(0, dtype=torch.float32))
    with torch.inference_mode(False):
        example = torch.zeros((_BATCH, *shape), dtype=like.dtype, device=like.device)
        other, tracked = strided(example), example.clone().requires_grad_()
    found: list[Captured] = []
    failed: list[Problem] = []
    ways = [(example, True), (other, False), (example, False), (other, True)]
    if not any(t.is_inference() for t in tensors):  # which cannot require gradients
        ways.append((tracked, True))
    for x, grad in ways:
        recorded = _captured(model, x, grad)
        if isinstance(recorded, Captured):
            found.append(recorded)
        elif not fails(model, x, grad):
            return recorded
        else:
            failed.append(recorded)
    return found or failed[0]


def _captured(model: nn.Module, example: Tensor, grad: bool) -> Captured | Problem:
    first = next(iter(inspect.signature(model.forward).parameters.values()))
    batch: Any = {0: torch.export.Dim.DYNAMIC}
    shapes = ((batch,),) if first.kind is first.VAR_POSITIONAL else (batch,)  # *inputs is a tuple
    try:
        return capture(model, (example,), dynamic_shapes=shapes, grad=grad, pure=True)
    except CaptureError as problem:
        part = model.get_submodule(problem.path)
        if isinstance(part, nn.Linear) and problem.shape and problem.shape[-1] != part.in_features:
            reason = f"takes {part.in_features} features, and its input has shape {problem.shape[1:]}"
            return Problem(problem.where, reason)
        return Problem(problem.where, _SYMBOL.sub("batch", problem.reason))


def _translated(captured: Captured, shape: Shape, problems: list[Problem]) -> Program | None:
    dtype = np.float64 if model_dtype(captured.module) is torch.float64 else np.float32
    builder = Builder(shape, np.dtype(dtype))
    output = Translator(builder, captured).output()
    problems += [p for p in builder.problems if p not in problems]
    if output is None or problems:
        return None
    program = builder.program(output)
    where = part_name("", captured.module)
    if not any(isinstance(step, Affine) for step in program.steps):
        reason = "has no linear layer between input and output: give a network with nn.Linear layers, or use attnc.head"
        problems.append(Problem(where, reason))
    # assumptions about strides, which are symbols too, do not matter: the results are compared
    batch = str(captured.inputs[0].meta["val"].shape[0])
    found = [a for a in captured.assumptions if set(_SYMBOL.findall(a)) == {batch}]
    assumed = [_SYMBOL.sub("batch", a) for a in found]
    if assumed:
        reason = f"depends on the batch size ({', '.join(assumed)}): a result must not depend on it"
        problems.append(Problem(where, reason))
    return program


@contextmanager
def _without_hooks(model: nn.Module) -> Iterator[None]:
    """Eval mode, and no forward hooks: `inspected` reports both, and a recording then finds the other problems."""
    kept = [(part, part.training, part._forward_hooks, part._forward_pre_hooks) for part in model.modules()]
    try:
        for part, _, hooks, before in kept:
            part.training = False
            part._forward_hooks, part._forward_pre_hooks = type(hooks)(), type(before)()
        yield
    finally:
        for part, training, hooks, before in kept:
            part.training = training
            part._forward_hooks, part._forward_pre_hooks = hooks, before


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
    else:
        kept, now = ([*c, *c.values()] if isinstance(c, dict) else c for c in (content, current))
        same = list(map(id, kept)) == list(map(id, now))
    if not same:
        current.clear()
        current.extend(content) if isinstance(content, list) else current.update(content)
    return not same
