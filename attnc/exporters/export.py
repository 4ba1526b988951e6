"""attnc.export: heads, networks, token networks, learners, literal forms and converted models as files for other programs."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnc.errors import FileError, InputError
from attnc.progress import watched

_EXPORTERS = {
    ".onnx": "attnc.exporters.onnx"
}  # by suffix: modules with a function `write(x, path, **options)`
SUFFIXES = tuple(_EXPORTERS)


@dataclass(frozen=True)
class Export:
    """A file that was written and compared with the module that it came from.

    `difference` is the largest |file - module| that was seen, at `inputs` inputs inside the domain; `allowed` is what rounding
    explains there. `operations` are the operations of the file, by name. `axes` are the axes of any length, by input."""

    path: Path
    engine: str
    difference: float
    allowed: float
    inputs: int
    operations: tuple[str, ...]
    axes: dict[str, dict[int, str]]


@watched("exporting")
def export(
    x: Any,
    path: str | os.PathLike[str],
    *,
    engine: str = "softmax",
    inputs: Any = None,
    opset: int | None = None,
) -> Export:
    """Write a head, a network, a token network, a learner, a literal form or a converted model for other programs; the suffix of
    the path selects the format. `.onnx` needs the extra `onnx`.

    The file is run in onnxruntime before it gets its name, and compared with the module. If they differ by more than rounding
    explains, an error is raised and nothing is written. A file that exists is replaced.

    With engine="softmax", softmax is the only nonlinear operation of the file, or an error names the others: a model has to be
    converted with parts="all". engine="closed-form" runs what a converted model, or a head with a window, runs by that name.

    `inputs` are those of a call of a converted model, as a tensor, a tuple or a mapping; by default attnc finds some. The batch
    may have any size, and so may the sequence if the model allows it. `opset` is ONNX's operator set, 18 to 23.

    The file carries the certificate. Its approximation term holds wherever the file runs; its rounding term was proved for the
    arithmetic of torch on a CPU, and not for that of another runtime.

    >>> import attnc, tempfile, os
    >>> head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    >>> done = attnc.export(head, os.path.join(tempfile.mkdtemp(), "tanh.onnx"))
    >>> done.difference <= done.allowed, "Softmax" in done.operations
    (True, True)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    target = Path(path)
    if target.suffix not in _EXPORTERS:
        raise InputError(
            f"{target}: the suffix {target.suffix!r} selects no format; accepted are {', '.join(SUFFIXES)}"
        )
    if not target.parent.is_dir() or target.is_dir():
        why = "it is a directory" if target.is_dir() else f"there is no directory {target.parent}"
        raise FileError(f"cannot write {target}: {why}")
    writer = importlib.import_module(_EXPORTERS[target.suffix])
    done: Export = writer.write(x, target, engine=engine, inputs=inputs, opset=opset)
    return done
