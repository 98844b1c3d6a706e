"""Runs the steps of tools/gpu_check: build, C++ and Python tests on the GPU, four sanitizers, the benchmark.

Usage: tools/gpu_check [--steps build,cpp,...]. Without arguments it runs all steps in order except the sweep.
It prints a summary and writes a results file; the exit status is 1 when a step failed.

What is built already is used: both libraries in python/sparseloom, and the C++ tests of
SPARSELOOM_TEST_BINARY or build/*/tests/cpp/sparseloom_tests (the newest). It needs this Python with torch,
pytest, typer, rich and tqdm; cmake and nvcc only for what is missing; compute-sanitizer of the CUDA toolkit.
Where there are several GPUs the tests' parts take turns on them; the benchmark and the sweep run on the
first.
It writes bench/results/<gpu>/gpu.json and check.json, and the step sweep writes sweep-<seed>.json, with a
seed from the clock.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from gpu_verdicts import (
    Finished,
    Step,
    cpp_verdict,
    gtest_report,
    python_verdict,
    sanitizer_verdict,
    sweep_verdict,
)

ROOT = Path(__file__).resolve().parents[1]
#: The library and its benchmarks, which nobody installed.
IMPORTED = [str(ROOT / "python"), str(ROOT / "benchmarks")]
LIBRARIES = tuple(
    ROOT / "python" / "sparseloom" / name for name in ("libsparseloom.so", "libsparseloom_torch.so")
)
BUILD = ROOT / "build" / "gpu"
#: GoogleTest filters: the tests that need a GPU, and the cases small enough for a sanitizer.
GPU_TESTS, SMALL_TESTS = "Cuda*", "CudaSmall*"
PYTEST_PROCESSES = 8
#: The C++ tests run in this many parts for each GPU, side by side: the reference works on the host. In one
#: part they took 400 s. Tests that time the GPU come behind them, alone.
CPP_PROCESSES, TIMED_TESTS = 8, "CudaRates*"
#: The small cases run under a sanitizer in this many parts for each GPU: it works on the host, with one
#: thread each. racecheck in one part took 220 s.
SANITIZER_PROCESSES = 8
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Seconds that a command may take; a sanitizer slows a kernel down 10 to 1000 times.
LIMITS = {"build": 1200, "cpp": 600, "python": 900, "sanitizer": 400, "bench": 900, "sweep": 420}


def run(command: list[str], limit: float, variables: dict[str, str] | None = None) -> Finished:
    """Runs a command in the source tree.

    IMPORTED is on the import path, and `variables` are added to the environment. The command's output is
    shown as it comes, without the C++ tests that pass.
    """
    print(f"$ {' '.join(command)}", flush=True)
    paths = os.pathsep.join(filter(None, (*IMPORTED, os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"} | (variables or {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        # The command gets a session of its own: at the limit, what it started ends with it, and no pipe stays
        # open.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, errors="replace", start_new_session=True, **streams
        )  # type: ignore[call-overload]
    except OSError as error:
        return Finished(127, str(error))

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    watch = threading.Timer(limit, stop)
    watch.start()
    lines = []
    with process:
        for line in process.stdout:
            lines.append(line)
            if not line.startswith(("[ RUN", "[       OK", "[-----")):
                print(line, end="", flush=True)
    status = process.returncode
    watch.cancel()
    return Finished(status, "".join(lines))


@lru_cache(maxsize=1)
def gpus() -> list[str]:
    """Returns the GPUs that a command may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each for each in named.split(",") if each]
    found = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], 30)
    return found.output.split() if found.status == 0 else []


def parts_of(each_gpu: int) -> int:
    """Returns into how many parts a step is cut."""
    return min(each_gpu * max(1, len(gpus())), os.cpu_count() or 1)


def gpu_of(part: int) -> dict[str, str]:
    """Gives a part of a step its first GPU: where there are several, parts take turns. The part sees the
    others behind it, for tests that need two."""
    if len(gpus()) < 2:
        return {}
    at = part % len(gpus())
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus()[at:] + gpus()[:at])}


