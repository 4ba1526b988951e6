"""module_to_program: the program of a trained torch module, whose operations are recorded and translated one by one."""

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
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from attnc.domain import Box, Tokens
from attnc.errors import Problem, UnsupportedError
from attnc.frontends import aten, operations
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.frontends.caller import unwrapped, unwrapped_problems, with_one_output
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.comparison import disagreement, fails, strided
from attnc.frontends.operations import BATCH, OPERATIONS, RESHAPES, Builder, Constant, Value
from attnc.frontends.problems import DTYPES, inspected, model_dtype, part_name
from attnc.frontends.sequence import is_sequence, sequence_program
from attnc.program import Affine, Program
from attnc.program.step import Shape

KNOWN = frozenset({*ACTIVATIONS, *OPERATIONS, *RESHAPES})
_PARAMETERS = {name: inspect.signature(f).parameters for name, f in {**OPERATIONS, **ACTIVATIONS}.items()}
_ACCEPTED = "one tensor that depends on the input is accepted"
_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again
_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_SYMBOL = re.compile(r"\b[su]\d+\b")  # torch's names of sizes that may vary
_NOT_ONE = "Ne(batch, 1)"
_BATCH = 7  # of the example that is recorded: any number, as the axis is dynamic


def module_to_program(
    model: nn.Module, shape: Shape, box: Box | None = None, output: str | None = None
) -> Program:
    """The program of a module in eval mode, for inputs of a shape (without the batch axis): tensors, or token ids if the box is a
    `Tokens`. `output` names one of several outputs; without it the first tensor is taken.

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
      - aten.softmax in 2 (Softmax): is not supported: leave it off and compile the logits
    """
    caller = with_one_output(model, isinstance(box, Tokens), output)
    problems, readable = inspected(model, own_calls=caller is not model)
    program = _read(caller, shape, problems, box) if readable else None
    if program is not None and not problems:
        with preserved(caller, problems):
            found = disagreement(caller, program, box)
        problems += [found] if found else []
    if problems or program is None:
        what = f"{type(model).__name__} cannot be compiled (supported operations: {', '.join(sorted(KNOWN))})"
        raise UnsupportedError(what, unwrapped_problems(caller, problems))
    return unwrapped(program)


def _read(model: nn.Module, shape: Shape, problems: list[Problem], box: Box | None) -> Program | None:
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
        found = _recordings(model, shape, ids=isinstance(box, Tokens))
    if isinstance(found, Problem):
        problems.append(found)
        return None
    program = _translated(found[0], shape, problems, box)
    if program is None or problems:
        return program
    for other in found[1:]:
        others: list[Problem] = []
        again = _translated(other, shape, others, box)
        if again is None or again.digest() != program.digest():
            reason = "computes different results with and without gradients, on strided input, or in a batch of one"
            problems.append(Problem(where, f"{reason}{''.join(f' ({p})' for p in others[:1])}"))
            return None
    return program


def _recordings(model: nn.Module, shape: Shape, *, ids: bool) -> list[Captured] | Problem:
    """What the module executes with and without gradients, on contiguous and on strided input, and on input that requires
    gradients. A call that fails (`view` does on strided input) computes nothing, and is left out. A sequence model that tests
    whether there is one input is recorded with one, too."""
    tensors = (*model.parameters(), *model.buffers())
    like = next((t for t in tensors if t.dtype in DTYPES), torch.empty(0, dtype=torch.float32))
    with torch.inference_mode(False):
        example = torch.zeros((_BATCH, *shape), dtype=torch.int64 if ids else like.dtype, device=like.device)
        other, tracked = strided(example), example.clone().requires_grad_(not ids)
    found: list[Captured] = []
    failed: list[Problem] = []
    ways = [(example, True), (other, False), (example, False), (other, True)]
    if not any(t.is_inference() for t in tensors):  # which cannot require gradients
        ways.append((tracked, True))
    for x, grad in ways[:2] if ids else ways:
        recorded = _captured(model, x, grad)
        if isinstance(recorded, Captured):
            found.append(recorded)
        elif not fails(model, x, grad):
            return recorded
        else:
            failed.append(recorded)
    if found and is_sequence(found[0]) and _assumed(found[0]) == [_NOT_ONE]:
        alone = _captured(model, example[:1], grad=True, fixed=True)
        return [*found, alone] if isinstance(alone, Captured) else alone
    return found or failed[0]


