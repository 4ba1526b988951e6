"""attnc.export: heads, networks, token networks, learners, literal forms and converted models as files for other programs."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnc.errors import FileError, InputError
from attnc.progress import watched

if TYPE_CHECKING:
    from attnc.exporters.coq.checking import CoqCheck

# by suffix: modules with a function `write(x, path, **options)`, and the options that they take
_EXPORTERS = {".onnx": "attnc.exporters.onnx", ".v": "attnc.exporters.coq.writer"}
_OPTIONS = {".onnx": ("engine", "inputs", "opset"), ".v": ("native", "check", "executed")}
_DEFAULTS = {
    "engine": "softmax",
    "inputs": None,
    "opset": None,
    "native": True,
    "check": False,
    "executed": False,
}
SUFFIXES = tuple(_EXPORTERS)


@dataclass(frozen=True)
class Export:
    """A file that was written and compared with the module that it came from.

    `difference` is the largest |file - module| that was seen, at `inputs` inputs inside the domain; `allowed` is what rounding
    explains there. `operations` are the operations of the file, by name. `axes` are the axes of any length, by input. `notes` say
    what the file lacks: an attention mask that the module accepts and the file does not."""

    path: Path
    engine: str
    difference: float
    allowed: float
    inputs: int
    operations: tuple[str, ...]
    axes: dict[str, dict[int, str]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoqFile:
    """A Coq file that states and proves the approximation term of a certificate, and what coqc said of it.

    `files` are all files that were written: the file itself, one that prints the axioms, and the libraries of attnc.
    `theorems` are the names of the theorems. `eps` is the number in the first, which bounds |head/f - 1| if `relative`, and
    else |head - f|. `check` is None if coqc was not asked for."""

    path: Path
    files: tuple[Path, ...]
    theorems: tuple[str, ...]
    eps: float
    check: CoqCheck | None = None
    relative: bool = False


@watched("exporting")
def export(
    x: Any,
    path: str | os.PathLike[str],
    *,
    engine: str = "softmax",
    inputs: Any = None,
    opset: int | None = None,
    native: bool = True,
    check: bool = False,
    executed: bool = False,
) -> Any:
    """Write a head, a network, a token network, a learner, a literal form or a converted model for other programs; the suffix of
    the path selects the format, `.onnx` or, for a head, `.v`. `.onnx` needs the extra `onnx`.

    The file is run in onnxruntime before it gets its name, and compared with the module. If they differ by more than rounding
    explains, an error is raised and nothing is written. A file that exists is replaced.

    With engine="softmax", softmax is the only nonlinear operation of the file, or an error names the others: a model has to be
    converted with parts="all". engine="closed-form" runs what a converted model, or a head with a window, runs by that name.

    `inputs` are those of a call of a converted model, as a tensor, a tuple or a mapping; by default attnc finds some, and adds
    `attention_mask` if the model accepts it. If the file cannot take the mask, attnc warns, and `notes` of the result says so.
    The batch may have any size, and so may the sequence if the model allows it. `opset` is ONNX's operator set, 18 to 23.

    The file carries the certificate. Its approximation term holds wherever the file runs; its rounding term was proved for the
    arithmetic of torch on a CPU, and not for that of another runtime.

    `.v` is a file for the Coq proof assistant: it states the approximation term of the head's certificate as a theorem about the
    stored numbers, and proves it with the library CoqInterval. With `native=False` the proof does not compute in machine floats,
    so that it rests on fewer axioms. With `executed`, a second file states and proves the bound of the certificate, rounding
    included, under the assumptions of docs/arithmetic.md about the machine. With `check`, coqc runs, and `check.status` of the
    result is "proved", "failed" or "not installed".

    Returns an `Export` for `.onnx` and a `CoqFile` for `.v`.

    >>> import attnc, tempfile, os
    >>> head, directory = attnc.head("tanh", domain=(-8, 8), eps=1e-5), tempfile.mkdtemp()
    >>> done = attnc.export(head, os.path.join(directory, "tanh.onnx"))
    >>> done.difference <= done.allowed, "Softmax" in done.operations
    (True, True)
    >>> done = attnc.export(head, os.path.join(directory, "tanh.v"))
    >>> done.theorems, done.eps == head.certificate.approximation
    (('approximation',), True)
    """
    target = _target(path)
    given = {
        "engine": engine,
        "inputs": inputs,
        "opset": opset,
        "native": native,
        "check": check,
        "executed": executed,
    }
    options = _options(target.suffix, given)
    return importlib.import_module(_EXPORTERS[target.suffix]).write(x, target, **options)


def _target(path: str | os.PathLike[str]) -> Path:
    """The path, if a file of a known format can be written there."""
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
    return target


def _options(suffix: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a format; raises if another one was given."""
    options = {name: given.pop(name) for name in _OPTIONS[suffix]}
    for name, value in given.items():
        if value is not _DEFAULTS[name] and value != _DEFAULTS[name]:
            raise InputError(f"{name}={value!r} is not an option of {suffix} files: leave it out")
    for name in ("native", "check", "executed"):
        if type(options.get(name, False)) is not bool:
            raise InputError(f"{name}={options[name]!r}: give True or False")
    return options
