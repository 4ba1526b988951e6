"""Directories of converted models: what is read back is what was written, bit for bit, or an error says why not."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import attnc
from attnc.errors import CertificateError, FileError, InputError
from attnc.pretrained import convert_, from_pretrained, report_of
from attnc.pretrained.directory import load_model, read_report
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.save import save_converted
from tests.frontends.tiny_models import TEXT, example, hf, randomised, tiny
from tests.parts import reseal

EPS = 1e-4


class Saved:
    """A model before and after, and the directory it was saved to."""

    def __init__(self, name: str, model: Any, where: Path) -> None:
        self.name, self.where = name, where
        self.before = copy.deepcopy(model)
        self.report = convert_(model, approximation=EPS, samples=example(name))
        self.model = model
        model.save_pretrained(where)


Make = Callable[[str], Saved]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Saved] = {}

    def get(name: str) -> Saved:
        if name not in made:
            made[name] = Saved(name, tiny(name), tmp_path_factory.mktemp("saved") / name.replace(" ", "_"))
        return made[name]

    return get


@pytest.fixture
def bert(saved: Make, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved("bert").where, tmp_path / "bert"))


@pytest.fixture
def llama(saved: Make, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved("llama").where, tmp_path / "llama"))


def same(one: nn.Module, other: nn.Module, inputs: dict[str, Tensor]) -> bool:
    (a,), (b,) = (outputs(model, calls(inputs)) for model in (one, other))
    return a.keys() == b.keys() and len(a) > 0 and all(torch.equal(a[name], b[name]) for name in a)


def edit(where: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrite the tensors of a directory."""
    tensors = load_file(where / "attnc.safetensors")
    change(tensors)
    save_file(tensors, where / "attnc.safetensors", metadata={"format": "pt"})


def edit_config(where: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((where / "config.json").read_text())
    change(config)
    (where / "config.json").write_text(json.dumps(config))


def nudge(name: str) -> Callable[[dict[str, Tensor]], object]:
    """Change one number of a tensor by its last bit or so."""

    def change(tensors: dict[str, Tensor]) -> None:
        flat = tensors[name].view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf, dtype=flat.dtype))

    return change


_LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "t5", "vit")]


@pytest.mark.parametrize("name", ["gpt2", "llama", *_LONG])
def test_round_trip(saved: Make, name: str, tmp_path: Path) -> None:
    made = saved(name)
    back = from_pretrained(made.where)
    assert same(made.model, back, example(name))
    assert sum(type(part).__name__ in ("Pointwise", "GatedBlock") for part in back.modules()) >= 2
    assert report_of(back) == made.report
    assert next(back.parameters()).dtype == torch.float64 and not back.training
    back.save_pretrained(tmp_path / "again")
    again = from_pretrained(tmp_path / "again")
    assert same(made.model, again, example(name)) and report_of(again) == made.report


def test_ties_stay(saved: Make) -> None:
    back = from_pretrained(saved("gpt2").where)
    assert back.lm_head.weight is back.transformer.wte.weight
    t5 = from_pretrained(saved("t5").where)
    assert t5.encoder.embed_tokens.weight is t5.decoder.embed_tokens.weight


def test_shards(saved: Make, tmp_path: Path) -> None:
    made = saved("bert")
    made.model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1 and not (tmp_path / "attnc.safetensors").exists()
    assert same(made.model, from_pretrained(tmp_path), example("bert"))
    shards[1].unlink()
    with pytest.raises(FileError, match=shards[1].name):
        from_pretrained(tmp_path)


def test_a_model_inside_a_model(tmp_path: Path) -> None:
    """Names are those of what was saved, be it the whole or its base model."""
    torch.manual_seed(3)
    model = randomised(hf.BertForMaskedLM(hf.BertConfig(**TEXT)))
    report = convert_(model, approximation=EPS)
    model.save_pretrained(tmp_path / "whole")
    back = from_pretrained(tmp_path / "whole")
    assert same(model, back, example("bert")) and report_of(back) == report
    for i, whole in enumerate((model, back)):
        whole.bert.save_pretrained(tmp_path / f"base{i}")
        base = from_pretrained(tmp_path / f"base{i}")
        assert type(base).__name__ == "BertModel"
        assert same(model.bert, base, example("bert"))


