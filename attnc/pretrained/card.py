"""The model card of a converted model: what was converted, which bounds are proved, and how to load it."""

from __future__ import annotations

from collections.abc import Sequence

from attnc.pretrained.report import COLUMNS, ConversionReport
from attnc.records.fields import at_most

_METADATA = "---\nlibrary_name: transformers\ntags:\n- attnc\n- custom_code\n---\n"
_LOAD = """\
```python
from transformers import AutoModel

model = AutoModel.from_pretrained("DIRECTORY", trust_remote_code=True)
```

This runs `modeling_attnc.py` of this directory, which needs torch, transformers and safetensors.
`SentenceTransformer("DIRECTORY", trust_remote_code=True)` works too, if the original is a model of
sentence-transformers. With attnc installed,

```python
import attnc

model = attnc.from_pretrained("DIRECTORY")
```

executes nothing from the directory, checks that weights, anchors and `modeling_attnc.py` are those that attnc wrote, and warns
where an input lies outside of what was proved. `attnc verify DIRECTORY` proves the bounds again.

Without `trust_remote_code`, transformers refuses to open the directory. It would know only the original model: the type of the
model in `config.json` and the names of the files of weights are chosen so that nobody takes one for the other."""
_EXECUTED = {
    "softmax": "The converted parts execute this softmax, over all anchors.",
    "closed-form": "The converted parts execute closed forms instead, which are not softmax as executed.",
}
_CLAIMED = """\
* Each bound is about one converted part, given its input as it is executed, for every input in the column *holds for*.
  `approximation` compares the part with the original part, both in exact arithmetic. `rounding` is what execution in the
  dtype of the model adds, in the worst case over all inputs and orders of summation.
* The bounds are about the numbers whose SHA-256 `config.json` records. `attnc verify DIRECTORY` compares them and proves the
  bounds again. `save_pretrained` compares them too: if they changed, it warns and writes a card without bounds.
* The bounds are about the stored numbers, on a CPU, as attnc's modules execute them. `modeling_attnc.py` executes the same
  operations in the same order, and attnc's tests compare both; the proof itself is about attnc's modules."""
_NOT_CLAIMED = """\
* No bound is proved for the output of the whole model. Differences that are called measured are those of some samples.
* Parts that are listed as skipped, and attention between tokens, run as in the original.
* Nothing is claimed after training, casts to another dtype, quantisation, or on other devices than a CPU.
* The seals and digests in `config.json` show accidental edits. They are no signature: whoever can write the directory can
  write them too."""


def card(report: ConversionReport, engine: str) -> str:
    """The text of README.md, with YAML on top."""
    children = report.certificate.children
    kinds = {"block": "feed-forward block", "norm": "norm", "activation": "other activation"}
    counts = {kinds[kind]: sum(part.subject == kind for part in children) for kind in kinds}
    parts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count)
    status = "proved" if report.proved else str(report.certificate.status)
    terms = [
        ("converted", parts),
        ("status", status),
        ("requested approximation", f"{report.approximation:g}"),
        ("largest approximation", at_most(report.certificate.approximation)),
        ("largest rounding", _finite(report.certificate.rounding)),
        ("largest bound", _finite(report.certificate.bound)),
        ("engine", engine),
        ("dtype", report.certificate.dtype),
        ("numbers", f"{report.parameters:,}, and {report.parameters_added:,} of attention"),
        (
            "made with",
            ", ".join(f"{name} {version}" for name, version in report.certificate.versions.items()),
        ),
    ]
    blocks = [COLUMNS, *report.rows()]
    return "\n".join([
        _METADATA, f"# {report.model} as softmax attention", "",
        f"attnc converted {parts} of a {report.model} to softmax attention over stored anchors. {_EXECUTED[engine]} The "
        "conversion changed no weight of the original.", "", _table([("", ""), *terms]), "", "## How to load it", "", _LOAD, "",
        "## What is claimed", "", _CLAIMED, "", "## What was converted, and what is left", "",
        *([_table(blocks), ""] if len(blocks) > 1 else []), *(f"* {line}" for line in report.notes()), "",
        "## What is not claimed", "", _NOT_CLAIMED, "",
    ])  # fmt: skip


def _finite(bound: float) -> str:
    return at_most(bound) if bound < float("inf") else "not claimed"


def _table(rows: Sequence[Sequence[str]]) -> str:
    first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([first, "|" + "---|" * len(rows[0]), *others])
