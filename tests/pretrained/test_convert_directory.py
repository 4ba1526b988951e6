"""Directories are converted block by block: what is written, what a kill leaves, and what is refused."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from attnc import purity
from attnc.errors import FileError, InputError, UnsupportedError
from attnc.pretrained import convert_, from_pretrained, report_of
from attnc.pretrained import convert_directory as driver
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.directory import load_model, map_converted, map_model, read_report
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.mapped import NotMappableError, Placeholders, in_memory, traced
from attnc.pretrained.plan_directory import plan_directory
from attnc.pretrained.verify import verify_directory
from attnc.pretrained.work import ANCHORS, Work, work_directory
from attnc.records.files import CONVERTED_INDEX, INDEX, Directory, read_json
from tests.frontends.tiny_models import example, tiny

EPS = 1e-4
Bytes = dict[str, bytes]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models in several files each; Llama in bfloat16."""
    found = {}
    for name in ("llama", "bert"):
        found[name] = tmp_path_factory.mktemp("models") / name
        model = tiny(name).bfloat16() if name == "llama" else tiny(name)
        model.save_pretrained(found[name], max_shard_size="4KB" if name == "llama" else "16KB")
        assert len(Directory(found[name]).names) >= 3
    (found["llama"] / "tokenizer.json").write_text("{}")
    return found


@pytest.fixture(scope="module", autouse=True)
def read_once(sources: dict[str, Path]) -> Iterator[None]:
    """Record the operations of each model once, not in every test: a conversion leaves the model as it was."""
    read, known = driver.read_directory, dict[tuple[Path, Any], driver.DirectoryRead]()

    def once(source: Path, config: Any, filter_fn: Any, parts: Any) -> driver.DirectoryRead:
        if source not in sources.values():
            return read(source, config, filter_fn, parts)
        if (source, parts) not in known:
            known[source, parts] = read(source, config, filter_fn, parts)
        return known[source, parts]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "read_directory", once)
        yield


@pytest.fixture(scope="module")
def finished(sources: dict[str, Path], read_once: None) -> dict[str, Path]:
    """Converted without an interruption."""
    found = {}
    for name, source in sources.items():
        found[name] = source.with_name(f"{name}-attention")
        convert_directory(source, found[name], EPS)
    return found


@pytest.fixture
def source(sources: dict[str, Path], tmp_path: Path) -> Path:
    """A Llama that a test may damage."""
    return Path(shutil.copytree(sources["llama"], tmp_path / "llama"))


