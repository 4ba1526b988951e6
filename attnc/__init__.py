"""attnc, the attention compiler: functions as softmax attention, with proofs.

>>> import attnc, torch
>>> head = attnc.head("gelu", on=(-8, 8), eps=1e-6, dtype=torch.float64)
>>> head.certificate.bound <= 1e-6
True
"""

from attnc import functions, plot
from attnc.certify.certificate import Certificate, Measured, Witness
from attnc.certify.check import Verdict, verify
from attnc.domain import Interval
from attnc.errors import (
    AttncError,
    CertificateError,
    ConvergenceError,
    FileError,
    FunctionError,
    InputError,
    MissingExtraError,
    PrecisionError,
    UnknownFunctionError,
)
from attnc.exporters.safetensors import load
from attnc.functions import Function, function
from attnc.lower.function_to_head import head
from attnc.network.head import Head

__version__ = "0.1.0"

__all__ = [
    "AttncError", "Certificate", "CertificateError", "ConvergenceError", "FileError", "Function", "FunctionError", "Head",
    "InputError", "Interval", "Measured", "MissingExtraError", "PrecisionError", "UnknownFunctionError", "Verdict", "Witness",
    "function", "functions", "head", "load", "plot", "verify",
]  # fmt: skip
