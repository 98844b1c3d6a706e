"""Makes the pictures in docs/patterns/ and the table of docs/patterns.md.

Usage: python tools/make_patterns.py [--check]. With --check the exit status is 1 when anything is not up to
date.
"""

import re
import sys

from generated import ROOT, table, update

from sparseloom.pattern import gallery

PAGE, FOLDER = ROOT / "docs" / "patterns.md", ROOT / "docs" / "patterns"


def files(drawn: list[gallery.Picture]) -> dict[str, str]:
    """Returns what the folder holds: file name -> text."""
    return {f"{picture.name}.svg": by_lines(picture.made.svg(160)) for picture in drawn}


def by_lines(svg: str) -> str:
    """Returns the same picture with a line for each run of blocks in place of a rectangle, each beginning
    relative to the end of the one before: a third of the bytes."""

    def path(match: re.Match[str]) -> str:
        lines, x, y = "", 0, 0
        for j, i, width in (map(int, run) for run in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", match[2])):
            lines += f"m{j - x} {i - y}h{width}"
            x, y = j + width, i
        return f'<path stroke="{match[1]}" transform="translate(0 .5)" d="{lines}"'

    return re.sub(r'<path fill="(#\w+)" d="([^"]*)"', path, svg)


def figures(drawn: list[gallery.Picture]) -> str:
    """Returns the table of pictures and figures."""
    rows = [
        [
            f"![{picture.name}](patterns/{picture.name}.svg)",
            f"`{picture.call}`",
            *gallery.figures(picture.made),
        ]
        for picture in drawn
    ]
    return table(["", "pattern", *gallery.HEAD], rows)


def main(check: bool) -> int:
    drawn = gallery.pictures()
    wanted = files(drawn)
    FOLDER.mkdir(exist_ok=True)
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    current = found == wanted
    if not check:
        for name in found.keys() - wanted.keys():
            (FOLDER / name).unlink()
        for name, text in wanted.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    current &= update(PAGE, {"figures": figures(drawn)}, check)
    print(
        f"{PAGE.relative_to(ROOT)} is {'up to date' if current else 'not up to date' if check else 'written'}"
    )
    return int(check and not current)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
