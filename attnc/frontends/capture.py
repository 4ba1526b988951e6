"""capture: the operations that a module executes, recorded by torch.export."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

from attnc.errors import AttncError
from attnc.frontends.aten import changed_tensors, impurity, overwrites, without_dropout
from attnc.frontends.problems import part_name

_SLICE = re.compile(r"\.slice\((\S+), (\S+), (\S+)\)\.(\d+)")
_SEED = 1  # of torch's generator during a capture; the generator is put back afterwards


class CaptureError(AttncError):
    """A forward that cannot be recorded as one graph: the part that failed (`path` is '' for the module itself), and why."""

    def __init__(self, path: str, part: object, reason: str, shape: tuple[object, ...] | None = None) -> None:
        self.path, self.reason, self.where = path, reason, part_name(path, part)
        self.shape = shape  # of the tensor that the part was called on, where that is known
        super().__init__(f"{self.where}: {reason}")


@dataclass(frozen=True, eq=False)
class Captured:
    """The executed graph of a module: ATen operations with all their arguments.

    Regions under `torch.no_grad` are inlined. Other regions (autocast, control flow) are `higher_order` nodes."""

    module: nn.Module
    graph: fx.Graph
    tensors: Mapping[str, Tensor]  # placeholder's name → the parameter, buffer or constant itself
    names: Mapping[str, str]  # placeholder's name → its qualified name in the module
    inputs: tuple[fx.Node, ...]  # the placeholders of args and kwargs, flattened
    outputs: tuple[object, ...]  # what forward returns, flattened: nodes, or python values
    structure: Any  # the pytree of the outputs; `structure.is_leaf()` is one tensor
    assumptions: tuple[str, ...]  # what was assumed about dynamic sizes, e.g. 'Ne(s77, 8)': () is "any size"
    changed: tuple[str, ...] = ()  # placeholders whose tensors an operation in place writes to

    def path(self, node: fx.Node) -> str:
        """The path of the innermost registered module that runs the node; '' is the module itself."""
        stack = (node.meta.get("nn_module_stack") or {}).values()
        paths = [self._resolved(str(path).split("@")[0]) for path, _ in stack]  # '0@1': second call of part 0
        return next((path for path in reversed(paths) if path in self.parts), "")

    def where(self, node: fx.Node) -> str:
        """How messages name the module that runs the node."""
        return part_name(self.path(node), self.parts[self.path(node)])

    def _resolved(self, path: str) -> str:
        """torch names a part of layers[1:] 'layers.slice(1, None, None).0', which is 'layers.1'."""
        cut = _SLICE.search(path)
        if cut is None:
            return path
        around = self.parts.get(path[: cut.start()])
        bounds = [None if end == "None" else int(end) for end in cut.groups()[:3]]
        index = list(range(len(around) if isinstance(around, nn.ModuleList) else 0))[slice(*bounds)]
        at = int(cut.group(4))
        found = str(index[at]) if at < len(index) else "?"
        return self._resolved(f"{path[: cut.start()]}.{found}{path[cut.end() :]}")

    @cached_property
    def parts(self) -> dict[str, nn.Module]:
        return dict(self.module.named_modules(remove_duplicate=False))


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    grad: bool = True,
    pure: bool = False,
) -> Captured:
    """The operations that `module(*args, **kwargs)` executes, as a flat graph. The module is not changed.

    Hooks, patched forwards and replaced parts are in the graph. `grad` is the grad mode of the recording. An operation in place
    can be read as one that returns its result. `pure` raises CaptureError if the forward changes its inputs or its own tensors,
    or if what it computes depends on the strides of its input."""
    import torch.export  # takes seconds

    # tensors that were created in inference mode work nowhere else
    inference = any(t.is_inference() for t in (*module.parameters(), *module.buffers()))
    with (
        _same_attributes(module),
        _quiet(),
        torch.random.fork_rng(devices=[]),
        fused_path(False),
        torch.inference_mode(inference),
        _any_size(),
        _no_stack_traces(),
        _no_test_of_inference_mode(),
    ):
        torch.default_generator.manual_seed(_SEED)
        with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=False):
            try:
                exported = torch.export.export(
                    module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
                )
                changed = changed_tensors(exported.graph)
                impure = impurity(exported.graph) if pure else None
                if impure is not None:
                    raise CaptureError("", module, impure)
                if overwrites(exported.graph):
                    without_dropout(exported.graph)
                    exported = exported.run_decompositions({})
            except CaptureError:
                raise
            except Exception as problem:
                raise _capture_error(module, problem) from problem
        _inline_grad_regions(exported.graph_module)
    return _captured(module, exported, changed)


def _captured(module: nn.Module, exported: Any, changed: tuple[str, ...]) -> Captured:
    """The parts of torch's ExportedProgram, with the module's own tensors in place of torch's copies of constants."""
    nodes = list(exported.graph.nodes)
    specs, known = exported.graph_signature.input_specs, {**exported.constants, **exported.state_dict}
    names = {spec.arg.name: spec.target for spec in specs if spec.kind.name != "USER_INPUT"}
    for name in names.values():
        if not isinstance(known.get(name), Tensor):
            raise CaptureError("", module, f"holds {name}, which is not a tensor")
    tensors = {key: known[name] for key, name in names.items()}
    inputs = tuple(node for node in nodes if node.op == "placeholder" and node.name not in names)
    modes: list[Any] = [getattr(node.meta.get("val"), "fake_mode", None) for node in nodes]
    sizes = [mode.shape_env for mode in modes if getattr(mode, "shape_env", None) is not None]
    assumed = {str(guard.expr): None for shape_env in sizes[:1] for guard in shape_env.guards}
    outputs, structure = tuple(nodes[-1].args[0]), exported.call_spec.out_spec
    return Captured(
        module, exported.graph, tensors, names, inputs, outputs, structure, tuple(assumed), changed
    )


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
    line = str(problem).strip().partition("\n")[0].strip()
    first = f"{type(problem).__name__}: {line}" if line else type(problem).__name__
    if type(problem).__name__ == "GuardOnDataDependentSymNode":
        branch = "has a branch, a loop or a length that depends on the numbers of the input"
        reason = f"{branch}: write torch.where(condition, a, b) for an if ({first})"
    elif "Constraints violated" in str(problem):
        reason = "fixes a size that may vary, such as the batch size"
    else:
        reason = f"cannot be recorded by torch.export: {first}"
    return CaptureError(path, module.get_submodule(path), reason, shape)


