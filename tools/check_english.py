"""Measures how long the sentences of the pages and docstrings are: at most 25 words on average, file by file.

Usage: python tools/check_english.py [FILE...]; without files README.md, CONTRIBUTING.md, docs/ and the Python
package. The exit status is 1 when a file has more. --list prints the average of every file, --long the
longest sentences. Of a module the docstrings of what has no underscore in front count, as one page.

A sentence is prose: code, tables, headings, links' targets and generated parts are left out. It ends at a
point, a question mark or an exclamation mark before a space, and at the end of a paragraph or of a list's
item.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import ROOT

LIMIT = 25.0
#: What is no prose, in the order in which it is taken out.
NO_PROSE = (
    re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL),  # front matter
    re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL),
    re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL),
    re.compile(r"^(?: {4}|\t)(?! *[-*] ).*$", re.MULTILINE),  # indented code
    re.compile(r"^ *(?:#|\||!\[).*$", re.MULTILINE),  # headings, tables, pictures
    re.compile(r"<[^>\n]+>"),
)
CODE = re.compile(r"`+[^`]*`+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )")
END = re.compile(r"[.?!][)\"'*_]*\s+")
WORD = re.compile(r"[^\W_]")


def sentences(text: str) -> list[str]:
    """Returns the sentences of a page's prose; a piece of code inside of one counts as a word."""
    for what in NO_PROSE:
        text = what.sub("", text)
    text = LINK.sub(r"\1", CODE.sub("CODE", text))
    found = (end for paragraph in PARAGRAPH.split(text) for end in END.split(paragraph + " "))
    return [" ".join(each.split()) for each in found if WORD.search(each)]


def words(sentence: str) -> int:
    return sum(bool(WORD.search(word)) for word in sentence.split())


def average(text: str) -> float:
    found = sentences(text)
    return sum(map(words, found)) / len(found) if found else 0.0


def pages() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [*pages, *sorted((ROOT / "python" / "sparseloom").rglob("*.py"))]


def read(page: Path) -> str:
    """Returns a page's text, or the docstrings of a module as one page."""
    text = page.read_text(encoding="utf-8")
    return text if page.suffix == ".md" else "\n\n".join(docstrings(ast.parse(text)))


def docstrings(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yields the docstrings of a module or class and of the public ones inside. An argument's entry, "name:
    what it is", is a paragraph; examples are none."""
    for each in (node, *(part for part in node.body if not getattr(part, "name", "_").startswith("_"))):
        if each is not node and isinstance(each, ast.ClassDef):
            yield from docstrings(each)
        elif isinstance(each, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            text := ast.get_docstring(each)
        ):
            prose = re.sub(r"^ *(?:>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)
            yield re.sub(r"^ +(\w+(?:, \w+)*: )", r"\n\n\1", prose.replace("``", "`"), flags=re.MULTILINE)


def main() -> int:
    named = [Path(word) for word in sys.argv[1:] if not word.startswith("--")] or pages()
    averages = {page: average(read(page)) for page in named}
    if "--list" in sys.argv:
        for page, value in sorted(averages.items(), key=lambda pair: -pair[1]):
            print(f"{value:5.1f}  {page.resolve().relative_to(ROOT)}")
    if "--long" in sys.argv:
        found = [(words(s), s) for page in named for s in sentences(read(page))]
        print("\n".join(f"{count:4}  {sentence}" for count, sentence in sorted(found, reverse=True)[:20]))
    over = {page: value for page, value in averages.items() if value > LIMIT}
    for page, value in over.items():
        name = page.resolve().relative_to(ROOT)
        print(
            f"{name}: {value:.1f} words a sentence on average, expected at most {LIMIT:g}; see --long {name}"
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
