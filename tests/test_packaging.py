"""The distributions are complete, and the installed wheel runs what the README shows."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest

import attnc

ROOT = Path(__file__).parents[1]
FOLDERS = (".github", "attnc", "benchmarks", "docs", "examples", "tests")
FILES = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt",
    "pyproject.toml", "setup.py",
)  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(markdown: str) -> str:
    """A page without its blocks of code."""
    return "".join(markdown.split("```")[::2])


def python(*arguments: object, path: Path, cwd: Path) -> None:
    """Run Python with `path` first among the places of packages."""
    command = [sys.executable, *map(str, arguments)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(path),
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of this tree."""
    work = tmp_path_factory.mktemp("source")
    tree = work / "tree"
    tree.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    python("-c", build, work, path=work, cwd=tree)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(work, filter="data")
    return work / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel that pip builds from the source distribution."""
    out = source.parent
    options = ("--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", out)
    python("-m", "pip", "wheel", *options, source, path=out, cwd=out)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(packed.read(name).decode())


def files(root: Path) -> set[str]:
    """The files of the project below a folder."""
    found = {
        str(path.relative_to(root)) for name in FOLDERS for path in (root / name).rglob("*") if path.is_file()
    }
    return {name for name in found if "__pycache__" not in name} | set(FILES)


def test_the_source_distribution_has_every_file(source: Path) -> None:
    """Documentation, tests, benchmarks and examples too, byte by byte: the tests can be run from it."""
    missing = [name for name in files(ROOT) if not (source / name).is_file()]
    assert missing == []
    different = [name for name in files(ROOT) if (source / name).read_bytes() != (ROOT / name).read_bytes()]
    assert different == []


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == {name for name in files(ROOT) if name.startswith("attnc/")}
    assert "attnc/py.typed" in names


def test_the_metadata(metadata: Message) -> None:
    assert metadata["Version"] == attnc.__version__
    assert metadata["License-Expression"] == "MIT"
    classifiers = metadata.get_all("Classifier", [])
    assert not [name for name in classifiers if name.startswith("License")]  # PEP 639: the expression instead
    tested = re.findall(r'"(3\.\d+)"', (ROOT / ".github" / "workflows" / "test.yml").read_text())
    versions = [
        name.removeprefix("Programming Language :: Python :: ") for name in classifiers if "3." in name
    ]
    assert versions == sorted(set(tested), key=lambda v: int(v.split(".")[1]))


def test_the_description_has_no_relative_link(metadata: Message) -> None:
    """An index shows the description without the files around it."""
    description = metadata.get_payload()
    assert isinstance(description, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert all(target.startswith("https://") for target in LINK.findall(prose(description)))
    code = (ROOT / "README.md").read_text().split("```")[1::2]
    assert description.split("```")[1::2] == code


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attnc_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_are_absolute_as_soon_as_the_repository_has_an_address() -> None:
    setup, readme = load_setup(), (ROOT / "README.md").read_text()
    stated = (ROOT / "CITATION.cff").read_text() + '\nrepository-code: "https://host.example/attnc/"\n'
    base = setup.repository(stated)
    assert base == "https://host.example/attnc"
    targets = [t for t in LINK.findall(prose(setup.description(readme, base))) if t.startswith(base)]
    relative = [t for t in LINK.findall(prose(readme)) if not t.startswith("https://")]
    assert len(targets) == len(relative) > 20
    for target, name in zip(targets, relative, strict=True):
        kind = "raw" if name.endswith((".png", ".gif")) else "blob"
        assert target == f"{base}/{kind}/HEAD/{name}"
    urls = setup.project_urls(stated)
    assert urls["Repository"] == base and set(urls) >= {"Paper", "Documentation", "Changelog", "Issues"}
    assert setup.repository("title: attnc\n") is None


def test_the_installed_wheel_runs_the_readme(wheel: Path, tmp_path: Path) -> None:
    """Every example of the README, with the package from the wheel and the README from the source distribution."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    options = ("--quiet", "--no-deps", "--no-compile", "--target", site)
    python("-m", "pip", "install", *options, wheel, path=work, cwd=work)
    shutil.copy(ROOT / "README.md", work)
    (work / "conftest.py").write_text(
        f"{(ROOT / 'conftest.py').read_text()}\nimport attnc\nassert attnc.__file__.startswith({str(site)!r}), attnc.__file__\n"
    )
    (work / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\ndoctest_optionflags = NORMALIZE_WHITESPACE ELLIPSIS\n"
    )
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-glob=*.md", path=site, cwd=work)
