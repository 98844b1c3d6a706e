"""Makes others' block-sparse products ready to be timed in the rounds of a cell, on its operands; a peer that
cannot take part says why."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from .cusparse import blocked_ell_calls
from .device import alive
from .operands import Call, Operands, Reference
from .replay import Replay, synchronises


def torch_bsr_calls(operands: Operands) -> list[Call]:
    """Returns calls of F.linear with the weight as a torch.sparse_bsr_tensor, one per set of operands.

    Raises what torch raises.
    """
    size = (operands.cell.n, operands.cell.k)
    weights = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that BSR is in "beta state"
        for copy in operands.copies:
            index = copy.index.crow.long(), copy.index.col.long()
            weights.append(torch.sparse_bsr_tensor(*index, copy.values, size))
    pairs = [(copy.x, weight) for copy, weight in zip(operands.copies, weights, strict=True)]
    return [lambda pair=pair: F.linear(*pair) for pair in pairs]  # type: ignore[misc]


PEERS: dict[str, Callable[[Operands], list[Call]]] = {
    "torch_bsr": torch_bsr_calls,
    "cusparse_ell": blocked_ell_calls,
}


def enter(name: str, operands: Operands, reference: Reference) -> Replay:
    """Makes the peer ready to be timed and checks its result like ours.

    Raises an error that says why the peer cannot take part.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = PEERS[name](operands)
        calls[0]()  # the first call compiles and allocates
        try:
            replay = Replay(calls, graphed=not synchronises(calls[0]))
        except RuntimeError:
            if not alive():
                raise
            replay = Replay(calls, graphed=False)  # waits in a way that torch cannot see
        found = reference.check(replay.poisoned())
    if not found.ok:
        raise RuntimeError(f"its result is wrong: {found}")
    return replay
