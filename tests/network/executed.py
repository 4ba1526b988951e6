"""What a module executes, for assertions about pure attention."""

from __future__ import annotations

from typing import Any

from torch import nn

from attnc.network.purity import _exported, _graph, _name, _nonlinear, _Tensors


def operations(module: nn.Module, *inputs: Any) -> list[str]:
    """The names of the operations that a module executes, in order."""
    return [_name(node) for node in _graph(_exported(_Tensors(module), inputs, {}))[1]]


def impurities(module: nn.Module, *inputs: Any) -> list[str]:
    """The nonlinear operations other than softmax and attention, in order: empty for a network of attention only."""
    return list(_nonlinear(*_graph(_exported(_Tensors(module), inputs, {}))))