def test_a_part_without_converted_blocks_records_none(tmp_path: Path) -> None:
    model = tiny("t5")
    convert_(model, approximation=EPS, filter_fn=lambda site: site.name.startswith("encoder"))
    model.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path)
    assert same(model, back, example("t5"))
    assert hasattr(back.encoder.config, "attnc") and not hasattr(back.decoder.config, "attnc")


def test_another_engine(saved: Make) -> None:
    made = saved("bert")
    dense = from_pretrained(made.where, engine="softmax")
    report = report_of(dense)
    assert [block.facts["engine"] for block in report.blocks] == ["softmax"] * 2
    assert [b.rounding for b in report.blocks] == [
        b.facts["roundings"]["softmax"] for b in made.report.blocks
    ]
    assert report.measured == ()
    with pytest.raises(InputError, match="engine='sparse'"):
        from_pretrained(made.where, engine="sparse")


@pytest.mark.parametrize("engine", ["softmax", "closed-form"])
def test_the_engine_of_a_model_in_half_precision(tmp_path: Path, engine: str) -> None:
    model = tiny("llama").bfloat16()
    convert_(model, 1e-3, config={"engine": "softmax"})
    model.save_pretrained(tmp_path)
    back = from_pretrained(tmp_path, engine=engine)
    report = report_of(back)
    assert {block.facts["engine"] for block in report.blocks} == {engine}
    assert (report.certificate.status, report.certificate.bound) == ("unknown", float("inf"))
    verdict = attnc.verify(back)
    assert verdict and verdict.exact


@pytest.mark.parametrize(
    "tensor", ["intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight", "attention.output.LayerNorm.weight"]
)  # fmt: skip
def test_edited_weights(bert: Path, tensor: str) -> None:
    edit(bert, nudge(f"encoder.layer.1.{tensor}"))
    with pytest.raises(CertificateError):
        from_pretrained(bert)


@pytest.mark.parametrize("tensor", ["query", "key", "value", "output"])
def test_an_edited_anchor(bert: Path, tensor: str) -> None:
    name = f"encoder.layer.0.intermediate.intermediate_act_fn.0.{tensor}"
    edit(bert, nudge(name))
    assert name in str(read_report(bert)[1])
    with pytest.raises(CertificateError, match=name):
        from_pretrained(bert)


def test_an_anchor_that_is_no_number(bert: Path) -> None:
    name = "encoder.layer.0.intermediate.intermediate_act_fn.0.key"
    edit(bert, lambda tensors: tensors[name].fill_(torch.nan))
    assert name in str(read_report(bert)[1])
    with pytest.raises(CertificateError, match=name):
        from_pretrained(bert)


@pytest.mark.parametrize("tensor", ["activation.0.key", "product.square.0.value"])
def test_an_edited_anchor_of_a_gate(llama: Path, tensor: str) -> None:
    name = f"model.layers.1.mlp.{tensor}"
    edit(llama, nudge(name))
    assert name in str(read_report(llama)[1])
    with pytest.raises(CertificateError):
        from_pretrained(llama)


