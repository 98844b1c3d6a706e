"""Hostile calls of the public C++ API under ASan and UBSan: tests/cpp/ops/hostile_test.cpp, of which `make
sanitizers` runs the first seeds. A case is one call.

It needs that build: cmake --preset dev && cmake --build --preset dev. SPARSELOOM_TESTS names another program.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_BUILT = Path(__file__).parents[2] / "build" / "dev" / "tests" / "cpp" / "sparseloom_tests"
#: Calls of one seed, which one process makes.
CALLS = 20_000


def case(seed: int) -> dict[str, int]:
    """Makes CALLS calls. Raises AssertionError with the end of what the program printed if it failed."""
    program = os.environ.get("SPARSELOOM_TESTS", str(_BUILT))
    environment = os.environ | {"SPARSELOOM_HOSTILE": f"{seed * CALLS} {CALLS}"}
    done = subprocess.run(
        [program, "--gtest_filter=HostileCalls.*"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("hostile ")]
    return {kind: int(right) + int(refused) for _, kind, right, refused in lines}
