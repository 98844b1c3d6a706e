"""Compares the compile seconds and the bytes of a build with tools/compile_budget.json; more than 1.1x fails.

    tools/compile_budget.py build/release             compare, as `make budget` does
    tools/compile_budget.py build/release --update    write the build's figures into the file

Seconds are those of the library's objects as ninja logged them, one core each. A machine is faster or slower
than the one of the file, and busier, so its speed is divided out: it is the median over the objects, weighted
by their seconds, of measured over committed. The growth is then the sum of the measured seconds over speed
times the sum of the committed ones: new objects count, removed ones do not, and one that grew by less than a
quarter counts as it was. If most objects grew by the same factor, this does not see it; the bytes do. Objects
that came out of ccache took no time, so a build that has a hit is compared by bytes alone. Before it fails,
the tool compiles the objects that grew most once more, since a neighbour may have held the core at that time.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

BUDGET = Path(__file__).with_suffix(".json")
LIMIT = 1.1
# An object this much faster than the median came out of ccache: no change of the source makes it so.
HIT = 0.2
# Two clean builds of one tree, on a busy and on a quiet machine, differed by 6 % after the speed was divided
# out, since nvcc and g++ do not slow down alike.
NOISE = 1.25


def compile_seconds(log: Path) -> dict[str, float]:
    """Returns object -> seconds of its last build, of the library's objects. A line of .ninja_log has: start
    ms, end ms, mtime, output, hash."""
    steps = {}
    for line in log.read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        if output.startswith("CMakeFiles/") and output.endswith(".o"):
            steps[output] = (int(end) - int(start)) / 1000
    return steps


def library_bytes(build: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(build.glob("libsparseloom*.so"))}


def comparable(committed: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Returns what a build like the measured one had to compile: one for CPUs alone has no CUDA objects."""
    if any(name.endswith(".cu.o") for name in measured):
        return committed
    return {name: seconds for name, seconds in committed.items() if not name.endswith(".cu.o")}


def speed_of(committed: dict[str, float], measured: dict[str, float]) -> float:
    """Returns the median of measured over committed, weighted by the committed seconds."""
    shared = sorted(
        (measured[name] / committed[name], committed[name]) for name in committed.keys() & measured
    )
    half, passed = sum(weight for _, weight in shared) / 2, 0.0
    for ratio, weight in shared:
        passed += weight
        if passed >= half:
            return ratio
    raise SystemExit(
        "compile_budget: the build and the budget share no object; run --update on a clean build"
    )


def has_hits(committed: dict[str, float], measured: dict[str, float], speed: float) -> bool:
    """Small objects are mostly headers and start-up, so only those of a second or more are looked at."""
    return any(
        measured[name] < HIT * speed * seconds
        for name, seconds in committed.items()
        if seconds >= 1 and name in measured
    )


def growth_of(committed: dict[str, float], measured: dict[str, float], speed: float) -> float:
    """Returns the sum over the committed sum, where an object within NOISE counts as committed."""
    total = 0.0
    for name, seconds in measured.items():
        budget = committed.get(name, 0.0)
        total += budget if seconds <= NOISE * speed * budget else seconds / speed
    return total / sum(committed.values())


def grown_most(committed: dict[str, float], measured: dict[str, float], speed: float) -> list[str]:
    """Returns the objects beyond the limit, the largest excess first; at most eight."""
    excess = {name: seconds - LIMIT * speed * committed.get(name, 0) for name, seconds in measured.items()}
    return [name for name in sorted(excess, key=lambda name: -excess[name]) if excess[name] > 0][:8]


def compile_again(build: Path, output: str) -> float:
    """Returns the seconds of one more compilation of an object."""
    (build / output).unlink()
    began = time.monotonic()
    subprocess.run(["ninja", "-C", str(build), output], check=True, capture_output=True)
    return time.monotonic() - began


def compare_seconds(build: Path, budget: dict[str, float], measured: dict[str, float]) -> bool:
    committed = comparable(budget, measured)
    speed = speed_of(committed, measured)
    if speed < HIT or has_hits(committed, measured, speed):
        print("compile seconds: not compared, objects came out of ccache")
        return True
    growth = growth_of(committed, measured, speed)
    if growth > LIMIT:
        for name in grown_most(committed, measured, speed):
            measured[name] = min(measured[name], compile_again(build, name))
        growth = growth_of(committed, measured, speed)
    print(f"compile seconds: {growth:.3f}x of the budget, on a machine that takes {speed:.2f}x its time")
    if growth <= LIMIT:
        return True
    for name in grown_most(committed, measured, speed):
        print(f"  {committed.get(name, 0) * speed:6.1f} -> {measured[name]:6.1f} s  {name}")
    return False


def compare_bytes(budget: dict[str, int], measured: dict[str, int], with_cuda: bool) -> bool:
    good = True
    for name, size in measured.items():
        if not with_cuda:
            print(f"size: {size:>10,} bytes  {name} (not compared: without CUDA kernels)")
            continue
        ratio = size / budget.get(name, size)
        print(f"size: {size:>10,} bytes  {name}, {ratio:.3f}x of the budget")
        good = good and ratio <= LIMIT
    return good


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="a build directory of ninja's")
    parser.add_argument("--update", action="store_true", help=f"write the figures into {BUDGET.name}")
    parser.add_argument("--budget", type=Path, default=BUDGET, help="another file than the committed one")
    given = parser.parse_args(argv)
    seconds, sizes = compile_seconds(given.build / ".ninja_log"), library_bytes(given.build)
    print(f"compile: {sum(seconds.values()):.1f} s of one core in {len(seconds)} library objects; slowest:")
    for name in sorted(seconds, key=lambda name: -seconds[name])[:5]:
        print(f"  {seconds[name]:6.1f} s  {name.removeprefix('CMakeFiles/').replace('.dir/', ': ', 1)}")
    if given.update:
        figures = {"bytes": sizes, "seconds": {name: round(seconds[name], 2) for name in sorted(seconds)}}
        given.budget.write_text(json.dumps(figures, indent=1) + "\n")
        return 0
    budget = json.loads(given.budget.read_text())
    fits = [
        compare_seconds(given.build, budget["seconds"], seconds),
        compare_bytes(budget["bytes"], sizes, any(name.endswith(".cu.o") for name in seconds)),
    ]
    if all(fits):
        return 0
    print(
        f"compile_budget: above {LIMIT}x of {given.budget.name}. Make the objects above cheaper; or, where"
        f" the growth buys a feature, run tools/compile_budget.py {given.build} --update after a clean build"
        " without ccache and say why in the commit."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
