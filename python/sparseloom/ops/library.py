"""Loads the shared object with the operators, which brings the core library along, and gives a clear reason
when that fails."""

from __future__ import annotations

from pathlib import Path

import torch

LIBRARY = Path(__file__).resolve().parents[1] / "libsparseloom_torch.so"
CORE = LIBRARY.with_name("libsparseloom.so")  # where LIBRARY's run path has the loader look
OLDEST_TORCH = (2, 11)  # the release whose stable ABI the object is built against


def load() -> None:
    """Registers the C++ operators with torch. Raises ImportError when torch is too old, or when the object is
    missing or cannot be loaded."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        raise ImportError(
            f"sparseloom needs torch >= 2.11, this is {torch.__version__}: pip install -U torch"
        )
    missing = [str(path) for path in (CORE, LIBRARY) if not path.exists()]
    if missing:
        raise ImportError(
            f"sparseloom's operators are not built: {' and '.join(missing)} missing. In a "
            "source tree run `make build` (or configure CMake "
            "with -DSPARSELOOM_INPLACE=ON); an installed package without it was "
            "built with no torch at hand: install torch, then "
            "sparseloom again"
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise ImportError(
            # torch says which file; its cause, the loader's own words, says why.
            f"sparseloom's operators do not load with torch {torch.__version__}: {error.__cause__ or error}"
        ) from error
