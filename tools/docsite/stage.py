"""Puts the site's pages together in a folder that Sphinx reads: docs/, with its links as the site needs them,
and what is made at build time. docs/ stays the source: nothing here is written by hand."""

import re
import shutil
from pathlib import Path

from generated import ROOT

from . import devices, records
from .drawings import inline
from .links import ELSEWHERE, is_text, place, rewritten, source_page

RESULTS = ROOT / "bench" / "results"
HEADERS = ROOT / "include" / "sparseloom"
#: A drawing on a line of its own, which lies inline on the site.
DRAWING = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*((?:drawings/)?\w+\.svg)\)$", re.MULTILINE)
TOCTREE = "```{{toctree}}\n{options}\n{pages}\n```\n"
LOG = "\n" + TOCTREE.format(options=":hidden:\n:glob:\n", pages="[a-z]*")


def with_drawings(text: str) -> str:
    """Returns the text with its drawings in place."""
    return DRAWING.sub(lambda match: inline((ROOT / "docs" / match[2]).read_text(), match[1]), text)


def python_reference(text: str) -> dict[str, str]:
    """Splits tests/api/api.md into a page for each module, and a first page that lists them."""
    intro, *modules = re.split(r"^(?=## sparseloom)", text, flags=re.MULTILINE)
    pages, names = {}, []
    for module in modules:
        name = module.splitlines()[0].removeprefix("## ")
        names.append(f"{name} <python/{name}>")
        lowered = re.sub(r"^#(#+ )", r"\1", module.replace("<!-- end -->", ""), flags=re.MULTILINE)
        pages[f"python/{name}.md"] = lowered.replace("](", "](../")
    intro = intro.replace("<!-- generated: api -->", "")
    toctree = TOCTREE.format(options=":maxdepth: 1", pages="\n".join(names))
    return {"python_api.md": f"{intro}\n{toctree}", **pages}


def cpp_headers() -> str:
    """Returns a list of the public headers, each with the sentence that it begins with."""
    lines = ["", "## Headers", "", "Each begins by what it is for; its page is the header itself.", ""]
    for header in sorted(HEADERS.rglob("*.h")):
        text = header.read_text()
        first = re.match(r"(?:#pragma once\n|\s)*((?://[^\n]*\n)+)", text)
        words = " ".join(line.lstrip("/ ") for line in first[1].splitlines()) if first else ""
        name = header.relative_to(ROOT / "include").as_posix()
        about = words.replace("<", "&lt;").replace("[", r"\[")
        lines.append(f"- [`{name}`](../include/{name}) {about}".rstrip())
    return "\n".join([*lines, ""])


def device_list(made: dict[str, str]) -> str:
    entries = "\n".join(f"results/{name}" for name in made)
    return "\n" + TOCTREE.format(options=":maxdepth: 1", pages=f"All records <results/records>\n{entries}")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def staged(folder: Path) -> None:
    """Writes the pages into the folder, which it empties first. Raises ValueError for a link to nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted: set[str] = set()
    sources = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*.md"))]
    waiting = [*sources, *(name for name in ELSEWHERE if name not in ("README.md", "LICENSE"))]
    done = {"README.md"}  # the home of the site is docs/index.md
    folders = sorted(path for path in RESULTS.glob("*") if path.is_dir())
    made = devices.pages(folders)
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        path = ROOT / source
        if source.endswith(".md"):
            text = path.read_text()
            text += cpp_headers() if source == "docs/cpp.md" else ""
            text = with_drawings(rewritten(text, source, wanted))
            text += device_list(made) if source == "docs/results_devices.md" else ""
            text += LOG if source == "docs/log/README.md" else ""
            if source == "tests/api/api.md":
                for name, part in python_reference(text).items():
                    write(folder / name, part)
            else:
                orphan = "---\norphan: true\n---\n\n" if place(source).startswith("source/") else ""
                write(folder / place(source), orphan + text)
        elif source.endswith((".svg", ".png")):
            write_bytes(folder / source.removeprefix("docs/"), path.read_bytes())
        elif is_text(path):
            write(folder / place(source), source_page(source))
        else:
            raise ValueError(f"a link to {source}, which is neither a page nor text")
        waiting += sorted(wanted - done)
    for name, text in made.items():
        write(folder / "results" / f"{name}.md", text)
    table = records.page(records.rows(folders))
    write(folder / "results" / "records.html", table)
    about = (
        "# All records\n\nEvery record of `bench/results`: what was measured, and where dense "
        "was timed in the same rounds, how many times faster. A click on a column's name sorts by it.\n\n"
    )
    write(
        folder / "results" / "records.md",
        f"---\nhide-toc: true\n---\n\n{about}```{{raw}} html\n:file: records.html\n```\n",
    )


def write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