def _captured(model: nn.Module, example: Tensor, grad: bool, *, fixed: bool = False) -> Captured | Problem:
    """`fixed`: for the batch size of the example alone."""
    first = next(iter(inspect.signature(model.forward).parameters.values()))
    batch: Any = None if fixed else {0: torch.export.Dim.DYNAMIC}
    shapes = ((batch,),) if first.kind is first.VAR_POSITIONAL else (batch,)  # *inputs is a tuple
    try:
        return capture(model, (example,), dynamic_shapes=shapes, grad=grad, pure=True)
    except CaptureError as problem:
        part = model.get_submodule(problem.path)
        if isinstance(part, nn.Linear) and problem.shape and problem.shape[-1] != part.in_features:
            reason = f"takes {part.in_features} features, and its input has shape {problem.shape[1:]}"
            return Problem(problem.where, reason)
        return Problem(problem.where, _SYMBOL.sub("batch", problem.reason))


def _translated(captured: Captured, shape: Shape, problems: list[Problem], box: Box | None) -> Program | None:
    dtype = np.dtype(np.float64 if model_dtype(captured.module) is torch.float64 else np.float32)
    where, ids = part_name("", captured.module), isinstance(box, Tokens)
    sequence = ids or is_sequence(captured)
    if sequence:
        program = sequence_program(captured, shape, dtype, problems, ids=ids)
    else:
        builder = Builder(shape, dtype)
        output = Translator(builder, captured).output()
        problems += [p for p in builder.problems if p not in problems]
        program = None if output is None or problems else builder.program(output)
    if program is None or problems:
        return None
    if not any(isinstance(step, Affine) for step in program.steps):
        reason = "has no linear layer between input and output: give a network with nn.Linear layers, or use attnc.head"
        problems.append(Problem(where, reason))
    assumed = [a for a in _assumed(captured) if not (sequence and a == _NOT_ONE)]
    if assumed:
        reason = f"depends on the batch size ({', '.join(assumed)}): a result must not depend on it"
        problems.append(Problem(where, reason))
    return program


def _assumed(captured: Captured) -> list[str]:
    """What was assumed about the batch size. Assumptions about strides, which are symbols too, do not matter: the results are
    compared."""
    batch = str(captured.inputs[0].meta["val"].shape[0])
    found = [a for a in captured.assumptions if set(_SYMBOL.findall(a)) == {batch}]
    return [_SYMBOL.sub("batch", a) for a in found]


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


