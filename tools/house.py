"""Counts what the house is judged by: rooms, lines, short files, autograd Functions, circles of imports.

python tools/house.py [ROOT]       prints a table of the tree at ROOT (default: this one)

Circles are groups of modules that import each other while they are being imported; imports inside functions
and for type checkers alone are no part of them.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def lines(paths: Iterator[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def front(root: Path) -> list[Path]:
    """Returns what lies directly inside the package: modules, and folders that are packages."""
    package = root / "python" / "sparseloom"
    return [p for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]


def python_files(root: Path) -> Iterator[Path]:
    return (root / "python").rglob("*.py")


def autograd_functions(root: Path) -> int:
    """Counts the classes that derive from torch.autograd.Function."""
    trees = (ast.parse(path.read_text()) for path in python_files(root))
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return sum(
        any(ast.unparse(base).endswith("autograd.Function") for base in node.bases) for node in classes
    )


def short_kernel_files(root: Path) -> int:
    """Counts C++ and CUDA alone: lists of instances and READMEs are short by nature."""
    files = (p for p in (root / "src" / "kernels").rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"})
    return sum(len(path.read_text().splitlines()) < 30 for path in files)


def imports_of(path: Path, package: Path, modules: set[str]) -> set[str]:
    """Returns the modules of the package that a file imports while it is imported."""
    inside = path.relative_to(package.parent).with_suffix("").parts
    folder = inside[:-1]
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            # A name is a module of its own, or something that the module before it holds.
            found |= {f"{source}.{a.name}" if f"{source}.{a.name}" in modules else source for a in node.names}
    return found & modules


def circles(root: Path) -> list[list[str]]:
    """Returns the groups of modules that reach each other by imports, each sorted, the largest first."""
    package = root / "python" / "sparseloom"
    files = {
        ".".join(p.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in package.rglob("*.py")
    }
    reached = {name: imports_of(path, package, set(files)) - {name} for name, path in files.items()}
    changed = True
    while changed:
        changed = False
        for name, targets in reached.items():
            more = targets.union(*(reached[target] for target in targets))
            changed |= more != targets
            reached[name] = more
    groups = {tuple(sorted(n for n in targets if name in reached[n])) for name, targets in reached.items()}
    return sorted((list(group) for group in groups if group), key=lambda group: (-len(group), group))


ROWS = {
    "rooms at the front's top: modules and folders": lambda root: len(front(root)),
    "files among them": lambda root: sum(p.is_file() for p in front(root)),
    "lines of bindings/torch": lambda root: lines((root / "bindings" / "torch").glob("*.*")),
    "lines of src/ops": lambda root: lines((root / "src" / "ops").glob("*.*")),
    "autograd Functions in python/": autograd_functions,
    "files of src/kernels under 30 lines": short_kernel_files,
    "lines of Python in the wheel": lambda root: lines(python_files(root)),
    "bytes of docs/": lambda root: sum(p.stat().st_size for p in (root / "docs").rglob("*") if p.is_file()),
    "circles of imports": lambda root: len(circles(root)),
}


def main(root: Path) -> None:
    for words, count in ROWS.items():
        print(f"{count(root):>10,}  {words}")
    for group in circles(root):
        print(f"            circle: {' '.join(group)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
