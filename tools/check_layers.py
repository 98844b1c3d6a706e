"""Checks that includes and imports follow the layers; exit status 1 names each line that does not.

A folder of the C++ half may include itself and what lies to the left of it:

core <- pattern <- layout <- plan <- kernels <- ops <- bindings; core <- runtime, read by plan, kernels and
ops
"""

import re
import sys
from pathlib import Path

BELOW_PLAN = {"core", "pattern", "layout", "runtime"}
CPP_ARROWS = {
    "core": set(),
    "runtime": {"core"},
    "pattern": {"core"},
    "layout": {"core", "pattern"},
    "plan": BELOW_PLAN,
    "kernels": BELOW_PLAN | {"plan"},
    "ops": BELOW_PLAN | {"plan", "kernels"},
    "bindings": BELOW_PLAN | {"plan", "kernels", "ops"},
}
# Public headers count as the folder that implements them; those not named here count as a folder of their own
# name.
PUBLIC = dict.fromkeys(("error", "activation", "dtype", "matrix_view", "export", "version"), "core") | {
    "executor": "runtime",
    "extension": "plan",
    "refusal": "plan",
    "verb": "plan",
    "layout_concept": "layout",
    "packed_index": "layout",
}
EXEMPT = {"include/sparseloom/sparseloom.h"}  # it includes the whole library
# Headers that a folder may not include in spite of CPP_ARROWS: kernels see a candidate's row, but not how
# candidates are chosen.
CLOSED = {("kernels", "plan/registry.h"), ("kernels", "plan/cache.h")}
# In Python one module calls the operators, and the others go through it. The base never imports user-facing
# parts.
PYTHON_TOP = {"cli", "demo", "bench", "__main__"}
PYTHON_BASE = {
    *(
        "errors",
        "_numbers",
        "_empty_rows",
        "_library",
        "_fakes",
        "_flops",
        "_operators",
        "_products",
        "_autograd",
        "ops",
        "pattern",
    ),
    *("nn", "io", "report", "patch"),
    *("advice", "advise", "distributed", "hf", "lora"),
}

INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
IMPORT = re.compile(r"\s*from\s+(?:\.+|sparseloom\.)(\w*)\S*\s+import\s+\(?([\w, ]*)")


def room_of(path: str) -> str | None:
    """Returns the folder of CPP_ARROWS that a file belongs to, else None. `path` is relative to the root, or
    as an include names it."""
    parts = Path(path).parts
    if parts[0] == "include":
        parts = parts[1:]
    if parts[0] == "sparseloom" and len(parts) > 1:
        stem = Path(parts[1]).stem
        return PUBLIC.get(stem, stem)
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
            target = room_of(match[1]) if match else None
            if match and target and (target not in CPP_ARROWS[room] | {room} or (room, match[1]) in CLOSED):
                found.append(f"{name}:{number}: room {room} may not include {match[1]} (room {target})")
    return found


def python_violations(root: Path) -> list[str]:
    package = root / "python" / "sparseloom"
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        module = path.relative_to(package).parts[0].removesuffix(".py")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            prose = line.lstrip().startswith(("#", '"', "`"))
            if "torch.ops.sparseloom" in line and module != "_operators" and not prose:
                found.append(f"{name}:{number}: only _operators.py calls torch.ops.sparseloom")
            match = IMPORT.match(line)
            names = {match[1], *re.split(r"[, ]+", match[2])} if match else set()
            if module in PYTHON_BASE and names & PYTHON_TOP:
                found.append(
                    f"{name}:{number}: {module} may not import {', '.join(sorted(names & PYTHON_TOP))}"
                )
    return found


def main(root: Path) -> int:
    found = cpp_violations(root) + python_violations(root)
    print("\n".join(found) if found else "include arrows hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
