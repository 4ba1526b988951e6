"""attnc.load: a head, a network or a learner from its safetensors file."""

from __future__ import annotations

import os

from attnc.functions import Function
from attnc.incontext.files import learner_of
from attnc.incontext.learner import Learner
from attnc.incontext.solver import Solver
from attnc.network.head import Head
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.literal.network import literal_from_record
from attnc.network.network import Network, rebuilt
from attnc.network.norm import QuadraticHead
from attnc.network.tokens import TokenNetwork, token_network
from attnc.records.record import LiteralRecord, read


def load(
    path: str | os.PathLike[str], function: Function | None = None
) -> Head | QuadraticHead | Network | Learner | Solver | SelfAttentionNetwork | TokenNetwork:
    """Read the file that `save` of a head, a network, a learner or a literal network wrote. Nothing in the file is executed.

    `function` is needed only for a network or a learner with a user-defined function that is not registered.

    >>> import attnc, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "tanh.safetensors")
    >>> attnc.head("tanh", domain=(-8, 8), eps=1e-5).save(path)
    >>> attnc.load(path).certificate.facts["function"]
    'tanh'
    """
    record = read(path, function)
    if isinstance(record, LiteralRecord):
        return literal_from_record(record)
    if record.kind == "network":
        return rebuilt(record)
    if record.kind == "tokens":
        return token_network(record)
    if record.kind == "learner":
        return learner_of(record, function)
    if record.kind == "quadratic":
        return QuadraticHead(record.quadratic, record.certificate)
    return Head(record.head, str(record.certificate.facts["design"]), record.certificate)
