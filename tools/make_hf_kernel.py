"""Lays out a folder that the package `kernels` of Hugging Face loads: `attention` and `linear` of a built
Sparseloom, behind torch's stable ABI.

Usage: python tools/make_hf_kernel.py PACKAGE OUT [--backend cpu], where PACKAGE is a folder `sparseloom` with
its two shared objects, as in a wheel, and a backend is cpu, or the toolkit of a CUDA build such as cu128.

    OUT/build/torch-stable-abi211-cpu-x86_64-linux/metadata.json, __init__.py, sparseloom/

`kernels.get_local_kernel(OUT / "build")` returns the module. Its name, `id` in the metadata, is unique to the
files: two builds are two modules. The operators are not: their namespace is compiled in, so a process has
those of one Sparseloom, and __init__.py raises ImportError for a second one. Tried with kernels 0.17.2, whose
own checker is now another program, kernel-builder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("libsparseloom.so", "libsparseloom_torch.so")
_LICENSE = "BSD-3-Clause"
_BACKEND = re.compile(r"cpu|cu\d{3}")

INIT = '''"""Sparseloom's block-sparse attention and linear product: see their docstrings."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_VERSION = "{version}"


def _package() -> ModuleType:
    """Returns the package sparseloom: one of the same version that is imported or installed, or this
    kernel's. A process has one, because its operators have one namespace."""
    if "sparseloom" not in sys.modules and importlib.util.find_spec("sparseloom") is None:
        sys.path.insert(0, str(Path(__file__).parent))
        try:
            importlib.invalidate_caches()
            return importlib.import_module("sparseloom")
        finally:
            sys.path.remove(str(Path(__file__).parent))
    found = importlib.import_module("sparseloom")
    if found.__version__ != _VERSION:
        raise ImportError(
            f"this kernel is of sparseloom {{_VERSION}}, and {{found.__version__}} from {{found.__file__}} "
            "is here: use that one, or start a process without it"
        )
    return found


_package()
from sparseloom import Pattern, attention  # noqa: E402
from sparseloom.attention import AttentionPattern  # noqa: E402
from sparseloom.ops import linear, make_index  # noqa: E402

__all__ = ["AttentionPattern", "Pattern", "attention", "linear", "make_index"]
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="cpu")
    given = parser.parse_args()
    try:
        print(laid_out(given.package, given.out, given.backend))
    except ValueError as error:
        print(f"make_hf_kernel: {error}", file=sys.stderr)
        return 1
    return 0


def laid_out(package: Path, out: Path, backend: str = "cpu") -> Path:
    """Writes the variant's folder and returns it. Raises ValueError for a package without shared objects, for
    another backend, and where the folder is there already."""
    if missing := [name for name in LIBRARIES if not (package / name).exists()]:
        raise ValueError(f"{package} has no {' and no '.join(missing)}: build the package first")
    if not _BACKEND.fullmatch(backend):
        raise ValueError(f"backend {backend!r} is neither cpu nor such as cu128")
    oldest = re.search(r"OLDEST_TORCH = \((\d+), (\d+)\)", (package / "ops" / "library.py").read_text())
    assert oldest is not None
    abi = "".join(oldest.groups())
    folder = out / "build" / f"torch-stable-abi{abi}-{backend}-{platform.machine()}-linux"
    if folder.exists():
        raise ValueError(f"{folder} is there already: remove it, or choose another folder")
    inside = folder / "sparseloom"
    files = sorted({*package.rglob("*.py"), *(package / name for name in (*LIBRARIES, "py.typed"))})
    digest = hashlib.sha256()
    for file in files:
        target = inside / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        digest.update(target.read_bytes())
    (folder / "__init__.py").write_text(INIT.format(version=version()))
    name = f"_sparseloom_{backend}_{digest.hexdigest()[:12]}"
    (folder / "metadata.json").write_text(json.dumps(metadata(name, backend), indent=2) + "\n")
    return folder


def metadata(name: str, backend: str) -> dict[str, object]:
    """Returns what kernels reads before it loads a variant."""
    return {
        "id": name,
        "name": "sparseloom",
        "version": int(version().split(".")[0]),
        "license": _LICENSE,
        "python-depends": [],
        "backend": {"type": "cpu" if backend == "cpu" else "cuda"},
    }


def version() -> str:
    """Returns the version of the C++ core, which the package has too."""
    header = ROOT / "include" / "sparseloom" / "version.h"
    found = re.search(r'SPARSELOOM_VERSION "([\d.]+)"', header.read_text())
    assert found is not None
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