def test_binary() -> Path | None:
    """Returns the C++ tests: the binary named by SPARSELOOM_TEST_BINARY, else the newest in build/."""
    named = os.environ.get("SPARSELOOM_TEST_BINARY")
    if named:
        return Path(named) if Path(named).is_file() else None
    found = [path for path in ROOT.glob("build/*/tests/cpp/sparseloom_tests") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def build() -> Step:
    """Builds what is missing."""
    tests = test_binary()
    if all(library.is_file() for library in LIBRARIES) and tests is not None:
        names = ", ".join(path.name for path in (*LIBRARIES, tests))
        return Step("build", True, f"built before: {names}")
    options = {
        "SPARSELOOM_CUDA": "ON",
        "SPARSELOOM_TESTS": "ON",
        "SPARSELOOM_INPLACE": "ON",
        "Python3_EXECUTABLE": sys.executable,
    }
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(BUILD),
        *generator,
        *(f"-D{name}={value}" for name, value in options.items()),
    ]
    for command in (configure, ["cmake", "--build", str(BUILD), "-j", str(os.cpu_count() or 2)]):
        done = run(command, LIMITS["build"])
        if done.status != 0:
            return Step("build", False, f"{' '.join(command[:2])}: {done.how}")
    return Step("build", True, f"built in {BUILD.relative_to(ROOT)}")


def cpp() -> Step:
    """Runs the C++ tests that need a GPU."""
    tests = test_binary()
    if tests is None:
        return Step("cpp", False, "no test binary: run the step build, or set SPARSELOOM_TEST_BINARY")
    processes = parts_of(CPP_PROCESSES)
    with tempfile.TemporaryDirectory() as folder:

        def part(index: int, tests_of_it: str, parts: int) -> tuple[Finished, Path]:
            report = Path(folder) / f"{parts}-{index}.json"
            options = [f"--gtest_filter={tests_of_it}", f"--gtest_output=json:{report}"]
            variables = {"GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(index)}
            return run([str(tests), *options], LIMITS["cpp"], variables | gpu_of(index)), report

        with ThreadPoolExecutor(processes) as pool:
            ends = list(
                pool.map(lambda index: part(index, f"{GPU_TESTS}-{TIMED_TESTS}", processes), range(processes))
            )
        ends.append(part(0, TIMED_TESTS, 1))
        return cpp_verdict([(done, gtest_report(report)) for done, report in ends])


def python() -> Step:
    """Runs the Python tests that need a GPU, their files dealt out to processes: pytest-xdist may be missing.

    For 2200 tests, eight processes take 80 s and one takes ten minutes.
    """
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "python").rglob("test_*.py"))
    processes = parts_of(PYTEST_PROCESSES)
    with tempfile.TemporaryDirectory() as folder:

        def part(index: int) -> tuple[Finished, Path]:
            report = Path(folder) / f"{index}.xml"
            options = ["-m", "gpu or two_gpus", "-p", "no:cacheprovider", f"--junitxml={report}", "-q"]
            command = [sys.executable, "-m", "pytest", *options, *files[index::processes]]
            return run(command, LIMITS["python"], gpu_of(index)), report

        with ThreadPoolExecutor(processes) as pool:
            parts = list(pool.map(part, range(processes)))
        return python_verdict([(done, path.read_text() if path.is_file() else None) for done, path in parts])


def find_sanitizer() -> str | None:
    """Returns compute-sanitizer from the PATH, else from a CUDA toolkit in its usual place; None when there
    is none."""
    beside = [
        Path(shutil.which("nvcc") or "/").resolve().parent,
        *sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True),
    ]
    places = [shutil.which("compute-sanitizer"), *(str(folder / "compute-sanitizer") for folder in beside)]
    return next((place for place in places if place and Path(place).is_file()), None)


