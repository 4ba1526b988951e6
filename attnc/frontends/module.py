"""module_to_program: the program of a trained torch module, whose operations are recorded and translated one by one."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from attnc.domain import Box, Tokens
from attnc.errors import Problem, UnsupportedError, page
from attnc.frontends import aten, operations
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.frontends.caller import unwrapped, unwrapped_problems, with_one_output
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.comparison import disagreement, fails, strided, swapped
from attnc.frontends.operations import BATCH, OPERATIONS, Builder, Constant, Value
from attnc.frontends.problems import inspected, like, part_name
from attnc.frontends.sequence import is_sequence, sequence_program
from attnc.program import Affine, Program
from attnc.program.step import Shape

KNOWN = frozenset({*ACTIVATIONS, *OPERATIONS, *aten.RESHAPES})
_SIGNATURES = {name: inspect.signature(f) for name, f in {**OPERATIONS, **ACTIVATIONS}.items()}
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
    attnc.errors.UnsupportedError: Sequential cannot be compiled; the page 'Networks: from a module to attention' of the
    documentation (docs/networks.md) lists the supported operations, ...:
      - aten.softmax in 2 (Softmax): is not supported: leave it off and compile the logits...
    """
    ids = isinstance(box, Tokens)
    caller = with_one_output(model, ids, output)
    problems, readable = inspected(model, own_calls=caller is not model)
    program = None
    with preserved(caller, problems):
        try:
            program = _read(caller, shape, ids) if readable else None
        except UnsupportedError as refusal:
            problems += [problem for problem in refusal.problems if problem not in problems]
    if program is not None and not problems:
        with preserved(caller, problems):
            found = disagreement(caller, program, box)
        problems += [found] if found else []
    if problems or program is None:
        lists = (
            f"{page('networks')} lists the supported operations, {page('architecture')} says how to add one"
        )
        what = f"{type(model).__name__} cannot be compiled; {lists}"
        raise UnsupportedError(what, unwrapped_problems(caller, problems))
    return unwrapped(program)


def _refused(where: str, reason: str) -> UnsupportedError:
    return UnsupportedError("the module is refused", [Problem(where, reason)])


def _read(model: nn.Module, shape: Shape, ids: bool) -> Program:
    """The program that is the same in all recordings: with and without gradients, on contiguous and on strided input."""
    where = part_name("", model)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(None)
    except TypeError:
        names = [p.name for p in signature.parameters.values() if p.default is p.empty]
        taken = f"the inputs {', '.join(names)}" if names else "no input"
        advice = "one input is accepted; wrap the module in another one that sets the others"
        raise _refused(where, f"takes {taken}: {advice}") from None
    with _without_hooks(model):
        found = _recordings(model, shape, ids)
    program = _translated(found[0], shape, ids)
    for other in found[1:]:
        why = ""
        try:
            same = _translated(other, shape, ids).digest() == program.digest()
        except UnsupportedError as refusal:
            same, why = False, "".join(f" ({problem})" for problem in refusal.problems[:1])
        if not same:
            reason = "computes different results with and without gradients, on strided input, or in a batch of one"
            raise _refused(where, f"{reason}{why}")
    return program


def _recordings(model: nn.Module, shape: Shape, ids: bool) -> list[Captured]:
    """What the module executes with and without gradients, on contiguous and on strided input, and on input that requires
    gradients. A call that fails (`view` does on strided input) computes nothing, and is left out. A sequence model that tests
    whether there is one input is recorded with one, too."""
    with torch.inference_mode(False):
        dtype = torch.int64 if ids else like(model).dtype
        example = torch.zeros((_BATCH, *shape), dtype=dtype, device=like(model).device)
        other, tracked = strided(example), example.clone().requires_grad_(not ids)
    found: list[Captured] = []
    failed: list[UnsupportedError] = []
    ways = [(example, True), (other, False), (example, False), (other, True)]
    if not any(t.is_inference() for t in (*model.parameters(), *model.buffers())):  # which has no gradients
        ways.append((tracked, True))
    for x, grad in ways[:2] if ids else ways:
        try:
            found.append(_captured(model, x, grad))
        except UnsupportedError as refusal:
            if not fails(model, x, grad):
                raise
            failed.append(refusal)
    if not found:
        raise failed[0]
    if is_sequence(found[0]) and _assumed(found[0]) == [_NOT_ONE]:
        found.append(_captured(model, example[:1], True, fixed=True))
    return found


def _captured(model: nn.Module, example: Tensor, grad: bool, *, fixed: bool = False) -> Captured:
    """`fixed`: for the batch size of the example alone."""
    first = next(iter(inspect.signature(model.forward).parameters.values()))
    batch: Any = None if fixed else {0: torch.export.Dim.DYNAMIC}
    shapes = ((batch,),) if first.kind is first.VAR_POSITIONAL else (batch,)  # *inputs is a tuple
    try:
        return capture(model, (example,), dynamic_shapes=shapes, grad=grad, pure=True)
    except CaptureError as problem:
        part, reason = model.get_submodule(problem.path), _SYMBOL.sub("batch", problem.reason)
        if isinstance(part, nn.Linear) and problem.shape and problem.shape[-1] != part.in_features:
            reason = f"takes {part.in_features} features, and its input has shape {problem.shape[1:]}"
            if part is next(one for one in model.modules() if isinstance(one, nn.Linear)):
                reason += f": {_other_shape(problem.shape[1:], part.in_features)}"
        elif type(part).__name__.startswith(("Conv", "LazyConv")):
            reason = f"convolutions are not supported: compile the layers behind them ({reason})"
        raise _refused(problem.where, reason) from problem