def test_missing_tensors(bert: Path, llama: Path) -> None:
    anchors = "encoder.layer.0.intermediate.intermediate_act_fn.0.value"
    edit(bert, lambda tensors: tensors.pop(anchors))
    for read in (from_pretrained, read_report):
        with pytest.raises(FileError, match=f"{anchors} is missing"):
            read(bert)
    edit(llama, lambda tensors: tensors.pop("model.layers.0.mlp.product.scale"))
    with pytest.raises(FileError):
        from_pretrained(llama)
    edit(llama, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(FileError, match="LlamaForCausalLM"):
        load_model(llama)


def _other_dtype(config: dict[str, Any]) -> None:
    config["original"]["dtype"] = "float32"


def _looser(config: dict[str, Any]) -> None:
    config["attnc"]["report"]["certificate"]["children"][0]["children"][0]["approximation"] /= 2


def _fewer_fields(config: dict[str, Any]) -> None:
    del config["attnc"]["report"]["samples"]


def _no_heads(config: dict[str, Any]) -> None:
    config["attnc"]["report"]["certificate"]["children"][0]["children"] = []


def _another_activation(config: dict[str, Any]) -> None:
    config["original"]["hidden_act"] = "relu"


def _no_list(config: dict[str, Any]) -> None:
    config["attnc"]["blocks"] = 3


def _no_engine(config: dict[str, Any]) -> None:
    del config["attnc"]["engine"]


@pytest.mark.parametrize(
    "change", [_other_dtype, _looser, _fewer_fields, _no_heads, _another_activation, _no_list, _no_engine]
)
def test_an_edited_record(bert: Path, change: Callable[[dict[str, Any]], None]) -> None:
    edit_config(bert, change)
    with pytest.raises(CertificateError):
        from_pretrained(bert)


def test_a_record_of_other_blocks(bert: Path) -> None:
    def elsewhere(config: dict[str, Any]) -> None:
        config["attnc"]["blocks"][0].update(name="encoder.layer.7")
        reseal(config["attnc"])

    edit_config(bert, elsewhere)
    with pytest.raises(FileError, match=r"encoder\.layer\.7"):
        from_pretrained(bert)
    edit_config(bert, lambda config: config["attnc"].update(version=2))
    with pytest.raises(FileError):
        from_pretrained(bert)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["report"]["certificate"]["children"][0].update(approximation=1e-30),
        lambda record: record["blocks"][0].update(name="encoder.layer.7"),
        lambda record: record.update(engine="softmax"),
        lambda record: record.pop("seal"),
    ],
)
def test_an_edited_record_shows(bert: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_config(bert, lambda config: change(config["attnc"]))
    with pytest.raises(CertificateError, match="edited"):
        from_pretrained(bert)


@pytest.mark.parametrize("name", ["scale", "radius"])
def test_other_powers_of_two_show(llama: Path, name: str) -> None:
    edit(llama, lambda tensors: tensors[f"model.layers.0.mlp.product.{name}"].sub_(1))
    with pytest.raises(CertificateError, match="changed"):
        from_pretrained(llama)


def test_the_report_of_a_directory(saved: Make) -> None:
    for name in ("bert", "llama"):
        assert read_report(saved(name).where) == (saved(name).report, None)


def test_a_failure_while_writing_leaves_nothing(
    saved: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = saved("bert")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "vocab.txt").write_text("a b")
    before = sorted(tmp_path.rglob("*"))

    def full(where: Path) -> None:
        (where / "attnc.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made.model, "save_pretrained", full)
    with pytest.raises(FileError):
        save_converted(made.model, tmp_path / "out", tmp_path / "source")
    assert sorted(tmp_path.rglob("*")) == before

    def stopped(where: Path) -> None:
        (where / "attnc.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(made.model, "save_pretrained", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_converted(made.model, tmp_path / "out", tmp_path / "source")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_stands_beside_the_weights_comes_along(saved: Make, tmp_path: Path) -> None:
    made, source, out = saved("bert"), tmp_path / "source", tmp_path / "out"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "onnx").mkdir()
    kept = {
        "vocab.txt": "a",
        "modules.json": json.dumps([{"path": ""}, {"path": "1_Pooling"}]),
        "1_Pooling/config.json": "{}",
    }
    left = ("config.json", "pytorch_model.bin", "onnx/a.json", ".git")
    for name, text in {**kept, **dict.fromkeys(left, "x")}.items():
        (source / name).write_text(text)
    save_converted(made.model, out, source)
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    own = {"attnc.safetensors", "attnc_report.json", "attnc_report.html", "modeling_attnc.py", "README.md"}
    assert written == {*kept, "config.json", *own}
    assert len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1
    assert same(made.model, from_pretrained(out), example("bert"))
    assert json.loads((out / "attnc_report.json").read_text()) == json.loads(
        json.dumps(made.report.to_json())
    )
    with pytest.raises(FileError):
        save_converted(made.model, out)
    save_converted(made.model, str(tmp_path / "again"), str(source))
    assert (tmp_path / "again" / "vocab.txt").read_text() == "a"


def test_a_model_without_a_config_has_no_directory(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    convert_(model, EPS)
    with pytest.raises(InputError, match=r"attnc\.export\(.*safetensors"):
        save_converted(model, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