@contextlib.contextmanager
def _same_attributes(module: nn.Module) -> Iterator[None]:
    """torch.export replaces tuples, lists and dicts of a part by copies: put the originals back."""
    every = [(part, key, value) for part in module.modules() for key, value in vars(part).items()]
    held = [one for one in every if isinstance(one[2], (tuple, list, dict))]
    try:
        yield
    finally:
        for part, key, value in held:
            now = vars(part).get(key)
            if now is not value and type(now) is type(value) and repr(now) == repr(value):
                vars(part)[key] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings, logs and printed graphs: an error has the reason in one line."""
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
def fused_path(enabled: bool) -> Iterator[None]:
    """Whether torch may run an encoder layer as one fused call, instead of the operations that it consists of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _no_test_of_inference_mode() -> Iterator[None]:
    """torch.export cannot record in inference mode, so that a forward must not test whether it is enabled, or whether a tensor
    was made in it."""

    def refused(original: Any, shown: str) -> Any:
        def ask(*given: Any) -> Any:
            if str(sys._getframe(1).f_globals.get("__name__", "")).split(".")[0] not in ("torch", "attnc"):
                raise RuntimeError(f"forward must not call {shown}()")
            return original(*given)

        return ask

    asked = ((torch, "is_inference_mode_enabled"), (torch, "is_inference"), (Tensor, "is_inference"))
    with contextlib.ExitStack() as undo:
        for owner, name in asked:
            shown = f"torch.{name}" if owner is torch else f"Tensor.{name}"
            undo.enter_context(mock.patch.object(owner, name, refused(getattr(owner, name), shown)))
        yield


def _no_stack_traces() -> contextlib.AbstractContextManager[object]:
    """torch notes for each operation which lines of Python ran it. Nothing reads this; it took a quarter of the time."""
    config: Any = importlib.import_module("torch.fx.config")
    if not hasattr(config, "do_not_emit_stack_traces"):  # older torch
        return contextlib.nullcontext()
    return mock.patch.object(config, "do_not_emit_stack_traces", True)


def _any_size() -> contextlib.AbstractContextManager[object]:
    """A dynamic size may be 0 or 1 as well: without this, torch.export assumes at least 2."""
    config: Any = importlib.import_module("torch.fx.experimental._config")
    known = {"backed_size_oblivious": True} if hasattr(config, "backed_size_oblivious") else {}
    return config.patch(known)  # type: ignore[no-any-return]
