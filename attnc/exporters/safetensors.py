"""attnc.load: a head from its safetensors file."""

from __future__ import annotations

import os

from attnc.certify.record import read
from attnc.network.head import Head


def load(path: str | os.PathLike[str]) -> Head:
    """Read a head that `Head.save` wrote. Nothing in the file is executed.

    >>> import attnc, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "tanh.safetensors")
    >>> attnc.head("tanh", on=(-8, 8), eps=1e-5).save(path)
    >>> attnc.load(path).certificate.function
    'tanh'
    """
    record = read(path)
    known = record.certificate or record.measured
    return Head(record.numbers, known.design if known else "unknown", record.certificate, record.measured)
