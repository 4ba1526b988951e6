"""Pretrained transformers, attention only: find the feed-forward blocks, prove what enters them, put heads in their place."""

from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.convert import convert, convert_
from attnc.pretrained.directory import from_pretrained
from attnc.pretrained.for_input import InputCertificate
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.save import save_converted
from attnc.pretrained.store import report_of

__all__ = [
    "ConversionReport",
    "ConvertConfig",
    "InputCertificate",
    "convert",
    "convert_",
    "from_pretrained",
    "report_of",
    "save_converted",
]
