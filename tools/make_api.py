"""docs/api.md from signatures and docstrings: the reference, and the snapshot that a change of the public surface has to touch.

python tools/make_api.py [--check]     --check: exit status 1 when the page is not up to date
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from generated import ROOT, update

PAGE = ROOT / "docs" / "api.md"
#: module -> names; None is its __all__.
MODULES: dict[str, list[str] | None] = {
    "sparseloom": None,
    "sparseloom.nn": None,
    "sparseloom.patch": ["Change", "Patched", "Skip"],
    "sparseloom.report": ["LayerReport", "ModelReport", "Totals"],
    "sparseloom.pattern": [
        *("random", "balanced", "biregular", "banded", "block_diagonal", "full", "from_mask", "top_k", "from_dense"),
        *("Pattern", "PatternStats"),
    ],
}


def first_paragraph(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())


class Bare(str):
    """An annotation that prints without quotes: in the sources they are strings."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(thing: Any) -> str:
    """As written in the source."""
    found = inspect.signature(thing)
    parameters = [each.replace(annotation=bare(each.annotation)) for each in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=bare(found.return_annotation)))


def bare(annotation: Any) -> Any:
    return Bare(annotation) if isinstance(annotation, str) else annotation


def members(cls: type) -> list[str]:
    """Methods and properties that the class itself defines, in the order of the source."""
    lines = []
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            lines.append(f"- `.{name}`: {first_paragraph(value)}")
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            bound = getattr(cls, name)
            lines.append(f"- `.{name}{signature(bound)}`: {first_paragraph(bound)}")
    return lines


def entry(name: str, thing: Any) -> list[str]:
    if isinstance(thing, ModuleType):
        return []
    if inspect.isclass(thing):
        return [f"### {name}", "", f"`{name}{signature(thing)}`", "", first_paragraph(thing), "", *members(thing), ""]
    return [f"### {name}", "", f"`{name}{signature(thing)}`", "", first_paragraph(thing), ""]


def reference() -> str:
    lines = []
    for module_name, names in MODULES.items():
        module = importlib.import_module(module_name)
        lines += [f"## {module_name}", ""]
        for name in sorted(names or module.__all__, key=str.lower):
            lines += entry(name, getattr(module, name))
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    check = "--check" in sys.argv
    current = update(PAGE, {"api": reference()}, check)
    if check and not current:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/make_api.py, and say in CHANGELOG.md what changed")
