"""Networks on disk: every number comes back, nothing is stored twice, and no edit becomes a proof or a crash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import attnc
from attnc import functions
from attnc.errors import AttncError, CertificateError, FileError
from attnc.network.network import Network
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Reshape
from attnc.program.evaluate import differentiable
from attnc.records.record import read as read_record

JUNK = [None, True, "x", -1, 2.5, math.nan, 10**400, [], {}]
Change = Callable[[dict[str, Any]], object]


def rich(dtype: type = np.float32) -> Program:
    """Every kind of step: a normalisation that is folded, one that is not, a deviation, a residual sum, tokens joined."""
    draw = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return draw.uniform(-0.5, 0.5, shape).astype(dtype)

    def norm(input: int) -> BatchNorm:
        return BatchNorm(
            input, numbers(4), 1 + numbers(4), numbers(4), numbers(4), 1e-5, name=f"norm {input}"
        )

    steps = (
        Affine(0, numbers(4, 3), numbers(4), name="enter"),
        norm(1),
        Pointwise(2, functions.tanh(), 1e-6, 0.25, name="act"),
        Combine((3, 2), (0.75, -1.0), name="residual"),
        norm(4),
        Reshape(5, (8,), name="join"),
        Affine(6, numbers(2, 8), None, name="leave"),
    )
    return Program((2, 3), steps)


def wide_neuron() -> Program:
    """Two groups of neurons."""
    first = np.array([[0.5, 0.25], [-0.25, 0.75], [1024.0, -1024.0], [0.5, -0.5]], np.float32)
    last = np.array([[1.0, -0.5, 2.0**-10, 0.75]], np.float32)
    bias = np.array([0.125], np.float32)
    return Program((2,), (Affine(0, first), Pointwise(1, functions.gelu()), Affine(2, last, bias)))


CASES: dict[str, tuple[Callable[[], Program], float, torch.dtype]] = {
    "rich": (rich, 1e-3, torch.float32),
    "rich from float64": (lambda: rich(np.float64), 1e-3, torch.float32),
    "rich in float64": (lambda: rich(np.float64), 1e-4, torch.float64),
    "groups": (wide_neuron, 5e-5, torch.float32),
}


@cache
def compiled(name: str) -> Network:
    make, eps, dtype = CASES[name]
    program = make()
    return attnc.compile(program, domain=attnc.Box(-1, 1, shape=program.shape), eps=eps, dtype=dtype)


@pytest.fixture(params=CASES)
def net(request: pytest.FixtureRequest) -> Network:
    return compiled(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The rich network, saved."""
    target = tmp_path / "net.safetensors"
    compiled("rich").save(target)
    return target


