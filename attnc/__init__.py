"""attnc, the attention compiler: functions and networks as softmax attention, with proofs.

>>> import attnc, torch
>>> head = attnc.head("gelu", domain=(-8, 8), eps=1e-6, dtype=torch.float64)
>>> head.certificate.bound <= 1e-6
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnc import errors, functions, incontext, paper, plot, tokens, zoo
    from attnc.compiler import compile
    from attnc.domain import Box, Interval, Tokens
    from attnc.errors import AttncError, DomainWarning
    from attnc.exporters.export import export
    from attnc.exporters.safetensors import load
    from attnc.functions import Function, function
    from attnc.lower.function_to_head import head
    from attnc.lower.quadratic import quadratic_head
    from attnc.network.head import Head
    from attnc.network.network import Network
    from attnc.network.purity import purity
    from attnc.pretrained.config import ConvertConfig
    from attnc.pretrained.convert import convert, convert_
    from attnc.pretrained.directory import from_pretrained
    from attnc.pretrained.verify import verify
    from attnc.records.certificate import Certificate, Status, Verdict

__version__ = "0.2.0"

__all__ = [
    "AttncError", "Box", "Certificate", "ConvertConfig", "DomainWarning", "Function", "Head", "Interval", "Network", "Status",
    "Tokens", "Verdict", "compile", "convert", "convert_", "errors", "export", "from_pretrained", "function", "functions", "head",
    "incontext", "load", "paper", "plot", "purity", "quadratic_head", "tokens", "verify", "zoo",
]  # fmt: skip

_SUBMODULES = (
    "domain", "errors", "frontends", "functions", "incontext", "paper", "plot", "pretrained", "tokens", "zoo",
)  # fmt: skip
_MODULES = {
    "attnc.compiler": ("compile",),
    "attnc.domain": ("Box", "Interval", "Tokens"),
    "attnc.errors": ("AttncError", "DomainWarning"),
    "attnc.exporters.export": ("export",),
    "attnc.exporters.safetensors": ("load",),
    "attnc.functions": ("Function", "function"),
    "attnc.lower.function_to_head": ("head",),
    "attnc.lower.quadratic": ("quadratic_head",),
    "attnc.network.head": ("Head",),
    "attnc.network.network": ("Network",),
    "attnc.network.purity": ("purity",),
    "attnc.pretrained.config": ("ConvertConfig",),
    "attnc.pretrained.convert": ("convert", "convert_"),
    "attnc.pretrained.directory": ("from_pretrained",),
    "attnc.pretrained.verify": ("verify",),
    "attnc.records.certificate": ("Certificate", "Status", "Verdict"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import attnc` does not import torch."""
    if name in _SUBMODULES:
        return importlib.import_module(f"attnc.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'attnc' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__})
