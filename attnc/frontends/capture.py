"""capture: the operations that a module executes, recorded by torch.export."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc.errors import AttncError

_SLICE = re.compile(r"\.slice\((\S+), (\S+), (\S+)\)\.(\d+)")
_SEED = 1  # of torch's generator during a capture; the generator is put back afterwards


class CaptureError(AttncError):
    """A module whose forward cannot be recorded as one graph, the part that failed (`path` is '' for the module), and why."""

    def __init__(self, path: str, kind: str, reason: str, shape: tuple[object, ...] | None = None) -> None:
        self.path, self.kind, self.reason = path, kind, reason
        self.shape = shape  # of the tensor that the part was called on, where that is known
        self.where = f"{path or 'the model'} ({kind})"
        super().__init__(f"{self.where}: {reason}")


@dataclass(frozen=True)
class Place:
    """The part of the module in which an operation runs: its path ('' is the module itself) and its class."""

    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path or 'the model'} ({self.kind})"


@dataclass(frozen=True, eq=False)
class Captured:
    """The executed graph of a module: ATen operations with all their arguments.

    Regions under `torch.no_grad` are inlined, so the graph is flat. Operations in place are kept as they are
    (`aten.relu_`): see `written`. Whatever else torch wraps (autocast, control flow) stays a `higher_order` node.
    """

    module: nn.Module
    graph: fx.Graph
    tensors: Mapping[str, Tensor]  # placeholder's name → the parameter, buffer or constant itself
    names: Mapping[str, str]  # placeholder's name → its qualified name in the module
    inputs: tuple[fx.Node, ...]  # the placeholders of args and kwargs, flattened
    outputs: tuple[object, ...]  # what forward returns, flattened: nodes, or python values
    structure: (
        Any  # the pytree of the outputs; `structure.num_leaves == 1 and structure.is_leaf()` is one tensor
    )
    assumptions: tuple[str, ...]  # what was assumed about dynamic sizes, e.g. 'Ne(s77, 8)': () is "any size"
    changed: tuple[str, ...] = ()  # placeholders whose tensors an operation in place writes to

    def place(self, node: fx.Node) -> Place:
        """The innermost registered module that runs the node.

        >>> found = capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (torch.zeros(3, 2),))
        >>> [(str(n.target), str(found.place(n))) for n in found.graph.nodes if n.op == "call_function"]
        [('aten.linear.default', '0 (Linear)'), ('aten.relu.default', '1 (ReLU)')]
        """
        stack = (node.meta.get("nn_module_stack") or {}).values()
        paths = [
            self._resolved(str(path).split("@")[0]) for path, _ in stack
        ]  # '0@1' is the second call of part 0
        path = next((path for path in reversed(paths) if path in self._parts), "")
        return Place(path, type(self._parts[path]).__name__)

    def module_of(self, node: fx.Node) -> nn.Module:
        """The module of `place`."""
        return self._parts[self.place(node).path]

    def _resolved(self, path: str) -> str:
        """torch names a part of layers[1:] 'layers.slice(1, None, None).0', which is 'layers.1'."""
        cut = _SLICE.search(path)
        if cut is None:
            return path
        around = self._parts.get(path[: cut.start()])
        bounds = [None if end == "None" else int(end) for end in cut.groups()[:3]]
        index = list(range(len(around) if isinstance(around, nn.ModuleList) else 0))[slice(*bounds)]
        at = int(cut.group(4))
        found = str(index[at]) if at < len(index) else "?"
        return self._resolved(f"{path[: cut.start()]}.{found}{path[cut.end() :]}")

    @cached_property
    def _parts(self) -> dict[str, nn.Module]:
        return dict(self.module.named_modules(remove_duplicate=False))


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    grad: bool = True,
    functional: bool = False,
) -> Captured:
    """The operations that `module(*args, **kwargs)` executes, as a flat graph; the module is left as it was.

    Hooks, patched forwards and replaced parts run as they do in a call, so they are in the graph. `dynamic_shapes` is
    torch.export's. `grad` is the grad mode of the recording; the enclosing one does not matter, nor does autocast. With
    `functional`, every node stands for one value: an operation in place can be read as one that returns its result.

    >>> linear = nn.Linear(2, 1).eval()
    >>> found = capture(linear, (torch.zeros(3, 2),))
    >>> [found.names[name] for name in found.tensors], [node.name for node in found.inputs]
    (['weight', 'bias'], ['input'])
    """
    import torch.export  # seconds of import, which only a compilation pays

    # tensors that were made under inference_mode work nowhere else
    inference = any(t.is_inference() for t in (*module.parameters(), *module.buffers()))
    with (
        _same_attributes(module),
        _quiet(),
        _deterministic(),
        _eager_attention(),
        torch.inference_mode(inference),
        _any_size(),
    ):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=False):
            try:
                exported = torch.export.export(
                    module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
                )
            except Exception as problem:
                raise _capture_error(module, problem) from problem
            changed = _changed(exported.graph)
            if functional and _overwrites(exported.graph):
                _without_dropout(exported.graph)
                try:
                    exported = exported.run_decompositions({})
                except Exception as problem:
                    raise _capture_error(module, problem) from problem
        _inline_grad_regions(exported.graph_module)
    return _captured(module, exported, functional, changed)


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose memory an operation writes to: the first argument of `aten.relu_`, the `out` of another.

    >>> found = capture(nn.ReLU(inplace=True), (torch.zeros(3),))
    >>> [(node.name, written(node)) for node in found.graph.nodes if node.op == "call_function"]
    [('relu_', (input,))]
    """
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return ()
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            found += [part for part in _flat(given) if isinstance(part, fx.Node)]
    return tuple(found)