def contents(where: Path) -> Bytes:
    """Every file but the report, which has time and memory."""
    assert (where / "attnc_report.json").exists() and (where / "attnc_report.html").exists()
    files = [file for file in where.rglob("*") if file.is_file() and not file.name.startswith("attnc_report")]
    return {str(file.relative_to(where)): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_what_is_written(name: str, sources: dict[str, Path], finished: dict[str, Path]) -> None:
    source, out = sources[name], finished[name]
    assert not work_directory(out).exists()
    for file in Directory(source).names:
        assert (out / file).stat().st_ino == (source / file).stat().st_ino
    before, after = (read_json(file)["weight_map"] for file in (source / INDEX, out / CONVERTED_INDEX))
    added = {tensor for tensor, file in after.items() if file == ANCHORS}
    assert added and before == {tensor: file for tensor, file in after.items() if tensor not in added}
    assert added == set(load_file(out / ANCHORS))
    assert (out / "tokenizer.json").exists() == (name == "llama")
    config = read_json(out / "config.json")
    assert config["original"] == read_json(source / "config.json") and config["model_type"] == "attnc"


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_result_is_that_of_the_loaded_model(
    name: str, sources: dict[str, Path], finished: dict[str, Path]
) -> None:
    model = load_model(sources[name])
    report = convert_(model, EPS, samples=example(name))
    read = from_pretrained(finished[name])
    assert report_of(read).certificate == report.certificate and report_of(read).skipped == report.skipped
    assert report_of(read).measured and report_of(read).parameters_added == report.parameters_added
    (one,), (other,) = (outputs(each, calls(example(name))) for each in (model, read))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert read_report(finished[name]) == (report_of(read), None)


@pytest.mark.slow
def test_norms_and_poolers_are_converted_too(sources: dict[str, Path], tmp_path: Path) -> None:
    config, out = {"engine": "softmax"}, tmp_path / "out"
    model = load_model(sources["bert"])
    report = convert_(model, EPS, config, parts="all", samples=example("bert"))
    convert_directory(sources["bert"], out, EPS, config, parts="all")
    read = from_pretrained(out)
    assert report_of(read).certificate == report.certificate and len(report_of(read).norms) == 5
    assert report_of(read).skipped == report.skipped == ()
    assert report_of(read).parameters_added == report.parameters_added
    (one,), (other,) = (outputs(each, calls(example("bert"))) for each in (model, read))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert purity(read, **example("bert")) == ()
    assert verify_directory(out).status == "proved"
    plan = plan_directory(sources["bert"], parts="all")
    assert len(plan.others) == 6 and f"{len(plan.others)}" in str(plan)


def test_norms_are_converted_again_by_a_resumed_run(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "resumed"):
        with monkeypatch.context() as patched:
            if name == "resumed":
                _interrupted(patched, "write_weights", KeyboardInterrupt())
                with pytest.raises(KeyboardInterrupt):
                    convert_directory(sources["bert"], tmp_path / name, EPS, parts="all")
                with pytest.raises(FileError, match="unfinished"):
                    convert_directory(sources["bert"], tmp_path / name, EPS)
        convert_directory(sources["bert"], tmp_path / name, EPS, parts="all")
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")


def test_the_directory_is_proved_again(finished: dict[str, Path]) -> None:
    seen: list[tuple[str, int, int]] = []
    verdict = verify_directory(finished["llama"], progress=lambda *given: seen.append(given))
    assert verdict and len(verdict.children) == 2 and [total for *_, total in seen] == [2] * 4


def test_time_and_memory_are_in_the_report_alone(finished: dict[str, Path]) -> None:
    report = json.loads((finished["bert"] / "attnc_report.json").read_text())
    assert report["seconds"] > 0 and report["memory"] > 2**20
    stored = read_json(finished["bert"] / "config.json")["attnc"]["report"]
    assert stored["seconds"] == 0 and stored["memory"] == 0


def _interrupted(monkeypatch: pytest.MonkeyPatch, at: str, problem: BaseException, after: int = 0) -> None:
    """Raise a problem in a step of the work, after so many calls of it."""
    step, count = getattr(Work, at), iter(range(100))

    def stopped(self: Work, *given: Any) -> None:
        if next(count) >= after:
            raise problem
        step(self, *given)

    monkeypatch.setattr(Work, at, stopped)


@pytest.mark.parametrize(
    ("at", "after", "left"),
    [("store", 1, 1), ("write_weights", 0, 0), ("finish", 0, 0), ("discard", 0, 0)],
)
def test_an_interrupted_run_resumes_to_the_same_bytes(
    at: str, after: int, left: int, sources: dict[str, Path], finished: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out, converted = tmp_path / "out", list[str]()
    with monkeypatch.context() as patched:
        _interrupted(patched, at, KeyboardInterrupt(), after)
        with pytest.raises(KeyboardInterrupt):
            convert_directory(sources["llama"], out, EPS)
    assert work_directory(out).exists() and out.exists() == (at == "discard")
    original = driver.convert_alone
    monkeypatch.setattr(
        driver, "convert_alone", lambda task: converted.append(task.site.name) or original(task)
    )
    report = convert_directory(sources["llama"], out, EPS)
    assert len(converted) == left and report.converted == 2
    assert contents(out) == contents(finished["llama"]) and not work_directory(out).exists()


def test_a_killed_process_is_resumed(
    sources: dict[str, Path], finished: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = f"""
import os, signal
from pathlib import Path
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.work import Work
store = Work.store
def killed(self, i, converted):
    store(self, i, converted)
    (self.model / ".half.1.part").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
Work.store = killed
convert_directory(Path({str(sources["llama"])!r}), Path({str(out)!r}), {EPS})
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=300)
    assert ran.returncode == -signal.SIGKILL and not out.exists()
    convert_directory(sources["llama"], out, EPS)
    assert contents(out) == contents(finished["llama"])


@pytest.mark.parametrize("at", ["store", "write_weights"])
def test_a_full_disk(
    at: str, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        _interrupted(patched, at, full, after=int(at == "store"))
        with pytest.raises(FileError, match="No space left on device"):
            convert_directory(sources["llama"], out, EPS)
    assert not out.exists()
    kept = [*work_directory(out).glob("blocks/*")]
    assert len(kept) == (1 if at == "store" else 2)


def test_a_disk_that_is_full_from_the_start(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("attnc.records.files.save", full)
    with pytest.raises(FileError, match="No space left on device"):
        convert_directory(sources["llama"], tmp_path / "out", EPS)
    assert [*tmp_path.iterdir()] == []


def test_unfinished_work_of_other_options_is_refused(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        _interrupted(patched, "store", KeyboardInterrupt(), 1)
        with pytest.raises(KeyboardInterrupt):
            convert_directory(sources["llama"], out, EPS)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileError, match="unfinished"):
        convert_directory(sources["llama"], out, EPS / 2)
    assert sorted(tmp_path.rglob("*")) == before


def test_threads_and_copies_yield_the_same_bytes(
    sources: dict[str, Path], finished: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", no_link)
    with joblib.parallel_config(backend="threading"):
        convert_directory(sources["llama"], tmp_path / "out", EPS, jobs=2)
    assert contents(tmp_path / "out") == contents(finished["llama"])


def _twice(where: Path) -> None:
    first, second, *_ = Directory(where).names
    name, tensor = next(iter(load_file(where / first).items()))
    save_file({**load_file(where / second), name: tensor}, where / second)


def _index(where: Path) -> None:
    index = read_json(where / INDEX)
    first, second, *_ = sorted(index["weight_map"])
    files = index["weight_map"]
    files[first], files[second] = sorted(set(files.values()))[-2:]
    (where / INDEX).write_text(json.dumps(index))


def _twice_in_the_index(where: Path) -> None:
    begin, name = '"weight_map": {', "model.norm.weight"
    text = (where / INDEX).read_text().replace(begin, f'{begin}"{name}": "{Directory(where).names[0]}",')
    (where / INDEX).write_text(text)
    assert text.count(f'"{name}"') == 2


def _twice_in_the_header(where: Path) -> None:
    """The second entry has another dtype: safetensors takes it, and does not complain."""
    file = where / Directory(where).names[1]
    size, data = struct.unpack("<Q", file.read_bytes()[:8])[0], file.read_bytes()
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    other = json.dumps({name: {**header[name], "dtype": "F16"}}).encode()
    header_bytes = data[8 : 8 + size].rstrip()[:-1] + b"," + other[1:]
    file.write_bytes(struct.pack("<Q", len(header_bytes)) + header_bytes + data[8 + size :])
    assert load_file(file)[name].dtype == torch.float16


def _cut(where: Path) -> None:
    file = where / Directory(where).names[1]
    file.write_bytes(file.read_bytes()[:-8])


def _named_like_the_anchors(where: Path) -> None:
    name = Directory(where).names[0]
    (where / name).rename(where / ANCHORS)
    (where / INDEX).write_text((where / INDEX).read_text().replace(name, ANCHORS))


def _missing(where: Path) -> None:
    (where / Directory(where).names[1]).unlink()


def _nan(where: Path) -> None:
    for name in Directory(where).names:
        tensors = load_file(where / name)
        for key, tensor in tensors.items():
            if key.endswith("layers.1.mlp.up_proj.weight"):
                tensor[0, 0] = torch.nan
        save_file(tensors, where / name)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_twice, FileError),
        (_twice_in_the_index, FileError),
        (_twice_in_the_header, FileError),
        (_index, FileError),
        (_cut, FileError),
        (_missing, FileError),
        (_named_like_the_anchors, FileError),
        (_nan, UnsupportedError),
    ],
)
def test_damaged_files(damage: Callable[[Path], None], kind: type[Exception], source: Path) -> None:
    damage(source)
    before = sorted(source.parent.rglob("*"))
    with pytest.raises(kind):
        convert_directory(source, source.parent / "out", EPS, check=False)
    assert sorted(source.parent.rglob("*")) == before


def test_a_model_that_is_cast_is_loaded_whole(source: Path) -> None:
    config = read_json(source / "config.json")
    (source / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    plan = plan_directory(source)
    with pytest.warns(UserWarning, match="whole model"):
        report = convert_directory(source, source.parent / "out", EPS, check=False)
    assert report.converted == 2 and report.certificate.dtype == "float32"
    assert [block["name"] for block in plan.blocks] == [block.name for block in report.blocks] and plan.whole
    assert plan.memory > 4 * report.parameters
    assert report_of(from_pretrained(source.parent / "out")) == report


def test_a_dry_run_writes_nothing(source: Path) -> None:
    before = sorted(source.parent.rglob("*"))
    plan = plan_directory(source, filter_fn=lambda site: "1" in site.name)
    assert [block["name"] for block in plan.blocks] == ["model.layers.1.mlp"]
    assert [skipped.name for skipped in plan.skipped] == ["model.layers.0.mlp"]
    assert plan.blocks[0]["size"] == 3 * 16 * 24 * 2 and plan.memory >= plan.blocks[0]["memory"] > 0
    assert "model.layers.1.mlp" in str(plan) and json.dumps(plan.to_json())
    assert sorted(source.parent.rglob("*")) == before
    with pytest.raises(InputError):
        plan_directory(source, filter_fn=lambda site: False)


@pytest.mark.parametrize("release", [False, True])
def test_matrices_are_in_memory_only_while_they_are_used(release: bool, sources: dict[str, Path]) -> None:
    mapped, loaded = map_model(sources["bert"]), load_model(sources["bert"])
    assert all(mapped.model.get_parameter(name).untyped_storage().nbytes() < 600 for name in mapped.sources)
    with in_memory(mapped.model, mapped.sources, release=release):
        for name, tensor in loaded.named_parameters():
            assert torch.equal(mapped.model.get_parameter(name), tensor)
        (one,), (other,) = (outputs(model, calls(example("bert"))) for model in (mapped.model, loaded))
    assert one.keys() == other.keys() and all(torch.allclose(one[key], other[key]) for key in one)
    assert not any(mapped.model.get_parameter(name).any() for name in mapped.sources)
    assert not any(part._forward_hooks for part in mapped.model.modules())


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_verify_does_not_load_the_model(
    name: str, finished: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heads of a model in bfloat16 are stored in float32: two dtypes, and no cast."""

    def loaded(*_: object) -> None:
        raise AssertionError("the whole model is loaded")

    monkeypatch.setattr("attnc.pretrained.directory.load_model", loaded)
    mapped = map_converted(finished[name])
    assert mapped.sources and not any(mapped.model.get_parameter(name).any() for name in mapped.sources)


@pytest.mark.parametrize("change", [lambda t: t.T, lambda t: t.double(), lambda t: t.clone()])
def test_a_tensor_that_is_not_stored_as_it_is_used(
    change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    save_file({"weight": torch.randn(4, 4), "bias": torch.randn(4)}, tmp_path / "model.safetensors")
    stored = Directory(tmp_path)
    given, model = Placeholders(stored), nn.Linear(4, 4)
    model.weight, model.bias = (nn.Parameter(given.tensors[name]) for name in ("weight", "bias"))
    assert [*traced(model, given).sources] == ["weight"]
    model.weight = nn.Parameter(change(given.tensors["weight"]))
    with pytest.raises(NotMappableError):
        traced(model, given)
