"""What to call instead: the entry points lead to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attnc.domain import Box, Tokens
from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.frontends.activations import ACTIVATIONS

_IMAGES = ("Conv", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Upsample")
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_NORMS = (nn.LayerNorm, nn.RMSNorm)
SUPPORTED = (
    "linear layers, sums, residual connections, BatchNorm, LayerNorm, RMSNorm, softmax attention, embeddings"
)


def is_transformer(model: nn.Module) -> bool:
    """Whether a model looks like a transformer: it is one of the library transformers, or has attention of torch."""
    hugging_face = hasattr(getattr(model, "config", None), "model_type")
    return hugging_face or any(isinstance(part, nn.MultiheadAttention) for part in model.modules())


def compile_advice(model: nn.Module, domain: Box | None) -> str:
    """What to do with a model that `attnc.compile` refuses."""
    if is_transformer(model):
        ids = any(isinstance(part, nn.Embedding) for part in model.modules())
        length = "; attnc.compile takes token ids of one length, domain=attnc.Tokens(vocabulary, length)"
        return (
            "For a transformer, call attnc.convert_(model, approximation=1e-4): it replaces the feed-forward blocks in place, "
            f"for inputs of every length{length if ids and not isinstance(domain, Tokens) else ''}."
        )
    if _has_layers(model, _IMAGES) or _is_recurrent(model):
        return f"{supported()}\n{_behind()}"
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    if tables and domain is not None and not isinstance(domain, Tokens):
        rows, count = min(table.num_embeddings for table in tables), domain.shape[0]
        tokens = f"domain=attnc.Tokens(vocabulary={rows}, length={count})"
        return f"The model has an embedding. If it reads its inputs as token ids, give {tokens}."
    return ""


def supported() -> str:
    """What `attnc.compile` reads, in words."""
    only = {"threshold": "threshold (as relu)"}
    names = sorted({only.get(name, name) for name in (known.removesuffix("_") for known in ACTIVATIONS)})
    return f"attnc.compile reads {SUPPORTED}, and the activations {', '.join(names)}."


def _behind() -> str:
    return (
        "Convolutions, pooling and recurrent layers are not among them. Compile the layers behind them on their features: "
        "attnc.compile(head.eval(), domain=attnc.Box.from_data(features), eps=1e-3)."
    )


def convert_advice(model: nn.Module) -> str:
    """What to do with a model that `attnc.convert_` refuses."""
    if inner := _transformer_inside(model):
        path, kind = inner
        steps = "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path.split("."))
        example = " (of a SentenceTransformer st: attnc.convert_(st[0].auto_model, approximation=1e-4))"
        return (
            f"{type(model).__name__} holds the transformer model{steps}, a {kind}. Convert that one: "
            f"attnc.convert_(model{steps}, approximation=1e-4){example * _is_a(model, 'SentenceTransformer')}."
        )
    if _has_layers(model, _IMAGES) or _is_recurrent(model):
        return (
            "attnc.convert_ replaces the feed-forward blocks of transformers. "
            f"For other networks there is attnc.compile. {supported()}\n{_behind()}"
        )
    plain = any(isinstance(part, nn.Linear) for part in model.modules())
    if plain and not is_transformer(model) and not any(isinstance(part, _NORMS) for part in model.modules()):
        return (
            "For a network of linear layers and activations, call "
            "attnc.compile(model, domain=attnc.Box(-1, 1, shape=(d,)), eps=1e-4): "
            "it turns the whole network into attention and bounds the error of its outputs."
        )
    return ""


def _transformer_inside(model: nn.Module) -> tuple[str, str] | None:
    """The path and the class of the first model of transformers inside another module."""
    if _is_a(model, "PreTrainedModel"):
        return None
    found = (path for path, part in model.named_modules() if _is_a(part, "PreTrainedModel"))
    path = next(found, None)
    return None if path is None else (path, type(model.get_submodule(path)).__name__)


def _is_a(model: nn.Module, name: str) -> bool:
    """Whether a class of this name is among those of a module: its library need not be there."""
    return any(cls.__name__ == name for cls in type(model).__mro__)


def _is_recurrent(model: nn.Module) -> bool:
    return any(isinstance(part, _RECURRENT) for part in model.modules())


def _has_layers(model: nn.Module, names: tuple[str, ...]) -> bool:
    return any(type(part).__name__.startswith(names) for part in model.modules())


@contextmanager
def advising_compile(model: object, domain: Box) -> Iterator[None]:
    """Add advice to the refusals of `attnc.compile`."""
    try:
        yield
    except UnsupportedError as refusal:
        advice = compile_advice(model, domain) if isinstance(model, nn.Module) else ""
        raise refusal.advised(advice) from refusal.__cause__
    except PrecisionError as problem:
        if not isinstance(model, nn.Module) or not is_transformer(model):
            raise
        advice = (
            "Bounds for every input of a whole transformer are often large: approximation=1e-4 instead of eps bounds the error "
            "of each step, and attnc.convert_(model, approximation=1e-4) that of each block"
        )
        raise PrecisionError(f"{problem} {advice}.", problem.reachable, problem.found) from problem.__cause__


@contextmanager
def advising_convert(model: object) -> Iterator[None]:
    """Add advice to the refusals of `attnc.convert_`."""
    try:
        yield
    except UnsupportedError as refusal:
        advice = convert_advice(model) if isinstance(model, nn.Module) else ""
        raise refusal.advised(advice) from refusal.__cause__
    except InputError as problem:
        advice = convert_advice(model) if isinstance(model, nn.Module) else ""
        if not advice:
            raise
        raise InputError(f"{problem}\n{advice}") from problem.__cause__
