"""Prints what deleting each row would cost: the rule of CONTRIBUTING.md, asked of bench/results.

A record counts where every candidate of its problem was timed; a problem that was timed again counts once on
each device, as last timed. A row's domain are the problems in which it was a candidate beside another row.
The loss of a problem is the time of its fastest other candidate over the time of its fastest; dense copies,
which a layer must ask for, are no candidates.

Usage: python tools/row_evidence.py [--apart] [--without ROW[,ROW..]] [--won ROW]

--apart      a line for each device and direction of a row
--without    as if these rows (`bsr sm90_decode`, or `sm90_decode` alone) were deleted before
--won        lists the problems that the row wins instead, with its loss in each
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import ROOT, table

RESULTS = ROOT / "bench" / "results"
#: A row stays if its deletion costs more than this in geometric mean of its domain, ..
MEAN = 1.005
#: .. or more than LOSS in this share of its problems.
LOSS, SHARE = 1.1, 0.02
#: Fewer problems than this say nothing about a share of 2 %.
FEW = 50

SAME = ("op", "direction", "dtype", "m", "k", "n", "density", "pattern", "mask_seed", "block", "layer")
SAME_CONV = ("images", "channels", "extent", "kernel", "stride", "padding", "dilation", "extents")


@dataclass(frozen=True)
class Problem:
    """One problem on one device. ``us``: row -> its time. ``name``: what to call it."""

    family: str
    device: str
    direction: str
    name: str
    us: dict[str, float]


def problems(folder: Path = RESULTS) -> list[Problem]:
    """Returns the problems of the records below ``folder`` in which every candidate was timed."""
    runs = [(path.parent.name, json.loads(path.read_text())) for path in sorted(folder.glob("*/*.json"))]
    runs = [(device, run) for device, run in runs if isinstance(run, dict) and "records" in run]
    found: dict[Any, Problem] = {}
    for device, run in sorted(runs, key=lambda each: str(each[1]["date"])):
        for record in run["records"]:
            for problem in _problems_of(device, run, record):
                same = tuple(str(record.get(name)) for name in SAME + SAME_CONV)
                found[(device, problem.family, problem.direction, same)] = problem
    return list(found.values())


def _problems_of(device: str, run: dict[str, Any], record: dict[str, Any]) -> Iterator[Problem]:
    if "candidates" in record:
        us = {each["kernel"]: _median(each["us"]) for each in record["candidates"]}
        us.pop("dense_copy", None)
        yield Problem(_family(run, record), device, record["direction"], _name(record), us)
    elif record.get("op") == "conv":
        for direction, times in record["us"].items():
            if "each" in times:
                us = {**times["each"], "dense": min(times["torch"].values())}
                yield Problem("bsr_conv", device, direction, _name({**record, "direction": direction}), us)


def _family(run: dict[str, Any], record: dict[str, Any]) -> str:
    named = str(run.get("family") or "bsr") if record["op"] == "sweep" else str(record["op"])
    family = "bsr" if named == "linear" else named
    return f"{family} 8-bit" if record["dtype"] in ("fp8", "int8", "i8", "e4m3") else family


def _name(record: dict[str, Any]) -> str:
    block = record.get("block", "")
    block = "x".join(map(str, block)) if isinstance(block, list) else str(block)
    sizes = [str(record[name]) for name in ("m", "k", "n", "images", "channels", "extent") if name in record]
    also = [str(record[name]) for name in ("pattern", "layer") if name in record]
    words = [record["direction"], record["dtype"], "x".join(sizes), f"blocks {block}"]
    return " ".join([*words, f"density {record.get('density', '?')}", *also])


def _median(us: Any) -> float:
    return float(us["median"] if isinstance(us, dict) else us)


def losses(row: str, of: Iterable[Problem]) -> list[tuple[float, Problem]]:
    """Returns what the deletion of ``row`` costs in each problem of its domain, 1 for nothing."""
    domain = [problem for problem in of if row in problem.us and len(problem.us) > 1]
    return [
        (min(us for name, us in each.us.items() if name != row) / min(each.us.values()), each)
        for each in domain
    ]


@dataclass(frozen=True)
class Evidence:
    """What the records say of a row, and of nothing where it has none."""

    domain: int
    fastest: int
    mean: float
    share: float
    worst: float

    @staticmethod
    def of(losses: list[tuple[float, Problem]]) -> "Evidence":
        """Returns the evidence of a domain's losses, at least one."""
        each = [loss for loss, _ in losses]
        mean = math.exp(sum(map(math.log, each)) / len(each))
        beyond = sum(loss > LOSS for loss in each) / len(each)
        return Evidence(len(each), sum(loss > 1 for loss in each), mean, beyond, max(each))

    @property
    def verdict(self) -> str:
        """ "stays", "fails", or that the problems are too few to fail by."""
        if self.mean > MEAN or self.share > SHARE:
            return "stays"
        return "fails" if self.domain >= FEW else f"fails, of {self.domain}"

    def cells(self) -> list[str]:
        """Returns the columns of a table."""
        numbers = [str(self.domain), str(self.fastest), f"x{self.mean:.4f}", f"{100 * self.share:.1f} %"]
        return [*numbers, f"x{self.worst:.2f}", self.verdict]


def named(family: str, row: str, names: Iterable[str]) -> bool:
    """Returns whether one of ``names`` is the row's, with or without its family."""
    return any(name in (row, f"{family} {row}") for name in names)


def without(of: Iterable[Problem], names: list[str]) -> list[Problem]:
    """Returns the problems as they are when the named rows are gone; those that no row solves are left
    out."""
    left = []
    for each in of:
        us = {row: time for row, time in each.us.items() if not named(each.family, row, names)}
        if us:
            left.append(Problem(each.family, each.device, each.direction, each.name, us))
    return left


HEAD = ["row", "domain", "fastest", "geometric mean if deleted", "> 10 % slower", "worst", "by the rule"]


def rows(of: list[Problem], apart: bool = False) -> list[list[str]]:
    """Returns a line of the table for each row of each family that has any evidence; ``apart``: for each
    device and direction of it."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for each in of:
        for row in each.us:
            key = (each.family, row, *((each.device, each.direction) if apart else ()))
            groups.setdefault(key, []).append(each)
    lines = []
    for (family, row, *more), domain in sorted(groups.items()):
        if found := losses(row, domain):
            lines.append([" ".join([f"{family} `{row}`", *more]), *Evidence.of(found).cells()])
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--without", default="", type=str)
    parser.add_argument("--won", default="", type=str)
    options = parser.parse_args()
    left = without(problems(), [name for name in options.without.split(",") if name])
    if not options.won:
        print(table(HEAD, rows(left, options.apart)))
        return
    row = options.won.split()[-1]
    mine = [each for each in left if named(each.family, row, [options.won])]
    for loss, problem in sorted(losses(row, mine), key=lambda each: -each[0]):
        if loss > 1:
            order = ", ".join(f"{name} {us:g}" for name, us in sorted(problem.us.items(), key=lambda i: i[1]))
            print(f"x{loss:.3f}  {problem.device} {problem.family} {problem.name}: {order}")


if __name__ == "__main__":
    main()
