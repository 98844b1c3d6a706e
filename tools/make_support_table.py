"""Makes docs/support.md from the case list, from trying each kind of layer (support_kinds.py), and from the
records of the checks on GPUs.

What is advertised is thus what is checked.

Usage: python tools/make_support_table.py [--check]. With --check the exit status is 1 when the page is not up
to date.
"""

import json
import sys
from collections import defaultdict
from typing import Any

from generated import ROOT, table, update
from support_kinds import KIND_HEAD, kind_rows

from sparseloom import ops
from sparseloom.testing.cases import DEVICES, Case, cases
from sparseloom.testing.conv_cases import ConvCase, conv_cases
from sparseloom.testing.conv_layer_cases import ConvLayerCase, conv_layer_cases

PAGE = ROOT / "docs" / "support.md"
ORDER = {"fp32": 0, "fp32 as TF32": 1, "bf16": 2, "fp16": 3, "fp64": 4}


def dtype_name(case: Case | ConvCase | ConvLayerCase) -> str:
    if case.tf32:
        return "fp32 as TF32"
    name = ops.DTYPES[case.dtype]
    return name if name.startswith("b") else "fp" + name.removeprefix("f")


def blocks_text(blocks: set[tuple[int, int]]) -> str:
    """Writes a full grid of sides as one product, anything else block by block."""
    rows, cols = sorted({block[0] for block in blocks}), sorted({block[1] for block in blocks})
    if len(blocks) == len(rows) * len(cols) > 1:
        return f"{{{', '.join(map(str, rows))}}} x {{{', '.join(map(str, cols))}}}"
    return ", ".join(f"{bm}x{bn}" for bm, bn in sorted(blocks))


def support_rows(all_cases: list[Case | ConvCase | ConvLayerCase]) -> list[list[str]]:
    """Returns one row per op, direction and device for the dtypes that have the same cases: blocks, fused
    activations, number of cases of each dtype."""
    groups = defaultdict(list)
    for case in all_cases:
        groups[case.device, case.op, case.direction, dtype_name(case)].append(case)
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key in sorted(groups, key=lambda key: (*key[:2], ops.DIRECTIONS.index(key[2]), ORDER[key[3]])):
        group, (device, op, direction, dtype) = groups[key], key
        fused = sorted({case.activation for case in group if case.activation})
        blocks = blocks_text({case.block for case in group})
        rows[op, direction, device, blocks, ", ".join(fused) or "-", str(len(group))].append(dtype)
    return [[*key[:2], ", ".join(dtypes), *key[2:]] for key, dtypes in rows.items()]


def edge_rows(all_cases: list[Case | ConvCase | ConvLayerCase]) -> list[list[str]]:
    """Returns what the cases are there for, with the number of cases of each."""
    counts: dict[str, int] = defaultdict(int)
    for case in all_cases:
        counts[case.name] += 1
    return [[name.replace("_", " "), str(count)] for name, count in sorted(counts.items())]


def gpu_rows(checks: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    """Returns one row per GPU: what tools/gpu_check said of each of the named steps there, at which commit
    and when."""
    rows = []
    for check in sorted(checks, key=lambda check: str(check["gpu"])):
        verdicts = {step["name"]: step["verdict"] for step in check["steps"]}
        rows.append(
            [
                check["gpu"],
                *(verdicts.get(name, "not run") for name in names),
                check["commit"][:12],
                check["date"][:10],
            ]
        )
    return rows


def main() -> int:
    all_cases: list[Case | ConvCase | ConvLayerCase] = [case for device in DEVICES for case in cases(device)]
    all_cases += [case for device in DEVICES for case in conv_cases(device)]
    all_cases += [case for device in DEVICES for case in conv_layer_cases(device)]
    head = ["op", "direction", "dtype", "device", "blocks (rows x columns)"]
    head += ["fused activations", "cases of each"]
    checks = [json.loads(path.read_text()) for path in (ROOT / "bench" / "results").glob("*/check.json")]
    steps = ["cpp", "python", "memcheck", "racecheck", "initcheck", "synccheck"]
    gpu_head = ["GPU", "C++ tests", "Python tests", *steps[2:], "commit", "date"]
    parts = {
        "support": table(head, support_rows(all_cases)),
        "kinds": table(KIND_HEAD, kind_rows()),
        "edges": table(["kind of case", "cases"], edge_rows(all_cases)),
        "gpus": table(gpu_head, gpu_rows(checks, steps)),
    }
    check = "--check" in sys.argv
    current = update(PAGE, parts, check)
    if check and not current:
        print(f"{PAGE.relative_to(ROOT)} is not what the case list and the checks say: run make docs-tables")
    return 1 if check and not current else 0


if __name__ == "__main__":
    sys.exit(main())
