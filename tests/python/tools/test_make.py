"""Which build `make demo` and `make test` ask for: CUDA kernels where they can run or are tested, and never a
step back."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

# What a make above this test would hand down.
ALONE = {
    name: value
    for name, value in os.environ.items()
    if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CUDA", "CHECK")
}
MAKEFILE = Path(__file__).resolve().parents[3] / "Makefile"


@pytest.fixture
def tree(tmp_path):
    """A tree that has nothing but the Makefile and what it looks at."""
    shutil.copy(MAKEFILE, tmp_path)
    for folder in (
        "include",
        "src",
        "bindings",
        "python/sparseloom",
        ".venv",
        "cmake",
        "include/sparseloom",
        "benchmarks",
        "tools/docsite",
    ):
        (tmp_path / folder).mkdir(parents=True)
    for name in (
        "CMakeLists.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "include/sparseloom/version.h",
        "benchmarks/pyproject.toml",
        "tools/docsite/requirements.txt",
        "constraints.txt",
        ".venv/.sparseloom-setup",
        "python/sparseloom/a.py",
    ):
        (tmp_path / name).write_text("")
    return tmp_path


def stamp(tree, flavour):
    """An installed build that is newer than every source."""
    (tree / ".venv/.sparseloom-installed").write_text(f"{flavour}\n")
    future = time.time() + 100
    os.utime(tree / ".venv/.sparseloom-installed", (future, future))


def built(tree, goal, nvcc="", gpu="", cuda=""):
    """ON or OFF for the CUDA kernels of the build that a goal would make, None when it makes none."""
    command = ["make", "-n", goal, f"NVCC={nvcc}", f"GPU={gpu}", f"CUDA={cuda}"]
    ran = subprocess.run(command, cwd=tree, env=ALONE, capture_output=True, text=True, check=True)
    return ran.stdout.split("SPARSELOOM_CUDA=")[1].split()[0] if "SPARSELOOM_CUDA=" in ran.stdout else None


@pytest.mark.parametrize(
    "goal, found, kernels",
    [
        ("demo", {}, "OFF"),
        ("demo", {"nvcc": "nvcc"}, "OFF"),
        ("demo", {"nvcc": "nvcc", "gpu": "GPU 0"}, "ON"),
        ("demo", {"nvcc": "nvcc", "gpu": "GPU 0", "cuda": "0"}, "OFF"),
        ("demo", {"nvcc": "nvcc", "cuda": "1"}, "ON"),
        ("demo", {"cuda": "1"}, "ON"),  # and CMake says that nvcc is missing
        ("demo", {"gpu": "GPU 0"}, "OFF"),
        ("python-tests", {}, "OFF"),
        ("python-tests", {"nvcc": "nvcc"}, "ON"),
        ("wheel", {"nvcc": "nvcc"}, "ON"),
    ],
)
def test_cuda_kernels_are_built_for_a_demo_only_where_a_gpu_is(tree, goal, found, kernels):
    assert built(tree, goal, **found) == kernels


def test_a_cuda_build_serves_the_demo_and_nothing_is_rebuilt_downward(tree):
    stamp(tree, "cuda")
    assert built(tree, "demo") is None
    assert built(tree, "demo", nvcc="nvcc") is None
    assert built(tree, "python-tests", nvcc="nvcc") is None
    later = time.time() + 200
    os.utime(tree / "python/sparseloom/a.py", (later, later))
    assert built(tree, "demo", nvcc="nvcc") == "ON"


def test_a_build_for_cpus_serves_until_cuda_kernels_are_needed(tree):
    stamp(tree, "cpu")
    assert built(tree, "demo", nvcc="nvcc") is None
    assert built(tree, "demo", nvcc="nvcc", gpu="GPU 0") == "ON"
    assert built(tree, "python-tests") is None
    assert built(tree, "python-tests", nvcc="nvcc") == "ON"


def flavour_of(tree, goal, **variables):
    """What the stamp would say of the build that a goal would make, None when it makes none."""
    command = [
        "make",
        "-n",
        goal,
        *(f"{name}={variables.get(name, '')}" for name in ("NVCC", "GPU", "CHECK")),
    ]
    ran = subprocess.run(command, cwd=tree, env=ALONE, capture_output=True, text=True, check=True)
    marked = [line for line in ran.stdout.splitlines() if line.endswith(">.venv/.sparseloom-installed")]
    return marked[0].split()[1] if marked else None


def test_a_check_compiles_fewer_kernels_where_no_gpu_is_and_nobody_else_takes_them(tree):
    assert flavour_of(tree, "python-tests", NVCC="nvcc", CHECK="1") == "check"
    assert flavour_of(tree, "python-tests", NVCC="nvcc", CHECK="1", GPU="GPU 0") == "cuda"
    assert flavour_of(tree, "python-tests", CHECK="1") == "cpu"
    stamp(tree, "check")
    assert flavour_of(tree, "python-tests", NVCC="nvcc", CHECK="1") is None
    assert flavour_of(tree, "demo", NVCC="nvcc") is None
    assert flavour_of(tree, "demo", NVCC="nvcc", GPU="GPU 0") == "cuda"
    assert flavour_of(tree, "python-tests", NVCC="nvcc") == "cuda"
    stamp(tree, "cuda")
    assert flavour_of(tree, "python-tests", NVCC="nvcc", CHECK="1") is None


def test_the_stamp_says_which_build_it_is(tree):
    for cuda, flavour in (("1", "cuda"), ("0", "cpu")):
        command = ["make", "-n", "demo", f"CUDA={cuda}"]
        ran = subprocess.run(command, cwd=tree, env=ALONE, capture_output=True, text=True, check=True)
        assert f"echo {flavour} >.venv/.sparseloom-installed" in ran.stdout
