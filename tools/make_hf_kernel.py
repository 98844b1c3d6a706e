"""Builds a folder that the package `kernels` of Hugging Face loads: `attention` and `linear` of Sparseloom,
behind torch's stable ABI.

Usage: python tools/make_hf_kernel.py OUT [--backend cpu] [--build build/hf_kernel], where a backend is cpu,
or the toolkit of a CUDA build such as cu128, and --build names CMake's folder: it reuses objects found there.

    OUT/build/torch-stable-abi211-cpu-x86_64-linux/metadata.json, __init__.py, sparseloom/

`kernels.get_local_kernel(OUT / "build")` returns the module. Its name, `id` in the metadata, is made of the
sources, and its operators have that namespace. So a process may have kernels of several versions, beside an
installed Sparseloom. Each has plans, a pool of threads and Python classes of its own: an AttentionPattern
goes to the `attention` that it came with. Tried with kernels 0.17.2, whose own checker is now another
program, kernel-builder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "sparseloom"
_LICENSE = "BSD-3-Clause"
_BACKEND = re.compile(r"cpu|cu\d{3}")
#: What a kernel is made of.
_SOURCES = ("CMakeLists.txt", "bindings", "cmake", "include", "src")

INIT = '''"""Sparseloom's block-sparse attention and linear product: see their docstrings."""

from .sparseloom import Pattern, attention
from .sparseloom.attention import AttentionPattern
from .sparseloom.ops import linear, make_index

__all__ = ["AttentionPattern", "Pattern", "attention", "linear", "make_index"]
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "hf_kernel")
    given = parser.parse_args()
    try:
        print(made(given.out, given.build, given.backend))
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"make_hf_kernel: {error}", file=sys.stderr)
        return 1
    return 0


def made(out: Path, build: Path, backend: str = "cpu", name: str = "") -> Path:
    """Builds a variant, writes its folder and returns that. ``name``: of the module and of the operators'
    namespace, in place of the one made of the sources. Raises ValueError for another backend, and where the
    folder is there already, and CalledProcessError where CMake fails."""
    if not _BACKEND.fullmatch(backend):
        raise ValueError(f"backend {backend!r} is neither cpu nor such as cu128")
    folder = out / "build" / f"torch-stable-abi{abi()}-{backend}-{platform.machine()}-linux"
    if folder.exists():
        raise ValueError(f"{folder} is there already: remove it, or choose another folder")
    name = name or f"_sparseloom_{backend}_{digest()}"
    library = built(build, backend, name)
    for file in (*modules(), PACKAGE / "py.typed", library):
        inside = file.name if file is library else file.relative_to(PACKAGE)
        target = folder / "sparseloom" / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    (folder / "__init__.py").write_text(INIT)
    (folder / "metadata.json").write_text(json.dumps(metadata(name, backend), indent=2) + "\n")
    return folder


def built(build: Path, backend: str, name: str) -> Path:
    """Builds the shared object with the operators in the namespace ``name``, and returns its path."""
    options = [f"-DSPARSELOOM_TORCH_NAMESPACE={name}"]
    if not (build / "CMakeCache.txt").exists():
        options += [
            "-DCMAKE_BUILD_TYPE=Release",
            "-DSPARSELOOM_TORCH=ON",
            f"-DPython3_EXECUTABLE={sys.executable}",
        ]
        options += ["-DSPARSELOOM_CUDA=OFF"] if backend == "cpu" else []
    if backend != "cpu":
        options.append("-DSPARSELOOM_CUDA=ON")
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(build), *options],
        ["cmake", "--build", str(build), "--target", "sparseloom_kernel", "--parallel", jobs],
    ):
        subprocess.run(command, check=True, stdout=sys.stderr)
    return build / "kernel" / f"lib{name}_torch.so"


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def digest() -> str:
    """Returns twelve digits of a hash of all sources."""
    files = [ROOT / each for each in _SOURCES if (ROOT / each).is_file()]
    files += [file for each in _SOURCES for file in (ROOT / each).rglob("*") if file.is_file()]
    found = hashlib.sha256()
    for file in sorted([*files, *modules()]):
        found.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


def metadata(name: str, backend: str) -> dict[str, object]:
    """Returns what kernels reads before it loads a variant."""
    header = (ROOT / "include" / "sparseloom" / "version.h").read_text()
    return {
        "id": name,
        "name": "sparseloom",
        "version": int(_found(r'SPARSELOOM_VERSION "(\d+)', header)[1]),
        "license": _LICENSE,
        "python-depends": [],
        "backend": {"type": "cpu" if backend == "cpu" else "cuda"},
    }


def abi() -> str:
    """Returns the oldest torch that the kernel runs with, as kernels writes it: 211 for 2.11."""
    return "".join(
        _found(r"OLDEST_TORCH = \((\d+), (\d+)\)", (PACKAGE / "ops" / "library.py").read_text()).groups()
    )


def _found(pattern: str, text: str) -> re.Match[str]:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return found


if __name__ == "__main__":
    sys.exit(main())