def _other_shape(shape: tuple[Any, ...], features: int) -> str:
    """The box to give for a first layer of so many features."""
    box = f"give a box of the shape {(*shape[:-1], features)}"
    if len(shape) > 1 and math.prod(shape) == features:
        return f"give a box of the shape {(features,)}, or put nn.Flatten() in front of it"
    return f"{box}, or {(features,)} for inputs without tokens" if len(shape) > 1 else box


def _translated(captured: Captured, shape: Shape, ids: bool) -> Program:
    dtype, where = (
        np.dtype(str(like(captured.module).dtype).removeprefix("torch.")),
        part_name("", captured.module),
    )
    sequence = ids or is_sequence(captured)
    if sequence:
        program = sequence_program(captured, shape, dtype, ids=ids)
    else:
        builder = Builder(shape, dtype)
        output = Translator(builder, captured).output()
        if output is None or builder.problems:
            raise UnsupportedError("the module is refused", builder.problems)
        program = builder.program(output)
    if not any(isinstance(step, Affine) for step in program.steps):
        advice = "give a network with nn.Linear layers, or use attnc.head"
        raise _refused(where, f"has no linear layer between input and output: {advice}")
    assumed = [a for a in _assumed(captured) if not (sequence and a == _NOT_ONE)]
    if assumed:
        what = f"depends on the batch size ({', '.join(assumed)})"
        raise _refused(where, f"{what}: a result must not depend on it")
    return program


def _assumed(captured: Captured) -> list[str]:
    """What was assumed about the batch size. Assumptions about strides, which are symbols too, do not matter: the results are
    compared."""
    batch = str(captured.inputs[0].meta["val"].shape[0])
    found = [a for a in captured.assumptions if set(_SYMBOL.findall(a)) == {batch}]
    return [_SYMBOL.sub("batch", a) for a in found]


def _without_hooks(model: nn.Module) -> AbstractContextManager[None]:
    """Eval mode, and no forward hooks: `inspected` reports both, and a recording then finds the other problems."""
    plain: dict[str, Any] = {"training": False, "_forward_hooks": {}, "_forward_pre_hooks": {}}
    return swapped((vars(part), key, copy.copy(plain[key])) for part in model.modules() for key in plain)


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
            now.clear()
            now.update(attributes)
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
        same = torch.equal(current, content) or bool(torch.isnan(content).any())
        if not same:
            with torch.no_grad():
                current.copy_(content)
        return not same
    kept, now = ([*c, *c.values()] if isinstance(c, dict) else c for c in (content, current))
    same = now == kept if isinstance(content, set) else list(map(id, kept)) == list(map(id, now))
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
        computed = any(leaf is _UNKNOWN or isinstance(leaf, Value) for leaf in leaves)
        if computed and name not in KNOWN:
            raise RefusedError(operations.HINTS.get(name, "is not supported"))
        if any(leaf is _UNKNOWN for leaf in leaves):
            return self._stand_in(node)
        changed = aten.written(node)
        if len(changed) > 1 or (changed and changed[0] is not node.args[0]):
            raise RefusedError("writes into a tensor that is given to it, as by out=: use what it returns")
        if not computed:
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
        (_, first), *rest = given.items()
        if name in aten.RESHAPES and isinstance(first, Value):  # torch has computed the shape
            shape = self._features(node)
            if shape is None:
                raise RefusedError("does not keep the batch axis: use x.flatten(1) or x.reshape(len(x), …)")
            return self.builder.reshaped(first, shape)
        signature, defaults = _SIGNATURES[name], aten.defaults(node)
        known = signature.parameters
        if not isinstance(first, Value) and (name in ACTIVATIONS or known["input"].annotation == "Value"):
            raise RefusedError("is applied to the model's own numbers, not to a value of the input")
        named = {k: x for k, x in rest if k in known or k not in defaults or x != defaults[k]}
        own = (self.builder, first) if name in OPERATIONS else ()
        try:
            signature.bind(*own, **named)
        except TypeError as problem:
            raise RefusedError(f"is called as {node.target}, which is not supported: {problem}") from None
        if name in OPERATIONS:
            return OPERATIONS[name](*own, **named)
        numbers = {k: self.builder.number(x, k) if isinstance(x, Constant) else x for k, x in named.items()}
        return self.builder.apply(first, activation(name, numbers))

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
    """The nodes that the output, or a change of memory, is computed from."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or aten.written(node) or not found.isdisjoint(node.users):
            found.add(node)
    return found
