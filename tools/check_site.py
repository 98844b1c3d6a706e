"""Checks the site that tools/make_site.py built: links, what the browser loads, and what the search finds.

Usage: python tools/check_site.py [FOLDER]. The exit status is 1 when a link leads nowhere, a page loads
something from elsewhere, or the search does not find what a reader looks for.
"""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import snowballstemmer
from generated import ROOT

#: What a reader looks for, and a page that has to be found by it.
SEARCHES = {
    "break-even": "results_break_even",
    "torch.compile": "training",
    "checkpoint": "converting",
    "2:4": "semi24",
}
#: What the browser loads by itself, by tag: the attribute that names it.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "use": "href"}
ASSET_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch"}
SPLIT = re.compile(r"[\w]+(?:[.:\-][\w]+)*")


class Page(HTMLParser):
    """The links, ids and loaded files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        asset = tag != "link" or ASSET_LINKS & set(found.get("rel", "").split())
        if asset and found.get(LOADED.get(tag, "")):
            self.loads.append(found[LOADED[tag]])
        self.loads += styles(found.get("style", ""))


def styles(text: str) -> list[str]:
    """Returns what a style loads."""
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", text)
    return [first or second for first, second in found]


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def faults_of_links(folder: Path) -> list[str]:
    """Returns a line for each link to nothing, and each file loaded from elsewhere or from nowhere."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        for address in page.loads:
            if address.startswith("data:"):
                continue
            if is_elsewhere(address):
                faults.append(f"{name}: loads {address}")
            elif not (path.parent / unquote(urlsplit(address).path)).exists():
                faults.append(f"{name}: loads {address}, which is not there")
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                faults.append(f"{name}: a link to {address}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                faults.append(f"{name}: a link to {address}, a page without that heading")
    for path in sorted(folder.rglob("*.css")):
        loads = [address for address in styles(path.read_text(encoding="utf-8")) if is_elsewhere(address)]
        faults += [f"{path.relative_to(folder)}: loads {address}" for address in loads]
    return faults


def searched(index: dict[str, object], words: str) -> list[str]:
    """Returns the pages that hold all of these words, as the browser's search splits them."""

    terms, titles = index["terms"], index["titleterms"]
    assert isinstance(terms, dict) and isinstance(titles, dict)
    found: set[int] | None = None
    stem = snowballstemmer.stemmer("english").stemWord
    for word in map(stem, SPLIT.findall(words.lower())):
        hits: set[int] = set()
        for table in (terms, titles):
            of_word = table.get(word, [])
            hits |= {of_word} if isinstance(of_word, int) else set(of_word)
        found = hits if found is None else found & hits
    names = index["docnames"]
    assert isinstance(names, list)
    return [names[number] for number in sorted(found or ())]


def faults_of_search(folder: Path) -> list[str]:
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    faults = []
    for words, page in SEARCHES.items():
        if page not in (found := searched(index, words)):
            faults.append(f"search: {words!r} does not find {page}, but {', '.join(found) or 'nothing'}")
    return faults


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site" / "html"
    if not (folder / "searchindex.js").exists():
        print(f"no site in {folder}: run make docs")
        return 1
    faults = faults_of_links(folder) + faults_of_search(folder)
    print(
        "\n".join(faults)
        or f"{len(list(folder.rglob('*.html')))} pages: links, loads and search are in order"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
