"""The operations that a call of a module executes, recorded while it runs on real tensors, as a graph.

torch.export traces a module with stand-ins for tensors. A forward can notice that, and compute something else when it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Operations = tuple[
    set[Node], list[Node]
]  # the inputs of a call, and the operations in the order of execution
# they hand numbers to code that torch does not see
_LEAVING = frozenset({"numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "untyped_storage", "storage"})
_Place = tuple[object, ...]


def executed(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], mode: Callable[[], Any]
) -> Operations:
    """What `module(*inputs, **named)` executes in a grad mode, such as `torch.no_grad`, on copies of the inputs and of the
    buffers. Operations that do not depend on the inputs, or that nothing uses, are left out."""
    record = _Record()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with mode(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        args, kwargs = tree_map_only(Tensor, _copied, (inputs, named))
        given = {record.entered(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        with _Leaving(record), _Operations(record):
            results = torch.func.functional_call(module, buffers, args, kwargs)
    return given, record.operations(results)


def _copied(x: Tensor) -> Tensor:
    """With gradients, a copy that requires them and may be changed in place."""
    x = x.detach().clone()
    return x.requires_grad_().clone() if torch.is_grad_enabled() and x.is_floating_point() else x


class _Record:
    """A graph in which no operation changes a value of another. A tensor is a place: the region of a storage that it shows. What
    was last written there by an operation that shows the same region is its value; if another region of the storage was written
    since, its value is put together from all that was written to the storage."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.written: dict[object, list[Node]] = {}  # by storage
        self.known: dict[
            _Place, tuple[Node, int]
        ] = {}  # and how much had been written to the storage by then
        self.held: list[Any] = []  # keeps the storages alive, whose addresses are their names

    def entered(self, t: Tensor) -> Node:
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        self._wrote(t, node)
        return _with_value(node, t)

    def read(self, t: Tensor) -> Node | None:
        """The value of a tensor; None if it does not depend on the inputs."""
        storage, place = _place(t)
        parts = self.written.get(storage)
        if parts is None:
            return None
        node, seen = self.known.get(place, (None, 0))
        if node is None or seen != len(parts):
            node = _with_value(self.graph.call_function(torch.ops.aten.cat.default, (list(parts),)), t)
            self.known[place] = node, len(parts)
        return node

    def called(self, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Run an operation, and record it if it reads a value that depends on the inputs."""
        given = tree_map_only(Tensor, self.read, (args, kwargs))
        if not any(isinstance(arg, Node) for arg in tree_leaves(given)):
            return run()
        result = run()
        node = _with_value(self.graph.call_function(function, *given), result)
        changed = [t for t in _changed(function, args, kwargs) if isinstance(t, Tensor)]
        for t in changed:
            self._wrote(t, node)
        many = not isinstance(result, Tensor)
        for i, t in enumerate(tree_leaves(result)):
            if isinstance(t, Tensor) and not any(t is other for other in changed):
                one = self.graph.call_function(operator.getitem, (node, i)) if many else node
                self._returned(t, _with_value(one, t))
        return result

    def operations(self, results: list[Tensor]) -> list[Node]:
        self.graph.output([self.read(t) for t in results])
        self.graph.eliminate_dead_code(is_impure_node=_has_effects)
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def _wrote(self, t: Tensor, node: Node) -> None:
        storage, place = _place(t)
        parts = self.written.setdefault(storage, [])
        parts.append(node)
        self.known[place] = node, len(parts)
        self.held.append(t)

    def _returned(self, t: Tensor, node: Node) -> None:
        storage, place = _place(t)
        if storage in self.written:  # a view
            self.known[place] = node, len(self.written[storage])
        else:
            self._wrote(t, node)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, record: _Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and isinstance(func, torch._ops.OpOverload):
            with self:  # elsewhere autograd has decomposed it before
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        with torch._C.DisableTorchFunction():
            return self.record.called(func, args, kwargs, lambda: func(*args, **kwargs))


class _Leaving(TorchFunctionMode):
    def __init__(self, record: _Record) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _LEAVING:
            return self.record.called(func, args, kwargs, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def _place(t: Tensor) -> tuple[object, _Place]:
    """The storage of a tensor, and the region of it that the tensor shows."""
    try:
        storage: object = t.untyped_storage()._cdata
    except NotImplementedError:  # a sparse or a nested tensor
        return (id(t), (id(t),))
    return storage, (storage, t.storage_offset(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg())


def _with_value(node: Node, value: Any) -> Node:
    """Note the types of what a node returns, without its numbers."""
    node.meta["val"] = [torch.empty(0, dtype=t.dtype) for t in tree_leaves(value) if isinstance(t, Tensor)]
    return node


def _changed(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return []
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    return tree_leaves([args[i] if i < len(args) else kwargs.get(name) for i, name in written])


def _has_effects(node: Node) -> bool:
    """Whether an operation does more than to return tensors: it writes to one, or what it returns leaves the graph."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "placeholder" or not node.meta.get("val") or bool(schema and schema.is_mutable)
