"""module_to_program: the program of a trained torch module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Box
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.builder import Builder
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.comparison import disagreement, fails, strided
from attnc.frontends.module_state import preserved
from attnc.frontends.problems import DTYPES, inspected, model_dtype
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
    seen = inspected(model)
    problems = list(seen.problems)
    program = None
    if not seen.opaque:
        program = _read(model, shape, problems)
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
    where = f"the model ({type(model).__name__})"
    several = _several_inputs(model)
    if several:
        problems.append(Problem(where, several))
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
    own = next((t for t in tensors if t.dtype in DTYPES), torch.empty(0))
    with torch.inference_mode(False):
        example = torch.zeros((_BATCH, *shape), dtype=model_dtype(model), device=own.device)
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
    dynamic = torch.export.Dim.DYNAMIC
    try:
        return capture(
            model, (example,), dynamic_shapes=_first_input(model, {0: dynamic}), grad=grad, pure=True
        )
    except CaptureError as problem:
        part = model.get_submodule(problem.path)
        if isinstance(part, nn.Linear) and problem.shape and problem.shape[-1] != part.in_features:
            reason = f"takes {part.in_features} features, and its input has shape {problem.shape[1:]}"
            return Problem(problem.where, reason)
        return Problem(problem.where, _SYMBOL.sub("batch", problem.reason))


def _about_the_batch(captured: Captured) -> list[str]:
    """What the recording assumes about the batch size (of strides, which are symbols too, the results are compared)."""
    batch = str(captured.inputs[0].meta["val"].shape[0])
    found = [a for a in captured.assumptions if set(_SYMBOL.findall(a)) == {batch}]
    return [_SYMBOL.sub("batch", a) for a in found]


def _first_input(model: nn.Module, shapes: Any) -> Any:
    """torch.export names dynamic shapes as forward names its inputs: *inputs is a tuple."""
    first = next(iter(inspect.signature(model.forward).parameters.values()))
    return ((shapes,),) if first.kind is first.VAR_POSITIONAL else (shapes,)


def _translated(captured: Captured, shape: Shape, problems: list[Problem]) -> Program | None:
    builder = Builder(
        shape, np.dtype(np.float64 if model_dtype(captured.module) is torch.float64 else np.float32)
    )
    output = Translator(builder, captured).output()
    problems += [p for p in builder.problems if p not in problems]
    if output is None or problems:
        return None
    program = builder.program(output)
    where = f"the model ({type(captured.module).__name__})"
    if not any(isinstance(step, Affine) for step in program.steps):
        reason = "has no linear layer between input and output: give a network with nn.Linear layers, or use attnc.head"
        problems.append(Problem(where, reason))
    assumed = _about_the_batch(captured)
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


def _several_inputs(model: nn.Module) -> str | None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(None)
    except TypeError:
        names = [p.name for p in signature.parameters.values() if p.default is p.empty]
        taken = f"the inputs {', '.join(names)}" if names else "no input"
        return f"takes {taken}: one input is accepted; wrap the module in another one that sets the others"
    return None
