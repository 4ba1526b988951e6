"""attnc.load: a head or a network from its safetensors file."""

from __future__ import annotations

import os

from attnc.functions import Function
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.records.files import read_file
from attnc.records.network_record import NetworkRecord, read_network
from attnc.records.record import HeadRecord, head_record


def load(path: str | os.PathLike[str], function: Function | None = None) -> Head | Network:
    """Read what `Head.save` or `Network.save` wrote. Nothing in the file is executed.

    `function` is needed only for a network with a function of your own that is not registered.

    >>> import attnc, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "tanh.safetensors")
    >>> attnc.head("tanh", domain=(-8, 8), eps=1e-5).save(path)
    >>> attnc.load(path).certificate.function
    'tanh'
    """
    record = read_any(path, function)
    if isinstance(record, NetworkRecord):
        return rebuilt(record)
    known = record.certificate or record.measured
    return Head(record.numbers, known.design if known else "unknown", record.certificate, record.measured)


def read_any(path: str | os.PathLike[str], function: Function | None = None) -> HeadRecord | NetworkRecord:
    """What a file holds, by its kind."""
    about, tensors = read_file(path)
    if about.get("kind") == "network":
        return read_network(path, about, tensors, function)
    return head_record(path, about, tensors)
