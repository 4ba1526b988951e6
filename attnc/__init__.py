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
    from attnc import functions, incontext, paper, plot
    from attnc.check.head import Verdict
    from attnc.compiler import compile
    from attnc.domain import Box, Interval
    from attnc.errors import (
        AttncError,
        CertificateError,
        ConvergenceError,
        DomainWarning,
        FileError,
        FunctionError,
        InputError,
        MissingExtraError,
        PrecisionError,
        Problem,
        UnknownFunctionError,
        UnsupportedError,
    )
    from attnc.exporters.safetensors import load
    from attnc.functions import Function, function
    from attnc.lower.function_to_head import head
    from attnc.network.head import Head
    from attnc.network.network import Network
    from attnc.pretrained import BlockReport, ConversionReport, ConvertConfig, from_pretrained, report_of
    from attnc.pretrained.convert import convert, convert_
    from attnc.pretrained.verify import ConversionVerdict, verify, verify_conversion
    from attnc.records.certificate import Certificate, Measured, Witness
    from attnc.records.measured import NetworkMeasured
    from attnc.records.network_certificate import NetworkCertificate
    from attnc.records.theorem import Theorem

__version__ = "0.2.0"

__all__ = [
    "AttncError", "BlockReport", "Box", "Certificate", "CertificateError", "ConvergenceError", "ConversionReport",
    "ConversionVerdict", "ConvertConfig", "DomainWarning", "FileError", "Function", "FunctionError", "Head", "InputError",
    "Interval", "Measured", "MissingExtraError", "Network", "NetworkCertificate", "NetworkMeasured", "PrecisionError", "Problem",
    "Theorem", "UnknownFunctionError", "UnsupportedError", "Verdict", "Witness", "compile", "convert", "convert_",
    "from_pretrained", "function", "functions", "head", "incontext", "load", "paper", "plot", "report_of", "verify",
    "verify_conversion",
]  # fmt: skip

_SUBMODULES = ("functions", "incontext", "paper", "plot")
_MODULES = {
    "attnc.records.certificate": ("Certificate", "Measured", "Witness"),
    "attnc.check.head": ("Verdict",),
    "attnc.records.measured": ("NetworkMeasured",),
    "attnc.records.network_certificate": ("NetworkCertificate",),
    "attnc.records.theorem": ("Theorem",),
    "attnc.domain": ("Box", "Interval"),
    "attnc.errors": (
        "AttncError", "CertificateError", "ConvergenceError", "DomainWarning", "FileError", "FunctionError", "InputError",
        "MissingExtraError", "PrecisionError", "Problem", "UnknownFunctionError", "UnsupportedError",
    ),
    "attnc.exporters.safetensors": ("load",),
    "attnc.functions": ("Function", "function"),
    "attnc.compiler": ("compile",),
    "attnc.lower.function_to_head": ("head",),
    "attnc.network.head": ("Head",),
    "attnc.network.network": ("Network",),
    "attnc.pretrained": ("BlockReport", "ConversionReport", "ConvertConfig", "from_pretrained", "report_of"),
    "attnc.pretrained.convert": ("convert", "convert_"),
    "attnc.pretrained.verify": ("ConversionVerdict", "verify", "verify_conversion"),
}  # fmt: skip
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
    return sorted({*globals(), *__all__})