class Translator:
    """Walks a captured graph, in which every node is one value, in the order of execution."""

    def __init__(self, builder: Builder, captured: Captured) -> None:
        self.builder, self._captured = builder, captured
        self._known: dict[fx.Node, Any] = {}
        self._batch = str(captured.inputs[0].meta["val"].shape[0])

    def output(self) -> Value | None:
        """The value that the forward returns; None if it was refused."""
        live = _live(self._captured.graph)
        returned: object = _UNKNOWN
        for node in self._captured.graph.nodes:
            self.builder.name, where = self._captured.path(node), self._captured.where(node)
            self.builder.where = f"{_shown(node)} in {where}" if node.op == "call_function" else where
            try:
                if node.op == "output":
                    returned = self._returned()
                else:
                    self._known[node] = self._node(node)
            except RefusedError as refusal:
                self._known[node] = self._stand_in(node)
                if node in live:
                    self.builder.report(str(refusal))
        return returned if isinstance(returned, Value) else None

    def _node(self, node: fx.Node) -> object:
        if node.op == "placeholder" and node in self._captured.inputs:
            return self.builder.input if node is self._captured.inputs[0] else _UNKNOWN
        if node.op == "placeholder":
            return Constant(self._captured.tensors[node.name], self._captured.names[node.name])
        if node.op != "call_function":
            return _UNKNOWN  # the body of a higher-order operation, which is refused where it is called
        given: dict[str, Any] = fx.node.map_arg(aten.arguments(node), self._known.__getitem__)
        if not isinstance(node.target, OpOverload):
            return self._python(node, list(given.values()))
        name, leaves = aten.name(node), tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves):
            if name not in KNOWN:
                raise RefusedError(operations.HINTS.get(name, "is not supported"))
            return self._stand_in(node)
        changed = aten.written(node)
        if len(changed) > 1 or (changed and changed[0] is not node.args[0]):
            raise RefusedError("writes into a tensor that is given to it, as by out=: use what it returns")
        if not any(isinstance(leaf, Value) for leaf in leaves):
            return self._folded(node.target, name, given, bool(changed))
        result, fake, own = self._operation(node, name, given), node.meta["val"], _TORCH[self.builder.dtype]
        if not isinstance(result, Value):
            return result
        if fake.dtype is not own:
            raise RefusedError(f"turns a value of {own} into {fake.dtype}: leave the cast out")
        if self._features(node) != result.shape:
            raise RefusedError(f"returns the shape {tuple(fake.shape)}, where (batch, …) is expected")
        return result

    def _returned(self) -> object:
        captured = self._captured
        if not captured.structure.is_leaf():
            raise RefusedError(f"returns a {captured.structure.type.__name__}: {_ACCEPTED}")
        last = captured.outputs[-1]  # tensors that an operation in place has changed stand before it
        result = self._known[last] if isinstance(last, fx.Node) else last
        if result is _UNKNOWN or isinstance(result, Value):
            return result
        what = "its own numbers" if isinstance(result, Constant) else f"a {type(result).__name__}"
        raise RefusedError(f"returns {what}: {_ACCEPTED}")

    def _python(self, node: fx.Node, given: list[Any]) -> object:
        """Arithmetic of sizes, parts of tuples, and torch's higher-order operations."""
        leaves = tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves) and getattr(node.target, "__name__", "") == "getitem":
            return self._stand_in(node)
        if any(leaf is BATCH for leaf in leaves):
            raise RefusedError("computes with the batch size: a result must not depend on it")
        if "autocast" in _shown(node):
            raise RefusedError("rounds to a narrower type: leave torch.autocast out of forward")
        raise RefusedError("is not supported")

    def _operation(self, node: fx.Node, name: str, given: dict[str, Any]) -> object:
        """The operation, called with the arguments that it supports; the others must have their default values."""
        if name not in KNOWN:
            raise RefusedError(operations.HINTS.get(name, "is not supported"))
        (_, first), *rest = given.items()
        if name in RESHAPES and isinstance(first, Value):  # torch has computed the shape
            shape = self._features(node)
            if shape is None:
                raise RefusedError("does not keep the batch axis: use x.flatten(1) or x.reshape(len(x), …)")
            return self.builder.reshaped(first, shape)
        supported = _PARAMETERS[name]
        if not isinstance(first, Value) and (name in ACTIVATIONS or supported["input"].annotation == "Value"):
            raise RefusedError("is applied to the model's own numbers, not to a value of the input")
        everything = any(p.kind is p.VAR_KEYWORD for p in supported.values())
        defaults = aten.defaults(node)
        for key, value in rest:
            if key not in supported and not everything and (key not in defaults or value != defaults[key]):
                raise RefusedError(f"has {key}={value!r}, which is not supported")
        named = {key: value for key, value in rest if key in supported or everything}
        required = [p for p in supported.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        if any(p.name not in ("b", "input", *named) for p in required):
            raise RefusedError(f"is called as {node.target}, which is not supported")
        if name in OPERATIONS:
            return OPERATIONS[name](self.builder, first, **named)
        assert isinstance(first, Value)
        for key, x in named.items():
            named[key] = self.builder.number(x, key) if isinstance(x, Constant) else x
        return self.builder.apply(first, activation(name, named))

    def _folded(self, target: OpOverload, name: str, given: dict[str, Any], changes: bool) -> object:
        """An operation on constants alone. On the model's numbers only those that round nothing are carried out."""
        leaves = tree_leaves(given)
        constants = [leaf for leaf in leaves if isinstance(leaf, Constant)]
        created = all(c.created for c in constants)
        if changes and not created:
            raise RefusedError("changes the model's own numbers: a forward that only computes is accepted")
        if any(leaf is BATCH for leaf in leaves):
            raise RefusedError("creates a tensor of the batch size: a result must not depend on it")
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise RefusedError("draws random numbers: a result that depends on the input alone is accepted")
        if target.namespace != "aten":
            raise RefusedError("is not supported")
        if not created and name not in operations.REARRANGES:
            raise RefusedError(operations.OWN_NUMBERS)
        if "empty" in name:
            raise RefusedError("leaves its numbers undefined: give them, as by torch.zeros")
        with torch.no_grad():
            plain = fx.node.map_aggregate(given, lambda x: x.tensor if isinstance(x, Constant) else x)
            result = target(**plain)
        if not isinstance(result, Tensor):
            raise RefusedError("is not supported on constants")
        fresh = created or name == "lift_fresh_copy"  # python's numbers, which torch.export keeps as a tensor
        return Constant(result, constants[0].name if constants else "a tensor created in forward", fresh)

    def _stand_in(self, node: fx.Node) -> object:
        """In place of something refused, a value of its shape, so that what follows is inspected as well."""
        shape = self._features(node)
        return _UNKNOWN if shape is None else Value(0, shape)

    def _features(self, node: fx.Node) -> Shape | None:
        """The shape of a result without the batch axis; None if its first axis is another one."""
        fake = node.meta.get("val")
        sizes = tuple(fake.shape) if isinstance(fake, Tensor) else ()
        keeps = len(sizes) > 1 and str(sizes[0]) == self._batch and all(type(n) is int for n in sizes[1:])
        return sizes[1:] if keeps else None


def _shown(node: fx.Node) -> str:
    """How messages name an operation: 'aten.relu_'."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.replace("::", ".")
    return str(getattr(node.target, "__name__", node.target))


def _live(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the output is computed from, and those that write to memory."""
    found: set[fx.Node] = set()
    todo = [node for node in graph.nodes if node.op == "output" or aten.written(node)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found
