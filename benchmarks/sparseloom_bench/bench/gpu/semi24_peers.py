"""Makes cuSPARSELt's product ready to be timed on the operands of a 2:4 cell, through torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.sparse import SparseSemiStructuredTensorCUSPARSELT

from .operands import Call
from .semi24_operands import Semi24Operands


def version() -> str:
    """Returns the version that the loaded cuSPARSELt says of itself, such as "0.8.0"; "none" where torch has
    none. torch tells that which it was built with (findings/torch-cusparselt-version-is-of-its-build.sh)."""
    if torch.backends.cusparselt.version() is None:
        return "none"
    maps = Path("/proc/self/maps").read_text().splitlines()
    loaded = next((line.split()[-1] for line in maps if "libcusparseLt" in line), None)
    for of in (None, loaded):  # one that was preloaded is in the global scope, and is the one that is called
        library = ctypes.CDLL(of)
        if hasattr(library, "cusparseLtGetProperty"):
            number, parts = ctypes.c_int(), []
            for part in range(3):  # major, minor, patch
                library.cusparseLtGetProperty(part, ctypes.byref(number))
                parts.append(str(number.value))
            return ".".join(parts)
    return "unknown"


def _floats(operands: Semi24Operands) -> None:
    if operands.case.dtype.itemsize != 2 or operands.cell.direction != "forward":
        raise ValueError("compared in forward of f16 and bf16")


def searched(operands: Semi24Operands, turned: bool) -> list[Call]:
    """Returns calls by the algorithm that cuSPARSELt's own search finds for the operands, one for each copy.

    ``turned``: y [tokens, out] is written as it is, else y^T. Raises what torch raises.
    """
    _floats(operands)
    packed = [torch._cslt_compress(operands.weight.clone()) for _ in operands.copies]
    x = operands.copies[0].x
    how = _search(packed[0], x.t(), turned)

    def one(weight: Tensor, x: Tensor) -> Tensor:
        y = torch._cslt_sparse_mm(weight, x.t(), transpose_result=turned, **how)
        return y if turned else y.t()

    return [partial(one, weight, own.x) for weight, own in zip(packed, operands.copies, strict=True)]


def _search(weight: Tensor, dense: Tensor, turned: bool) -> dict[str, Any]:
    """Returns the arguments of torch's product that name the algorithm; split-k too where torch tells it."""
    whole = getattr(getattr(torch._C, "_cusparselt", None), "mm_search", None)
    if whole is None:
        return {"alg_id": torch._cslt_sparse_mm_search(weight, dense, transpose_result=turned)}
    algorithm, split_k, mode, _ = whole(weight, dense, None, None, None, turned)
    return {"alg_id": algorithm, "split_k": split_k, "split_k_mode": mode}


def torchs_own(operands: Semi24Operands) -> list[Call]:
    """Returns calls of F.linear with the weight as torch's semi-structured tensor, as its documentation says
    to: cuSPARSELt without a search."""
    _floats(operands)
    weights = [SparseSemiStructuredTensorCUSPARSELT.from_dense(operands.weight) for _ in operands.copies]
    pairs = zip(operands.copies, weights, strict=True)
    return [partial(F.linear, own.x, weight) for own, weight in pairs]


PEERS: dict[str, Callable[[Semi24Operands], list[Call]]] = {
    "cusparselt": partial(searched, turned=True),
    "cusparselt_y_t": partial(searched, turned=False),
    "cusparselt_unsearched": torchs_own,
}
