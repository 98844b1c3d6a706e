"""Where a page of the tree lies on the site, and how links between pages change by that.

Links lead to other pages, or to files of the tree, which get a page with their text. In the tree they are
relative to the page's own folder, so that they work wherever Markdown is shown.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from generated import ROOT

#: Pages of the tree outside of docs/, and their place on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
    "tests/api/api.md": "python_api.md",
}
LINK = re.compile(r"(\]\()(?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
#: Pygments' names of languages.
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".cu": "cuda", ".cuh": "cuda", ".py": "python", ".cmake": "cmake"}


def place(path: str) -> str:
    """Returns where a file of the tree lies on the site: its page's path from the site's root."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def rewritten(text: str, source: str, wanted: set[str]) -> str:
    """Returns a page's text with its links as the site needs them. ``source`` is its path in the tree; files
    that it links to join ``wanted``. Raises ValueError for a link to nothing."""
    here = PurePosixPath(source).parent
    page = PurePosixPath(place(source)).parent

    def link(match: re.Match[str]) -> str:
        target, anchor = match[2], match[3] or ""
        if not target:
            return match[0]
        path = os.path.normpath(here / target)
        if not (ROOT / path).exists():
            raise ValueError(f"{source}: a link to {target}, which is not there")
        wanted.add(path)
        if path.endswith((".svg", ".png")):
            return f"{match[1]}{os.path.relpath(path.removeprefix('docs/'), page)}{match[4]}"
        return f"{match[1]}{os.path.relpath(place(path), page)}{anchor}{match[4]}"

    return "".join(part if is_code else LINK.sub(link, part) for part, is_code in parts(text))


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the text in order: prose, and fenced code."""
    at = 0
    for fence in FENCE.finditer(text):
        yield text[at : fence.start()], False
        yield fence[0], True
        at = fence.end()
    yield text[at:], False


def source_page(path: str) -> str:
    """Returns the page of a file, or of a folder with its files. The search leaves it out: it finds pages."""
    found = ROOT / path
    files = [found] if found.is_file() else sorted(p for p in found.iterdir() if p.is_file())
    text = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n"
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        text += f"\n## {file.name}\n" if found.is_dir() else ""
        language = LANGUAGES.get(file.suffix, "none")
        content = file.read_text()
        fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", content)), default=0))
        text += f"\n{fence}{{code-block}} {language}\n:force:\n:name: {name}\n\n{content.rstrip()}\n{fence}\n"
    return text


def is_text(path: Path) -> bool:
    return path.is_dir() or path.suffix in {*LANGUAGES, ".txt", ".sh", ".toml", ".json", ".def", ""}
