"""Loads the shared object with the operators, which brings the core library along, and gives a clear reason
when that fails."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config

from .._home import LIBRARY, NAMESPACE

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
    missing = [str(path) for path in _needed() if not path.exists()]
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


def _needed() -> tuple[Path, ...]:
    """Returns the shared objects. A kernel's has the core in itself (cmake/kernel.cmake)."""
    return (CORE, LIBRARY) if NAMESPACE == "sparseloom" else (LIBRARY,)


def packet(name: str) -> Any:
    """Returns torch's packet of an operator."""
    return getattr(getattr(torch.ops, NAMESPACE), name)


def tag_compiled_code(version: str) -> None:
    """Makes torch key the code that it compiles and keeps on disk by our version and schemas too.

    Inductor writes a schema's defaults into that code, and keys it by a graph without arguments that equal
    one (torch 2.13; findings/inductor-cache-keeps-old-defaults.sh): after an upgrade it would call the
    operators with the old version's defaults. A tag of the user's stays in front of ours."""
    names = sorted(
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{NAMESPACE}::")
    )
    schemas = [str(schema) for name in names for schema in torch._C._jit_get_schemas_for_operator(name)]
    tag = f"{NAMESPACE}-{zlib.crc32(''.join([version, *schemas]).encode()):08x}"
    config = torch.compiler.config
    config.cache_key_tag = " ".join(filter(None, (config.cache_key_tag, tag)))
