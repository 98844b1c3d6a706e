"""Others' block-sparse products on the operands of a cell, ready to be timed in its rounds; who cannot take
part says why."""

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
    """F.linear with the same weight as a torch.sparse_bsr_tensor, one call for each set. Raises what torch
    raises."""
    size = (operands.cell.n, operands.cell.k)
    weights = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "beta state"
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
    """The peer ready to be timed, its result checked like ours. Raises what says why it cannot take part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = PEERS[name](operands)
        calls[0]()  # compiles, allocates
        try:
            replay = Replay(calls, graphed=not synchronises(calls[0]))
        except RuntimeError:
            if not alive():
                raise
            replay = Replay(calls, graphed=False)  # waits for the device in a way that torch cannot see
        found = reference.check(replay.poisoned())
    if not found.ok:
        raise RuntimeError(f"its result is wrong: {found}")
    return replay