def sanitizer(tool: str) -> Step:
    """Runs the small C++ cases under one tool of compute-sanitizer."""
    program, tests = find_sanitizer(), test_binary()
    if program is None or tests is None:
        return Step(
            tool,
            False,
            "no compute-sanitizer found" if program is None else "no test binary: run the step build",
        )
    command = [program, "--tool", tool, "--error-exitcode", "86", str(tests), f"--gtest_filter={SMALL_TESTS}"]
    parts = parts_of(SANITIZER_PROCESSES)

    def part(index: int) -> Finished:
        variables = {"GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(index)}
        return run(command, LIMITS["sanitizer"], variables | gpu_of(index))

    with ThreadPoolExecutor(parts) as pool:
        return sanitizer_verdict(tool, list(pool.map(part, range(parts))))


def bench() -> Step:
    """Runs the GPU suite and checks its targets."""
    done = run([sys.executable, "-m", "sparseloom", "bench", "gpu", "--check"], LIMITS["bench"])
    missed = re.findall(r"^missed: ", done.output, re.MULTILINE)
    counts = {"missed": len(missed)}
    if done.status == 0:
        return Step("bench", True, "all promises kept", counts)
    return Step("bench", False, f"{len(missed)} promises missed ({done.how})", counts)


def sweep() -> Step:
    """Runs 300 random problems beside dense; they must give right results, but have no speed targets."""
    command = [
        sys.executable,
        "-m",
        "sparseloom",
        "bench",
        "sweep",
        "--seed",
        str(int(time.time())),
        "--device",
        "cuda",
    ]
    return sweep_verdict(run([*command, "--seconds", str(LIMITS["sweep"] - 60)], LIMITS["sweep"]))


STEPS: dict[str, Callable[[], Step]] = {
    "build": build,
    "cpp": cpp,
    "python": python,
    **{tool: lambda tool=tool: sanitizer(tool) for tool in SANITIZERS},  # type: ignore[misc]
    "bench": bench,
    "sweep": sweep,
}
#: Steps that run only where they are named: a sweep takes three minutes and holds nothing to a target.
BY_NAME = ("sweep",)


def write(steps: list[Step]) -> Path:
    """Writes check.json beside the benchmark's results.

    Steps of an earlier call on the same commit stay: a run may be cut into parts.
    """
    sys.path[:0] = IMPORTED
    import torch

    from sparseloom.io.files import write_whole
    from sparseloom_bench.bench.gpu.device import slug
    from sparseloom_bench.bench.results import header

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    gpu = torch.cuda.get_device_name()
    head = header("check", slug(gpu))
    path = ROOT / "bench" / "results" / str(head["device"]) / "check.json"
    done = {step.name: asdict(step) for step in steps}
    if path.is_file():
        before = json.loads(path.read_text())
        kept = before["steps"] if before["commit"] == head["commit"] else []
        done = {step["name"]: step for step in kept} | done
    ordered = [done[name] for name in STEPS if name in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(head | {"gpu": gpu, "steps": ordered}, indent=2) + "\n").encode())
    return path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description="everything that a GPU must show")
    default = [name for name in STEPS if name not in BY_NAME]
    left_out = f"all but {', '.join(BY_NAME)}"
    parser.add_argument(
        "--steps", default=",".join(default), help=f"of {', '.join(STEPS)}; default: {left_out}"
    )
    chosen = parser.parse_args(arguments).steps.split(",")
    unknown = [name for name in chosen if name not in STEPS]
    if unknown:
        parser.error(f"unknown steps {', '.join(unknown)}; choose from {', '.join(STEPS)}")
    steps = []
    for name in chosen:
        print(f"== {name}", flush=True)
        start = time.monotonic()
        steps.append(replace(STEPS[name](), seconds=round(time.monotonic() - start, 1)))
        print(steps[-1].line(), flush=True)
    print("== summary", *(step.line() for step in steps), sep="\n")
    try:
        print(f"results: {write(steps)}")
    # Without the library no results file is written, but the steps' outcome is still printed.
    except (ImportError, OSError, RuntimeError) as error:
        print(f"no results file: {error}")
        return 1
    return 0 if all(step.ok for step in steps) else 1