def inputs(net: Network, count: int) -> torch.Tensor:
    u = torch.rand(count, *net.program.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (2 * u - 1).to(next(net.parameters()).dtype)


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the tensors behind it."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def record_of(data: bytes) -> dict[str, Any]:
    return json.loads(parts(data)[0]["__metadata__"]["attnc"])


def with_record(data: bytes, about: Any) -> bytes:
    """The file with another record, sealed: what is wrong must be found behind the seal."""
    header, rest = parts(data)
    if isinstance(about, dict):
        about = {**about, "seal": _seal(about)}
    header["__metadata__"]["attnc"] = json.dumps(about)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def edit(path: Path, change: Change) -> None:
    about = record_of(path.read_bytes())
    change(about)
    path.write_bytes(with_record(path.read_bytes(), about))


def edit_tensors(path: Path, change: Change) -> None:
    data = path.read_bytes()
    tensors = load_tensors(data)
    change(tensors)
    path.write_bytes(save_tensors(tensors, metadata=parts(data)[0]["__metadata__"]))


def seal(certificate: dict[str, Any]) -> None:
    """Seal the certificate as it is now."""
    certificate["seal"] = _seal(certificate)


def _seal(record: dict[str, Any]) -> str:
    body = {key: value for key, value in record.items() if key != "seal"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, containers included, the value itself left out."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(about: Any, at: tuple[Any, ...], value: Any = "delete") -> Any:
    """A copy with another value at that place, or without it."""
    made = json.loads(json.dumps(about))
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    if isinstance(value, str) and value == "delete":
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    return made


def value_at(about: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        about = about[key]
    return about


def outcome(call: Callable[[], Any]) -> str:
    """What came of it: "refused", the verdict's status, or the name of the exception that should not be."""
    try:
        found = call()
    except AttncError:
        return "refused"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return getattr(found, "status", "loaded")


# What is written comes back.


def test_round_trip(net: Network, tmp_path: Path) -> None:
    net.save(tmp_path / "a.safetensors")
    loaded = attnc.load(tmp_path / "a.safetensors")
    assert isinstance(loaded, Network)
    assert loaded.certificate == net.certificate and loaded.certificate.seal() == net.certificate.seal()
    ours, theirs = net.numbers().tensors(), loaded.numbers().tensors()
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype and array.tobytes() == theirs[name].tobytes()
    assert torch.equal(loaded(inputs(net, 50)), net(inputs(net, 50)))
    assert loaded.program.digest() == net.program.digest()
    assert [s.name for s in loaded.program.steps] == [s.name for s in net.program.steps]
    assert loaded.why_not_certified() is None and str(loaded.describe()) == str(net.describe())
    assert attnc.verify(tmp_path / "a.safetensors").status == "proved"
    loaded.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def stored(net: Network, path: Path) -> tuple[int, int, int]:
    """Bytes of tensors in the file; of the network's; of the program's."""
    net.save(path)
    source = [a for step in net.program.steps for a in step.tensors().values()]
    own = net.numbers().tensors().values()
    return len(parts(path.read_bytes())[1]), sum(a.nbytes for a in own), sum(a.nbytes for a in source)


def test_numbers_that_are_the_same_are_stored_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(40,)), eps=1e-2)
    size, own, source = stored(net, tmp_path / "once.safetensors")
    assert size == own and source > 8000
    wide = attnc.compile(model.double(), domain=attnc.Box(-1, 1, shape=(40,)), eps=1e-2, dtype=torch.float32)
    size, own_wide, source_wide = stored(wide, tmp_path / "twice.safetensors")
    assert source_wide == 2 * source and own_wide == own
    assert size == own + source_wide
    assert attnc.load(tmp_path / "twice.safetensors").program.steps[0].weight.dtype == np.float64


def test_what_is_folded_is_stored_beside_the_source(tmp_path: Path) -> None:
    """Of the rich program the last weight alone runs as it is."""
    net = compiled("rich")
    size, own, source = stored(net, tmp_path / "rich.safetensors")
    assert size == own + source - net.program.steps[-1].weight.nbytes


def test_a_user_s_function_is_named_not_stored(tmp_path: Path) -> None:
    f = attnc.function(torch.sin, name="own_sine", enclosure=lambda x: x.sin())
    steps = (Affine(0, np.eye(2, dtype=np.float32)), Pointwise(1, f))
    net = attnc.compile(Program((2,), steps), domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-3)
    path = tmp_path / "own.safetensors"
    net.save(path)
    for read in (attnc.load, attnc.verify):
        with pytest.raises(FileError, match="own_sine"):
            read(path)
    assert torch.equal(attnc.load(path, function=f)(torch.zeros(2)), net(torch.zeros(2)))
    assert attnc.verify(path, function=f).status == "proved"
    other = attnc.function(torch.sinh, name="own_sine", enclosure=lambda x: (x.exp() - (-x).exp()) / 2)
    assert attnc.verify(path, function=other).status != "proved"


# A write is whole or nothing.


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["write_bytes", "replace"])
def test_an_interrupted_write_leaves_what_was_there(
    path: Path, at: str, problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def interrupted(self: Path, given: bytes | Path) -> None:
        if at == "write_bytes":
            with open(self, "wb") as file:
                file.write(given[: len(given) // 2])
        raise problem

    monkeypatch.setattr(Path, at, interrupted)
    with pytest.raises((FileError, KeyboardInterrupt)) as caught:
        compiled("groups").save(path)
    monkeypatch.undo()
    assert isinstance(problem, KeyboardInterrupt) or "No space" in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    for target in (tmp_path / "no" / "net.safetensors", tmp_path):
        with pytest.raises(FileError):
            compiled("rich").save(target)
    with pytest.raises(attnc.errors.InputError, match="path"):
        compiled("rich").save(3)


# Damage.


def test_truncated_anywhere(path: Path) -> None:
    data = path.read_bytes()
    for size in [*range(16), *range(16, len(data), 211), len(data) - 1]:
        path.write_bytes(data[:size])
        for read in (attnc.load, attnc.verify):
            with pytest.raises(FileError):
                read(path)


@settings(max_examples=80, deadline=None, database=None)
@given(data=st.data())
def test_a_flipped_byte_is_an_error_or_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    net, path = compiled("rich"), tmp_path_factory.mktemp("damage") / "net.safetensors"
    net.save(path)
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    found = outcome(lambda: attnc.verify(path))
    assert found in ("refused", "unknown", "refuted", "proved")
    if found == "proved":
        loaded = attnc.load(path)
        assert loaded.certificate == net.certificate
        assert loaded.numbers().digests() == net.numbers().digests()
        assert loaded.program.digest() == net.program.digest()


def test_files_of_another_kind(path: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    attnc.head("tanh", domain=(-1, 1), anchors=2).save(head)
    with pytest.raises(FileError):
        _ = read_record(head).network
    for data in (b"", b"GIF89a" + bytes(100), save_tensors({"weight": torch.zeros(3)})):
        (tmp_path / "other").write_bytes(data)
        for read in (attnc.load, attnc.verify):
            with pytest.raises(FileError, match="other"):
                read(tmp_path / "other")
    for read in (attnc.load, attnc.verify):
        with pytest.raises(FileError):
            read(tmp_path / "absent")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update(kind="head"),
        lambda about: about.update(kind="circuit"),
        lambda about: about.update(format=1),
        lambda about: about.update(format=4),
        lambda about: about.update(format=True),
        lambda about: about.update(format=3.0),
        lambda about: about.update(kind=["network"]),
        lambda about: about.pop("shared"),
        lambda about: about.clear(),
    ],
)
def test_records_of_another_kind_or_format(path: Path, change: Change) -> None:
    edit(path, change)
    for read in (attnc.load, attnc.verify):
        with pytest.raises((FileError, CertificateError)):
            read(path)


@pytest.mark.parametrize("where", ["record", "program", "step", "stage", "certificate", "layer", "head"])
def test_an_unknown_field_is_refused(path: Path, where: str) -> None:
    """A file of a later version may mean something by it."""

    def add(about: dict[str, Any]) -> None:
        layer = about["certificate"]["children"][0]
        holders = {
            "record": about, "program": about["program"], "step": about["program"]["steps"][0], "stage": about["layers"][0],
            "certificate": about["certificate"], "layer": layer, "head": layer["children"][0],
        }  # fmt: skip
        holders[where]["later"] = 1
        seal(about["certificate"])

    edit(path, add)
    for read in (attnc.load, attnc.verify):
        with pytest.raises((FileError, CertificateError)):
            read(path)


# Edits of the record, each place in turn.


def record_changes(about: Any, part: str) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """(place, what is put there, the record), for every place in a part and everything that does not belong there."""
    for at in [(part,), *places(about[part], (part,))]:
        yield at, "delete", changed(about, at)
        for junk in JUNK:
            if junk != value_at(about, at):
                yield at, junk, changed(about, at, junk)


@pytest.mark.parametrize("part", ["kind", "format", "dtype", "program", "layers", "shared", "presentation"])
def test_no_edit_of_the_record_is_proved_or_crashes(path: Path, part: str) -> None:
    data, wrong, tried = path.read_bytes(), [], 0
    for at, junk, about in record_changes(record_of(data), part):
        tried += 1
        if at[-1] == "name":
            continue  # names are not part of what is claimed
        path.write_bytes(with_record(data, about))
        found = outcome(lambda: attnc.verify(path))
        if found not in ("refused", "unknown", "refuted"):
            wrong.append((at, str(junk)[:9], found))
    assert tried >= 8
    assert not wrong, "\n".join(map(str, wrong))


def test_names_may_be_edited_and_mean_nothing(path: Path) -> None:
    net = compiled("rich")
    edit(path, lambda about: [step.update(name="another") for step in about["program"]["steps"]])
    assert attnc.verify(path).status == "proved"
    assert torch.equal(attnc.load(path)(inputs(net, 5)), net(inputs(net, 5)))


def test_what_can_be_loaded_runs_as_before_or_says_why_not(path: Path) -> None:
    """An edited stage must not run as something else under the same certificate."""
    data, net, wrong = path.read_bytes(), compiled("rich"), []
    x = inputs(net, 4)
    meant = net(x)
    for at, junk, about in record_changes(record_of(data), "layers"):
        path.write_bytes(with_record(data, about))
        try:
            loaded = attnc.load(path)
            same = torch.equal(loaded(x), meant)
            if not same and loaded.why_not_certified() is None:
                wrong.append((at, str(junk)[:9], "runs as something else, and says that it is certified"))
        except AttncError:
            continue
        except Exception as problem:
            wrong.append((at, str(junk)[:9], f"{type(problem).__name__}: {problem}"))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("factor", [0.5, 1 + 2.0**-10, -1.0])
def test_an_edited_coefficient_is_never_proved(path: Path, factor: float) -> None:
    def scale(about: dict[str, Any]) -> None:
        (layer,) = (s for s in about["layers"] if s["kind"] == "combine")
        layer["settings"]["coefficients"][0] *= factor

    edit(path, scale)
    assert outcome(lambda: attnc.verify(path)) in ("refused", "unknown", "refuted")


def test_a_forged_program_is_proved_only_if_it_is_what_runs(path: Path) -> None:
    """The program edited and its digest in the certificate too: the mathematics decides."""
    data, wrong, judged = path.read_bytes(), [], 0
    x = inputs(compiled("rich"), 4)
    for at, junk, about in record_changes(record_of(data), "program"):
        try:
            path.write_bytes(with_record(data, about))
            forged = read_record(path).network[0]
        except AttncError:
            continue
        except Exception as problem:
            wrong.append((at, str(junk)[:9], f"{type(problem).__name__}: {problem}"))
            continue
        if at[-1] == "name" or forged.digest() == about["certificate"]["facts"]["program"]:
            continue
        about["certificate"]["facts"]["program"] = forged.digest()
        seal(about["certificate"])
        path.write_bytes(with_record(data, about))
        found, judged = outcome(lambda: attnc.verify(path)), judged + 1
        if found == "proved":
            off = compiled("rich")(x).double() - differentiable(forged, x.double())
            if not float(off.abs().max()) <= about["certificate"]["bound"]:
                wrong.append((at, str(junk)[:9], "proved, and false"))
        elif found not in ("refused", "unknown", "refuted"):
            wrong.append((at, str(junk)[:9], found))
    assert judged >= 3
    assert not wrong, "\n".join(map(str, wrong))


# Edits of the certificate.

LABELS = ("name", "design", "precision", "cells", "versions")  # said of the proof, not part of what is proved


def test_any_edit_of_the_certificate_breaks_its_seal(path: Path) -> None:
    data, tried = path.read_bytes(), 0
    about = record_of(data)
    for at in places(about["certificate"], ("certificate",)):
        old = value_at(about, at)
        if isinstance(old, (dict, list)):
            continue
        new = 1.0 if old is None else old + "x" if isinstance(old, str) else old + 1
        path.write_bytes(with_record(data, changed(about, at, new)))
        tried += 1
        for read in (attnc.load, attnc.verify):
            with pytest.raises(CertificateError):
                read(path)
    assert tried > 40


def test_no_malformed_certificate_is_proved_or_crashes_though_it_is_sealed(path: Path) -> None:
    data, wrong = path.read_bytes(), []
    about = record_of(data)
    for at in places(about["certificate"], ("certificate",)):
        old = value_at(about, at)
        label = any(name in at for name in LABELS)
        if {"digests", "versions"} & set(at[:-1]) and at[-1] != next(iter(value_at(about, at[:-1]))):
            continue  # one of each stands for the others
        for junk in ("delete", None, "x", -1, math.nan, 10**400, [], {}):
            larger = (
                isinstance(old, float) and type(junk) is float and junk > old
            )  # a looser claim is no false one
            if junk == old or larger or (label and ("versions" in at[:-1] or type(junk) is type(old))):
                continue
            made = changed(about, at, junk)
            if at[-1] != "seal":
                with contextlib.suppress(
                    AttributeError, TypeError, KeyError
                ):  # so malformed that nothing can be sealed
                    seal(made["certificate"])
            path.write_bytes(with_record(data, made))
            found = outcome(lambda: attnc.verify(path))
            if found not in ("refused", "unknown", "refuted"):
                wrong.append((at, str(junk)[:9], found))
    assert not wrong, "\n".join(map(str, wrong))


# Edits of the numbers.


@pytest.mark.parametrize("name", ["rich", "groups"])
def test_the_tensor_that_was_edited_is_named(name: str, tmp_path: Path) -> None:
    net, path = compiled(name), tmp_path / "net.safetensors"
    net.save(path)
    data = path.read_bytes()
    for tensor in load_tensors(data):

        def nudge(tensors: dict[str, torch.Tensor], tensor: str = tensor) -> None:
            flat = tensors[tensor].view(-1)
            if flat.dtype.is_floating_point:
                flat[0] = torch.nextafter(flat[0], flat.new_tensor(math.inf))
            elif len(flat) > 1:
                flat[:2] = flat[:2].flip(0).clone()
            else:
                flat[0] = 0

        path.write_bytes(data)
        edit_tensors(path, nudge)
        try:
            verdict = attnc.verify(path)
        except FileError as problem:
            assert "neurons" in tensor and "stage 1" in str(problem)
            continue
        assert verdict.status == "unknown"
        own = tensor if tensor.startswith("stages") else "not those that were certified"
        assert own in verdict.reason, (tensor, verdict)
        if tensor.startswith("stages"):
            assert tensor in attnc.load(path).why_not_certified()


def test_tensors_that_are_missing_misshapen_or_of_another_dtype(path: Path) -> None:
    data, wrong = path.read_bytes(), []
    spoil: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
        "missing": lambda t: None,
        "one axis more": lambda t: t[None],
        "one number less": lambda t: t.reshape(-1)[1:],
        "empty": lambda t: t[:0],
        "a NaN": lambda t: torch.full_like(t, math.nan),
        "infinite": lambda t: torch.full_like(t, math.inf),
        "float64": lambda t: t.double(),
        "float16": lambda t: t.half(),
        "bfloat16": lambda t: t.bfloat16(),
        "whole numbers": lambda t: t.long(),
        "truth": lambda t: t > 0,
    }
    for name in load_tensors(data):
        for how, make in spoil.items():

            def change(tensors: dict[str, torch.Tensor], name: str = name, make: Any = make) -> None:
                made = make(tensors.pop(name))
                if made is not None:
                    tensors[name] = made.contiguous()

            path.write_bytes(data)
            edit_tensors(path, change)
            found = outcome(lambda: attnc.load(path))
            if found == "refused":
                continue
            if found != "loaded":
                wrong.append((name, how, "load", found))
            elif attnc.load(path).numbers().digests() != compiled("rich").numbers().digests():
                found = outcome(lambda: attnc.verify(path))
                if found not in ("unknown", "refuted"):
                    wrong.append((name, how, "verify", found))
    assert not wrong, "\n".join(map(str, wrong))


def test_stages_in_another_order(path: Path) -> None:
    """Also with their tensors renamed to match: a stage reads what was made before it, or the record is refused."""
    data = path.read_bytes()
    count = len(record_of(data)["layers"])
    for i in range(count - 1):

        def swap(about: dict[str, Any], i: int = i) -> None:
            stages = about["layers"]
            stages[i], stages[i + 1] = stages[i + 1], stages[i]

        def swap_tensors(tensors: dict[str, torch.Tensor], i: int = i) -> None:
            other = {i: i + 1, i + 1: i}
            for name in list(tensors):
                kind, _, rest = name.partition(".")
                number, _, last = rest.partition(".")
                if kind == "stages" and int(number) in other:
                    tensors[f"moved.{other[int(number)]}.{last}"] = tensors.pop(name)
            for name in [n for n in tensors if n.startswith("moved")]:
                tensors[name.replace("moved", "stages")] = tensors.pop(name)

        path.write_bytes(data)
        edit(path, swap)
        for read in (attnc.load, attnc.verify):
            with pytest.raises(FileError):
                read(path)
        edit_tensors(path, swap_tensors)
        for read in (attnc.load, attnc.verify):
            with pytest.raises(FileError):
                read(path)


def test_steps_in_another_order_or_fewer(path: Path) -> None:
    data = path.read_bytes()
    about = record_of(data)
    steps = about["program"]["steps"]
    for other in ([*steps[1:], steps[0]], steps[:-1], [*steps, steps[-1]], []):
        path.write_bytes(with_record(data, about | {"program": about["program"] | {"steps": other}}))
        for read in (attnc.load, attnc.verify):
            with pytest.raises(FileError):
                read(path)


def test_tensors_of_equal_shape_that_trade_places(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    model = torch.nn.Sequential(linear(3, 3), tanh(), linear(3, 3), tanh(), linear(3, 3)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3)
    path = tmp_path / "net.safetensors"
    net.save(path)
    data = path.read_bytes()

    def trade(tensors: dict[str, torch.Tensor]) -> None:
        first, second = "stages.0.weight", "stages.2.weight"
        tensors[first], tensors[second] = tensors[second], tensors[first]

    edit_tensors(path, trade)
    verdict = attnc.verify(path)
    assert verdict.status == "unknown"
    assert "stages.0.weight, stages.2.weight" in verdict.reason
    path.write_bytes(data)

    def share(about: dict[str, Any]) -> None:
        shared = about["shared"]
        shared["program.0.weight"], shared["program.2.weight"] = (
            shared["program.2.weight"],
            shared["program.0.weight"],
        )

    edit(path, share)
    verdict = attnc.verify(path)
    assert verdict.status == "unknown"
    assert "not those that were certified" in verdict.reason
