"""The metadata that depends on where the repository is published: project URLs and the description that an index shows.

The address is stated once, as `repository-code` in CITATION.cff. With it, relative links of the README become absolute.
Without it, nothing is guessed: a link becomes the path of the file, which the source distribution contains.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")  # [text](path), ![text](path)


def repository(citation: str) -> str | None:
    """The address of the repository, if CITATION.cff states one."""
    found = re.search(r'^repository-code: *"?(https://[^"\s]+?)/?"?$', citation, re.MULTILINE)
    return found.group(1) if found else None


def project_urls(citation: str) -> dict[str, str]:
    """The addresses that CITATION.cff states: the paper's, and those below the repository's."""
    paper = re.search(r'value: *"arXiv:([\d.]+)"', citation)
    urls = {"Paper": f"https://arxiv.org/abs/{paper.group(1)}"} if paper else {}
    base = repository(citation)
    if base is not None:
        urls |= {
            "Repository": base,
            "Documentation": f"{base}/tree/HEAD/docs",
            "Changelog": f"{base}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{base}/issues",
        }
    return urls


def description(readme: str, base: str | None) -> str:
    """The README with links that work outside of the repository."""

    def absolute(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if base is not None:
            return f"{image}[{text}]({base}/{'raw' if image else 'blob'}/HEAD/{target})"
        if image:
            return f"*{text}: {target}*"
        return text if text == target else f"{text} ({target})"

    parts = readme.split("```")  # every second part is code
    text = "```".join(part if i % 2 else LINK.sub(absolute, part) for i, part in enumerate(parts))
    if base is None:
        text += "\nThe files named above are in the source distribution of attnc.\n"
    return text


if __name__ == "__main__":
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), repository(citation)),
        long_description_content_type="text/markdown",
        project_urls=project_urls(citation),
    )
