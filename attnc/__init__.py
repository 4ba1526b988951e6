"""attnc, the attention compiler: functions and networks as softmax attention, with proofs.

>>> import attnc, torch
>>> head = attnc.head("gelu", domain=(-8, 8), eps=1e-6, dtype=torch.float64)
>>> head.certificate.bound <= 1e-6
True
"""

from attnc import functions, incontext, paper, plot
from attnc.compile import compile
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
from attnc.pretrained import (
    ConversionReport,
    ConvertConfig,
    convert,
    convert_,
    from_pretrained,
    report_of,
)
from attnc.pretrained.verify import verify, verify_conversion
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.presentation import Theorem
from attnc.records.verdict import Verdict

__version__ = "0.2.0"

__all__ = [
    "AttncError", "Box", "Certificate", "CertificateError", "ConvergenceError", "ConversionReport",
    "ConvertConfig", "DomainWarning", "FileError", "Function", "FunctionError", "Head", "InputError",
    "Interval", "MissingExtraError", "Network", "PrecisionError", "Problem", "Status", "Theorem",
    "UnknownFunctionError", "UnsupportedError", "Verdict", "Witness", "compile", "convert", "convert_",
    "from_pretrained", "function", "functions", "head", "incontext", "load", "paper", "plot", "report_of", "verify",
    "verify_conversion",
]  # fmt: skip
