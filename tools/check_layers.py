"""Checks that includes and imports follow the layers; exit status 1 names each line that does not.

A folder of the C++ half may include itself and what lies to the left of it:

core <- pattern <- layout <- plan <- kernels <- ops <- bindings; core <- runtime, read by plan, kernels and
ops; core, runtime <- sparsifiers, read by kernels, ops and bindings

FRONT_ARROWS has the same for the rooms of the PyTorch front.
"""

import ast
import re
import sys
from pathlib import Path

BELOW_PLAN = {"core", "pattern", "layout", "runtime"}
CPP_ARROWS = {
    "core": set(),
    "runtime": {"core"},
    "pattern": {"core"},
    "sparsifiers": {"core", "runtime"},
    "layout": {"core", "pattern"},
    "plan": BELOW_PLAN,
    "kernels": BELOW_PLAN | {"plan", "sparsifiers"},
    "ops": BELOW_PLAN | {"plan", "kernels", "sparsifiers"},
    "bindings": BELOW_PLAN | {"plan", "kernels", "ops", "sparsifiers"},
}
# Public headers count as the folder that implements them; those not named here count as a folder of their own
# name.
PUBLIC = dict.fromkeys(
    (
        "error",
        "activation",
        "direction",
        "dtype",
        "matrix_view",
        "conv_shape",
        "export",
        "version",
        "kept",
        "deterministic",
    ),
    "core",
) | {
    "executor": "runtime",
    "bsr_linear": "kernels",
    "block_attention": "kernels",
    "attention_ops": "ops",
    "bsr_conv": "kernels",
    "extension": "kernels",
    "matmul_args": "layout",
    "refusal": "plan",
    "schedule": "plan",
    "verb": "plan",
    "layout_concept": "layout",
    "packed_index": "layout",
    "generic/half": "core",
    "generic/float8": "core",
    "generic/parallel": "runtime",
    "generic/scalar": "kernels",
    "generic/reference": "kernels",
    "generic/dense": "kernels",
    "rates": "plan",
    "sparsifiers": "sparsifiers",
    "sparsifier_ops": "ops",
    "one_shot": "sparsifiers",
    "bitmap": "layout",
    "bitmap_linear": "kernels",
    "bitmap_ops": "ops",
    "nm": "layout",
    "nmg": "layout",
    "nmg_linear": "kernels",
    "nm_ops": "ops",
    "linear_of": "kernels",
    "csr": "layout",
    "csr_linear": "kernels",
    "conv_ops": "ops",
    "csr_ops": "ops",
    "semi24": "layout",
    "semi24_linear": "kernels",
    "semi24_ops": "ops",
    "scaled_of": "kernels",
    "tiles": "layout",
    "tiles_linear": "kernels",
    "tiles_ops": "ops",
    "channel_order": "ops",
    "gradient_norms": "ops",
    "gates": "kernels",
    "recurrent": "kernels",
    "unit_norm": "kernels",
    "quantize": "kernels",
    "semi24_pruning": "layout",
    "topology": "layout",
    "pattern_graph": "pattern",
}
EXEMPT = {"include/sparseloom/sparseloom.h"}  # it includes the whole library
# Headers that a folder may not include in spite of CPP_ARROWS: kernels see a candidate's row, but not how
# candidates are chosen.
CLOSED = {("kernels", "plan/registry.h"), ("kernels", "plan/cache.h")}
# Inside kernels, what all families include knows none of them: its rooms, and those that they may include.
KERNEL_TOOLS = {"shared": set(), "generic": {"shared"}}
# One module calls the operators, and the others go through it. A room of the front may import itself and
# the rooms of the lines above its own. Imports inside functions count; those for type checkers do not.
# The benchmarks are a package of their own, which the front does not import and which imports what is public
# of it: no name that begins with an underscore.
FRONT_ARROWS = (
    {"base"},  # errors, ops, pattern, and the modules whose names begin with an underscore
    {"sparsify", "timing", "layouts", "optim", "attention"},
    {"nn", "tensors"},
    {"patch", "testing"},
    {"quantize", "io", "report", "distributed", "hf", "lora", "builder"},
    {"recover"},
    {"callbacks", "permute", "prune", "shrink"},
    {"advise"},
    {"cli"},
)
RANK = {room: rank for rank, rooms in enumerate(FRONT_ARROWS) for room in rooms}
BASE = {"errors", "ops", "pattern"}
# sparsify_ has to describe a transformers model even where nobody has imported sparseloom.hf.
BENCHMARKS = "sparseloom_bench"
#: Where operators are looked up: to be called, and to be described to compilers.
OPERATORS = ("ops/operators.py", "ops/fakes.py")
FRONT_EXEMPT = {("patch/holders.py", "hf")}
#: What is right of an installed package alone. A kernel's namespace and module have other names.
OWN_NAME = re.compile(
    r"""torch\.ops\.sparseloom|["']sparseloom::|(startswith|removeprefix)\(["']sparseloom\."""
)

INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')


def room_of(path: str) -> str | None:
    """Returns the folder of CPP_ARROWS that a file belongs to, else None. `path` is relative to the root, or
    as an include names it."""
    parts = Path(path).parts
    if parts[0] == "include":
        parts = parts[1:]
    if parts[0] == "sparseloom" and len(parts) > 1:
        name = Path(*parts[1:]).with_suffix("").as_posix()
        return PUBLIC.get(name, name)
    if parts[0] == "src":
        parts = parts[1:]
    return parts[0] if parts[0] in CPP_ARROWS else None


def cpp_violations(root: Path) -> list[str]:
    found = []
    for path in sorted(p for top in ("include", "src", "bindings") for p in (root / top).rglob("*.*")):
        name = path.relative_to(root).as_posix()
        room = room_of(name)
        if room is None or name in EXEMPT or path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = room_of(match[1])
            if target and (target not in CPP_ARROWS[room] | {room} or (room, match[1]) in CLOSED):
                found.append(f"{name}:{number}: room {room} may not include {match[1]} (room {target})")
            tools, inner = kernel_room(name), kernel_room(match[1])
            if tools in KERNEL_TOOLS and inner and inner not in KERNEL_TOOLS[tools] | {tools}:
                found.append(f"{name}:{number}: kernels/{tools} may not include {match[1]}")
    return found


def kernel_room(path: str) -> str | None:
    """Returns the folder directly inside kernels that a file lies in, else None."""
    parts = Path(path.removeprefix("src/")).parts
    return parts[1] if parts[0] == "kernels" and len(parts) > 2 else None


def python_violations(root: Path) -> list[str]:
    package = root / "python" / "sparseloom"
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        inside = path.relative_to(package)
        for number, line in enumerate(text.splitlines(), 1):
            prose = line.lstrip().startswith(("#", '"', "`"))
            if "library.packet(" in line and inside.as_posix() not in OPERATORS and not prose:
                found.append(f"{name}:{number}: only {', '.join(OPERATORS)} look up operators")
            if OWN_NAME.search(line) and not prose:
                found.append(f"{name}:{number}: a kernel has another name: see _home.py")
        found += [
            f"{name}:{node.lineno}: a kernel has another name: import relatively"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_absolute(node)
        ]
        room = front_room(inside.parts[0].removesuffix(".py"))
        if room not in RANK:  # __init__ and __main__ may import everything
            continue
        paths = imported(ast.parse(text), ("sparseloom", *inside.parts[:-1]))
        found += [
            f"{name}:{line}: the library may not import {BENCHMARKS}"
            for line, p in paths
            if p[0] == BENCHMARKS
        ]
        modules = {(line, names[1]) for line, names in paths if names[0] == "sparseloom" and len(names) > 1}
        for number, module in sorted(modules):
            target = front_room(module)
            allowed = target == room or RANK.get(target, -1) < RANK[room]
            if not allowed and (inside.as_posix(), target) not in FRONT_EXEMPT:
                found.append(f"{name}:{number}: room {room} may not import {module} (room {target})")
    return found


def _is_absolute(node: ast.Import | ast.ImportFrom) -> bool:
    """Returns whether a node imports the package, or of it, by its name."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return any(name.partition(".")[0] == "sparseloom" for name in names)


def front_room(module: str) -> str:
    """Returns the room of a module or folder directly inside the package."""
    return "base" if module in BASE or re.match("_[a-z]", module) else module


def benchmark_violations(root: Path) -> list[str]:
    package, found = root / "benchmarks" / BENCHMARKS, []
    for path in sorted(package.rglob("*.py")):
        folder = (BENCHMARKS, *path.relative_to(package).parts[:-1])
        for line, names in sorted(imported(ast.parse(path.read_text()), folder)):
            if names[0] == "sparseloom" and any(name.startswith("_") for name in names):
                found.append(f"{path.relative_to(root).as_posix()}:{line}: {'.'.join(names)} is private")
    return found


def imported(tree: ast.Module, folder: tuple[str, ...]) -> set[tuple[int, tuple[str, ...]]]:
    """Returns (line, names from the package down) of each import in a file of the package ``folder``. What is
    imported for type checkers alone is left out."""
    found = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {(node.lineno, tuple(alias.name.split("."))) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            inside = (*above, *node.module.split(".")) if node.module else above
            found |= {(node.lineno, (*inside, alias.name)) for alias in node.names}
    return found


def main(root: Path) -> int:
    found = cpp_violations(root) + python_violations(root) + benchmark_violations(root)
    print("\n".join(found) if found else "include arrows hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
