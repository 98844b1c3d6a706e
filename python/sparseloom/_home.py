"""What belongs to this copy of the package: its name and its operators' namespace. A process may have several
copies, an installed one and kernels (tools/make_hf_kernel.py), each with names of its own."""

from __future__ import annotations

from pathlib import Path

#: The name that the package was imported by: "sparseloom", or "<kernel>.sparseloom".
PACKAGE = __name__.rpartition(".")[0]
FOLDER = Path(__file__).resolve().parent


def _library() -> Path:
    """Returns the shared object with the operators. A kernel's is called lib<namespace>_torch.so."""
    installed = FOLDER / "libsparseloom_torch.so"
    return installed if installed.exists() else next(FOLDER.glob("lib*_torch.so"), installed)


LIBRARY = _library()
#: torch.ops has the operators by this name. It is compiled into the shared object.
NAMESPACE = LIBRARY.name.removeprefix("lib").removesuffix("_torch.so")


def is_ours(kind: type) -> bool:
    """Returns whether a class is one of this copy's."""
    return kind.__module__.startswith(f"{PACKAGE}.")


def importing() -> str:
    """Returns the Python code by which another program gets this copy's operators. A kernel has no name to
    import: the package `kernels` loads it from the folder of its variants."""
    if "." not in PACKAGE:
        return f"import {PACKAGE}  # its operators"
    return f"import kernels\n\nkernels.get_local_kernel(Path({str(FOLDER.parents[1])!r}))  # its operators"
