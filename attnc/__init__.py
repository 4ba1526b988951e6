"""attnc, the attention compiler: functions and networks as softmax attention, with proofs.

>>> import attnc, torch
>>> head = attnc.head("gelu", domain=(-8, 8), eps=1e-6, dtype=torch.float64)
>>> head.certificate.bound <= 1e-6
True
"""

from attnc import functions, incontext, paper, plot
from attnc.check.head import Verdict
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
from attnc.network.purity import purity
from attnc.pretrained import (
    BlockReport,
    ConversionReport,
    ConvertConfig,
    convert,
    convert_,
    from_pretrained,
    report_of,
)
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
    "from_pretrained", "function", "functions", "head", "incontext", "load", "paper", "plot", "purity", "report_of", "verify",
    "verify_conversion",
]  # fmt: skip
