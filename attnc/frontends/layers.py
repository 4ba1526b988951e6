"""torch's modules that are understood. Only the class itself counts: a subclass may compute something else."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from attnc.frontends import activations, operations
from attnc.frontends.builder import Builder, Constant, RefusedError, Value

Layer = Callable[[Builder, nn.Module, Value, str], Value]  # the module's name comes last


def _owned(module: nn.Module, attribute: str, name: str) -> Constant | None:
    tensor = getattr(module, attribute)
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        raise RefusedError(f"has a {attribute} of type {type(tensor).__name__}: a tensor is accepted")
    return Constant(tensor, f"{name}.{attribute}" if name else attribute)


def _linear(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    return operations.linear(b, x, _owned(module, "weight", name), _owned(module, "bias", name))


def _batch_norm(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    assert isinstance(module, nn.BatchNorm1d)
    mean, variance, weight, bias = (
        _owned(module, part, name) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return operations.batch_norm(b, x, mean, variance, weight, bias, eps=module.eps)


def _prelu(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    return activations.prelu(b, x, _owned(module, "weight", name))


def _flatten(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    assert isinstance(module, nn.Flatten)
    return operations.flatten(b, x, module.start_dim, module.end_dim)


def _unflatten(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    assert isinstance(module, nn.Unflatten)
    return operations.unflatten(b, x, module.dim, module.unflattened_size)


def _same(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
    return x


def _activation(name: str, attributes: tuple[str, ...]) -> Layer:
    operation = activations.ACTIVATIONS[name]

    def layer(b: Builder, module: nn.Module, x: Value, name: str) -> Value:
        made = operation(b, x, **{a: getattr(module, a) for a in attributes})
        assert isinstance(made, Value)
        return made

    return layer


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.PReLU: _prelu,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.Identity: _same,
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout), _same
    ),
    **{kind: _activation(*how) for kind, how in activations.MODULES.items()},
}
SUPPORTED = "Linear, BatchNorm1d, Flatten, Unflatten, Dropout, Identity, PReLU, " + ", ".join(
    kind.__name__ for kind in activations.MODULES
)
HINTS = {
    "Softmax": "leave it off and compile the logits",
    "LogSoftmax": "leave it off and compile the logits",
    "Softmin": "leave it off and compile the logits",
    "LazyLinear": "run one input through the model first",
}