def _overwrites(graph: fx.Graph) -> bool:
    """Whether anything reads memory, under another name, after an operation in place has changed it."""
    memory = _memory(graph, maybe=True)
    changed: dict[fx.Node, set[fx.Node]] = {}
    known: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if any(read in changed.get(memory[read], ()) for read in node.all_input_nodes):
            return True
        for target in written(node):  # the names that the memory had until now no longer say what it holds
            changed[memory[target]] = set(known.get(memory[target], ()))
        known.setdefault(memory[node], set()).add(node)
    return False


def _memory(graph: fx.Graph, *, maybe: bool) -> dict[fx.Node, fx.Node]:
    """For each node one that shares its memory: views and operations in place; with `maybe`, whatever may return an input."""
    found: dict[fx.Node, fx.Node] = {}

    def first(node: fx.Node) -> fx.Node:
        while found[node] is not node:
            node = found[node]
        return node

    for node in graph.nodes:
        found[node] = node
        for read in _shared(node, maybe):
            found[first(read)] = node
    return {node: first(node) for node in graph.nodes}


def _shared(node: fx.Node, maybe: bool) -> list[fx.Node]:
    """The arguments of an operation whose memory its result has, or may have."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function":
        return []
    if schema is None:
        return node.all_input_nodes
    name = str(schema.name)
    first = [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
    if any(result.alias_info is not None for result in schema.returns) or name.endswith("dropout"):
        return first
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{name}.{schema.overload_name}".removesuffix("."), "CompositeImplicitAutograd"
    )
    return node.all_input_nodes if maybe and composite and name.removeprefix("aten::") not in _FRESH else []


_FRESH = {
    "linear", "matmul", "layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "scaled_dot_product_attention",
    "conv1d", "conv2d", "selu", "square", "diff",
}  # fmt: skip


def _without_dropout(graph: fx.Graph) -> None:
    """Outside of training, dropout returns its input itself: torch's functionalization takes it for a copy."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and str(schema.name).endswith("dropout") and node.args[2:3] == (False,):
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, node.args[:1], {}


def _changed(graph: fx.Graph) -> tuple[str, ...]:
    """The tensors of the module, or inputs, that an operation in place writes to."""
    memory = _memory(graph, maybe=False)
    targets = {memory[target] for node in graph.nodes for target in written(node)}
    return tuple(node.name for node in graph.nodes if node.op == "placeholder" and memory[node] in targets)


def _flat(given: object) -> list[object]:
    return [x for part in given for x in _flat(part)] if isinstance(given, (list, tuple)) else [given]


