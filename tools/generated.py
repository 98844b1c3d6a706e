"""Fills the generated parts of Markdown files, which stand between `<!-- generated: NAME -->` and `<!-- end
-->`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def fill(text: str, name: str, content: str) -> str:
    """Returns the text with that part replaced. Raises ValueError when the markers are not there exactly
    once."""
    part = re.compile(rf"(<!-- generated: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if len(part.findall(text)) != 1:
        raise ValueError(f"expected the markers of generated part {name!r} exactly once")
    return part.sub(lambda match: match[1] + content.strip("\n") + ("\n" if content else "") + match[2], text)


def update(path: Path, parts: dict[str, str], check: bool) -> bool:
    """Writes the parts into the file, or with `check` only compares them. Returns True when the file was up
    to date."""
    before = path.read_text()
    after = before
    for name, content in parts.items():
        after = fill(after, name, content)
    if not check and after != before:
        path.write_text(after)
    return after == before


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
