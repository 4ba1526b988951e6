"""Checks of the built site: `python docs/check.py out/site`.

Every page: images exist and have alternative text, links and their fragments exist, nothing is loaded from elsewhere, one main
heading, a title, a language, a viewport for phones, weights within limits. Where Chromium is installed, every page is opened,
wide and as on a phone, light and dark: no message in the console, no sideways scrolling, and the search finds words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent / "extensions"))

import chromium

LARGEST = 1_500_000  # bytes of a page with everything that it loads
EXPLORER = 1_000_000
LOADED = {"script": "src", "img": "src", "source": "src"}
ABOUT = ("language", "viewport", "title")
WIDTHS = {"wide": 1280, "phone": 390}


@dataclass
class Page(HTMLParser):
    """What a page links to, loads and names."""

    path: Path
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    headings: int = 0
    about: set[str] = field(default_factory=set)  # of language, viewport and title those that the page states
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.path.read_text(encoding="utf-8"))
        if self.headings != 1 and self.path.name != "search.html":  # whose heading a script writes
            self.problems.append(f"{self.headings} main headings")
        self.problems += [f"states no {name}" for name in ABOUT if name not in self.about]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        self.headings += tag == "h1"
        if tag == "html" and given.get("lang"):
            self.about.add("language")
        if tag == "title" or (tag == "meta" and given.get("name") == "viewport" and given.get("content")):
            self.about.add("title" if tag == "title" else "viewport")
        if tag == "img" and not given.get("alt"):
            self.problems.append(f"the image {given.get('src')} has no alternative text")
        if tag in LOADED and (address := given.get(LOADED[tag])):
            self.loaded.append(address)
        if tag == "link" and given.get("rel") in ("stylesheet", "icon") and (address := given.get("href")):
            self.loaded.append(address)
        if tag == "a" and (address := given.get("href")):
            self.links.append(address)


def target(page: Path, address: str) -> Path | None:
    """The file that an address on a page stands for; None if it is on another host, or is part of the page."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    return page if not parts.path else (page.parent / unquote(parts.path)).resolve()


def weight(page: Page) -> int:
    """Bytes of the page and of what it loads."""
    files = {file for address in page.loaded if (file := target(page.path, address)) and file.is_file()}
    return page.path.stat().st_size + sum(file.stat().st_size for file in files)


def problems_of(page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    """What is wrong with one page."""
    yield from page.problems
    for address in page.loaded:
        file = target(page.path, address)
        if file is None and not address.startswith("data:"):
            yield f"loads {address} from elsewhere"
        elif file is not None and not file.is_file():
            yield f"loads {address}, which does not exist"
    for address in page.links:
        file = target(page.path, address)
        name = unquote(urlsplit(address).fragment.split("?")[0])  # the explorer's settings follow the ?
        if file is None:
            continue
        if not file.is_file():
            yield f"links to {address}, which does not exist"
        elif name and file in pages and name not in pages[file].names:
            yield f"links to {address}: that page has no such place"
    limit = EXPLORER if page.path.name == "explorer.html" else LARGEST
    if weight(page) > limit:
        yield f"weighs {weight(page):,} bytes: at most {limit:,}"


def static_problems(site: Path) -> tuple[list[str], dict[Path, Page]]:
    """The problems of all pages, and the pages."""
    pages = {path.resolve(): Page(path.resolve()) for path in sorted(site.rglob("*.html"))}
    found = [
        f"{path.relative_to(site.resolve())}: {problem}"
        for path, page in pages.items()
        for problem in problems_of(page, pages)
    ]
    return found, pages


def browser_problems(site: Path, pages: list[Path]) -> Iterator[str]:
    """What Chromium says about each page, opened from its file."""
    with chromium.browser() as browser:
        for view, scheme in (("wide", "light"), ("phone", "dark")):
            size = {"width": WIDTHS[view], "height": 900}
            with browser.new_context(viewport=size, color_scheme=scheme) as context:
                tab = context.new_page()
                heard = chromium.listen(tab)
                for path in pages:
                    heard.clear()
                    tab.goto(path.as_uri(), wait_until="load")
                    name = f"{path.relative_to(site.resolve())} ({view}, {scheme})"
                    yield from (f"{name}: {message}" for message in heard)
                    if (wide := tab.evaluate("document.documentElement.scrollWidth")) > WIDTHS[view]:
                        yield f"{name}: {wide} pixels wide"
        with browser.new_page() as tab:
            heard = chromium.listen(tab)
            tab.goto((site.resolve() / "search.html").as_uri() + "?q=anchor")
            tab.wait_for_timeout(1500)
            if not tab.locator("ul.search li").count() or heard:
                yield f"search.html: no results for 'anchor' {heard}"


def main(site: Path) -> int:
    found, pages = static_problems(site)
    if not pages:
        found.append(f"{site} has no pages: run make site")
    missing = chromium.why_missing()
    if missing is None:
        found += browser_problems(site, list(pages))
    images = sum(address.endswith((".png", ".svg")) for page in pages.values() for address in page.loaded)
    links = [address for page in pages.values() for address in page.links]
    away = {address for address in links if urlsplit(address).netloc}
    heaviest = max(pages.values(), key=weight, default=None)
    print(
        f"{len(pages)} pages, {len(links):,} links ({len(away)} addresses on other hosts, not opened), {images} images"
    )
    if heaviest is not None:
        print(f"heaviest page: {heaviest.path.name}, {weight(heaviest):,} bytes with all that it loads")
        for page in pages.values():
            if page.path.name == "explorer.html":
                print(f"explorer.html: {weight(page):,} bytes")
    print(
        "opened in Chromium, wide and as on a phone"
        if missing is None
        else f"not opened in a browser: {missing}"
    )
    print("\n".join(found) or "no problems")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