def _captured(module: nn.Module, exported: Any, functional: bool, changed: tuple[str, ...]) -> Captured:
    """The parts of torch's ExportedProgram, with the module's own tensors in place of torch's copies of constants."""
    from torch.export.graph_signature import InputKind

    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    tensors, names, inputs = {}, {}, []
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
            continue
        kept = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
        if not isinstance(kept, Tensor):
            raise CaptureError("", type(module).__name__, f"holds {spec.target}, which is not a tensor")
        tensors[node.name], names[node.name] = kept, spec.target
    signature = exported.graph_signature
    mutated = {
        **signature.buffers_to_mutate,
        **signature.user_inputs_to_mutate,
        **signature.parameters_to_mutate,
    }
    if mutated and not functional:
        raise CaptureError("", type(module).__name__, f"changes {', '.join(mutated.values())} when it runs")
    returned = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    structure = exported.call_spec.out_spec
    sizes = [shape_env for node in exported.graph.nodes if (shape_env := _shape_env(node)) is not None]
    assumed = {str(guard.expr): None for shape_env in sizes[:1] for guard in shape_env.guards}
    return Captured(
        module,
        exported.graph,
        tensors,
        names,
        tuple(inputs),
        tuple(returned),
        structure,
        tuple(assumed),
        changed,
    )


def _shape_env(node: fx.Node) -> Any:
    return getattr(getattr(node.meta.get("val"), "fake_mode", None), "shape_env", None)


def _inline_grad_regions(owner: fx.GraphModule) -> None:
    """wrap_with_set_grad_enabled(mode, body, …) is body(…) as far as numbers go."""
    graph = owner.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_set_grad_enabled":
            continue
        _, body, *given = node.args
        inner = getattr(owner, str(body.target))
        _inline_grad_regions(inner)
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        known: dict[fx.Node, Any] = dict(zip(places, given, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(inner.graph, known)
        for reader in list(node.users):  # operator.getitem(node, i)
            reader.replace_all_uses_with(results[reader.args[1]])  # type: ignore[index]
            graph.erase_node(reader)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)


def _capture_error(module: nn.Module, problem: Exception) -> CaptureError:
    """The reason in one line, and the innermost part of the module that was running."""
    names = {id(vars(part)): name for name, part in module.named_modules()}  # torch's proxies share the dict
    path, traceback, shape = "", problem.__traceback__, None
    while traceback is not None:
        running = traceback.tb_frame.f_locals.get("self")
        if isinstance(running, nn.Module) and id(vars(running)) in names:
            path = names[id(vars(running))]
            given = traceback.tb_frame.f_locals.get("input", traceback.tb_frame.f_locals.get("x"))
            shape = tuple(given.shape) if isinstance(given, Tensor) else None
        traceback = traceback.tb_next
    kind = type(module.get_submodule(path)).__name__
    lines = [line for line in str(problem).splitlines() if line.strip()]
    first = f"{type(problem).__name__}: {lines[0].strip()}" if lines else type(problem).__name__
    if type(problem).__name__ == "GuardOnDataDependentSymNode":
        reason = f"lets numbers of the input decide what is computed (a branch, a loop or a length): {first}"
    elif "Constraints violated" in str(problem):
        reason = "depends on a size that may vary, such as the batch size, as on a constant"
    else:
        reason = f"cannot be recorded by torch.export: {first}"
    return CaptureError(path, kind, reason, shape)


@contextlib.contextmanager
def _same_attributes(module: nn.Module) -> Iterator[None]:
    """torch.export puts copies in the place of tuples, lists and dicts that a part holds: put the originals back."""
    held = [
        (part, key, value)
        for part in module.modules()
        for key, value in vars(part).items()
        if isinstance(value, (tuple, list, dict))
    ]
    try:
        yield
    finally:
        for part, key, value in held:
            now = vars(part).get(key)
            if now is not value and type(now) is type(value) and repr(now) == repr(value):
                vars(part)[key] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of torch's warnings, logs and printed graphs: a refusal says all of it in one line."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        yield


@contextlib.contextmanager
def _eager_attention() -> Iterator[None]:
    """torch's encoder layers in the operations that they consist of, not as one fused call."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _any_size() -> Iterator[None]:
    """A dynamic size may be 0 or 1 as well: without this, torch.export assumes at least 2."""
    import torch.fx.experimental._config as config

    patch: Any = getattr(config, "patch", None)
    if patch is None or not hasattr(config, "backed_size_oblivious"):
        yield
        return
    with patch(backed_size_oblivious=True):
        yield
