"""Compares the compile seconds and the bytes of a build with tools/compile_budget.json; more than 1.1x fails.

    tools/compile_budget.py build/release             compare, as `make budget` does
    tools/compile_budget.py build/release --update    write the build's figures into the file

Seconds are CPU seconds of the library's objects (cmake/cpu_seconds.sh), so that what else the machine does
counts little. A machine is faster or slower than the one of the file, so its speed is divided out: it is the
median over the objects, weighted by their seconds, of measured over committed. The growth is then the sum of
the measured seconds over speed times the sum of the committed ones: new objects count, removed ones do not,
and one that grew by less than a quarter counts as it was. If most objects grew by the same factor, this does
not see it; the bytes do. Objects that came out of ccache took no time, so a build that has a hit is compared
by bytes alone. Before it fails, the tool compiles the objects that grew most once more, since a neighbour may
have had the caches at that time. A build for a check (SPARSELOOM_CUDA_CHECK) compiles the CUDA objects in
another way. It has figures of its own for them, in the file's part `check`: seconds of the file's machine,
since the speed of the one that measured them is divided out as well.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BUDGET = Path(__file__).with_suffix(".json")
LIMIT = 1.1
# An object this much faster than the median came out of ccache: no change of the source makes it so.
HIT = 0.2
# Two clean builds of one tree, on a busy and on a quiet machine, differed by 6 % after the speed was divided
# out, since nvcc and g++ do not slow down alike.
NOISE = 1.25
CUDA = ".cu.o"

Budget = dict[str, Any]


def seconds_of(written: Path) -> float:
    """Returns the children's user and system seconds of what sh's `times` wrote."""
    children = written.read_text().replace(",", ".").splitlines()[1]
    return sum(60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", children))


def compile_seconds(build: Path) -> dict[str, float]:
    """Returns object -> CPU seconds of its last build, of the library's objects that build.ninja names."""
    named = re.findall(r"^build (CMakeFiles/\S+\.o): ", (build / "build.ninja").read_text(), re.MULTILINE)
    written = {output: build / f"{output}.cpu" for output in named}
    found = {output: seconds_of(path) for output, path in written.items() if path.is_file()}
    if not found:
        raise SystemExit(
            f"compile_budget: {build} has no compile seconds, expected <object>.o.cpu beside the objects;"
            " build it with -DSPARSELOOM_CPU_SECONDS=ON, as make does"
        )
    return found


def is_check(build: Path) -> bool:
    """Returns whether the build compiled its sm80 kernels for a check (cmake/cuda.cmake)."""
    return bool(
        re.search(r"^SPARSELOOM_CUDA_CHECK:\w+=ON$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    )


def library_bytes(build: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(build.glob("libsparseloom*.so"))}


def figures_of(budget: Budget, measured: dict[str, float], check: bool) -> tuple[Budget, dict[str, float]]:
    """Returns the file's figures of a build of this kind, and the measured seconds that have some."""
    if not check:
        return {"bytes": budget["bytes"], "seconds": budget["seconds"]}, measured
    own = budget.get("check", {"bytes": {}, "seconds": {}})
    if not own["seconds"]:
        print(
            "the CUDA kernels of a check: not compared, the file has no figures of them; --update writes them"
        )
        measured = {name: took for name, took in measured.items() if not name.endswith(CUDA)}
    others = {name: took for name, took in budget["seconds"].items() if not name.endswith(CUDA)}
    return {"bytes": own["bytes"], "seconds": others | own["seconds"]}, measured


def with_figures(budget: Budget, sizes: dict[str, int], seconds: dict[str, float], check: bool) -> Budget:
    """Returns the file's content after a build of this kind. One for a check writes its own part, and adds
    the other objects that are new."""
    if not check:
        rounded = {name: round(seconds[name], 2) for name in sorted(seconds)}
        kept = budget.get("check", {"bytes": {}, "seconds": {}})
        return {"bytes": sizes, "seconds": rounded, "check": kept}
    others = {name: took for name, took in budget["seconds"].items() if not name.endswith(CUDA)}
    speed = speed_of(others, seconds)
    scaled = {name: round(seconds[name] / speed, 2) for name in sorted(seconds)}
    own = {name: took for name, took in scaled.items() if name.endswith(CUDA)}
    known = {name: took for name, took in budget["seconds"].items() if name in seconds or name.endswith(CUDA)}
    added = {name: took for name, took in scaled.items() if name not in known and not name.endswith(CUDA)}
    return budget | {
        "seconds": dict(sorted((known | added).items())),
        "check": {"bytes": sizes, "seconds": own},
    }


def comparable(committed: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Returns what a build like the measured one had to compile: one for CPUs alone has no CUDA objects."""
    if any(name.endswith(CUDA) for name in measured):
        return committed
    return {name: seconds for name, seconds in committed.items() if not name.endswith(CUDA)}


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
    """Returns the CPU seconds of one more compilation of an object."""
    (build / output).unlink()
    subprocess.run(["ninja", "-C", str(build), output], check=True, capture_output=True)
    return seconds_of(build / f"{output}.cpu")


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
    seconds, sizes = compile_seconds(given.build), library_bytes(given.build)
    check = is_check(given.build)
    print(f"compile: {sum(seconds.values()):.1f} s of CPU time in {len(seconds)} library objects; slowest:")
    for name in sorted(seconds, key=lambda name: -seconds[name])[:5]:
        print(f"  {seconds[name]:6.1f} s  {name.removeprefix('CMakeFiles/').replace('.dir/', ': ', 1)}")
    if given.update:
        figures = with_figures(json.loads(given.budget.read_text()), sizes, seconds, check)
        given.budget.write_text(json.dumps(figures, indent=1) + "\n")
        return 0
    budget, seconds = figures_of(json.loads(given.budget.read_text()), seconds, check)
    fits = [
        compare_seconds(given.build, budget["seconds"], seconds),
        compare_bytes(budget["bytes"], sizes, any(name.endswith(CUDA) for name in seconds)),
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
