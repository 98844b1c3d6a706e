"""Hostile arguments: to every operator of torch.ops.sparseloom, and to the calls, layouts and patterns of the
front. Operands lie before a page that nobody may touch. Operators have to compute something or raise; Python
has to raise our Error, or TypeError for what is no number or tensor at all. A case is one call."""

from __future__ import annotations

import functools
import logging
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparseloom
from sparseloom import AttentionPattern, Error, Pattern, layouts, ops, pattern
from sparseloom import nn as snn
from sparseloom.nn import BlockSparseLinear

from .calls import calls
from .child import require_none, trials
from .damage import NUMBERS, of_tensor
from .guarded import guarded

#: Calls of one seed, which one child makes.
CALLS = 250
_FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e308, 5e-324, 0.999999)
_OPERATOR_RAISES = (RuntimeError, TypeError, ValueError, MemoryError, OverflowError, IndexError)


def _tensor(tensor: Tensor, rng: random.Random) -> Any:
    if tensor.layout != torch.strided or tensor.is_meta:
        return tensor
    kind = rng.randrange(12)
    if kind < 6:
        return guarded(of_tensor(tensor, rng))
    if kind == 6 and tensor.dim() >= 2:
        return (
            tensor.transpose(0, 1)
            if rng.random() < 0.5
            else tensor.transpose(0, 1).contiguous().transpose(0, 1)
        )
    if kind == 7 and tensor.dim():
        return tensor[:1].expand_as(tensor)
    if kind == 8:
        return torch.empty_like(tensor, device="meta")
    if kind == 9 and tensor.dim():
        sizes = list(tensor.shape)
        sizes[rng.randrange(len(sizes))] = rng.choice((0, 1, sizes[-1] + 1, 1000))
        return guarded(torch.zeros(sizes, dtype=tensor.dtype))
    if kind == 10 and tensor.dim() == 2 and tensor.is_floating_point():
        return tensor.to_sparse()
    return tensor.reshape(-1)[::2] if rng.random() < 0.5 else tensor.reshape(1, *tensor.shape)


def hostile(value: Any, rng: random.Random) -> Any:
    """Returns another value for an argument, mostly of its type."""
    if rng.random() < 0.03:
        return rng.choice((None, "x", [], 0.5, torch.zeros(2)))
    if isinstance(value, Tensor):
        try:
            return _tensor(value, rng)
        except (RuntimeError, TypeError):  # torch itself cannot change a tensor of that dtype and shape so
            return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, 2 * value, value + 16, *NUMBERS))
    if isinstance(value, float):
        return rng.choice((*_FLOATS, *map(float, NUMBERS[:4])))
    if isinstance(value, list):
        at = rng.randrange(len(value)) if value else 0
        kind = rng.randrange(4)
        if kind == 0 or not value:
            return [*value, *value[-1:]] if rng.random() < 0.5 else value[:-1]
        return [*value[:at], hostile(value[at], rng), *value[at + 1 :]]
    if isinstance(value, tuple):
        made = hostile(list(value), rng)
        return tuple(made) if isinstance(made, list) else made
    if isinstance(value, str):
        return rng.choice(("", "x", value + "x", value.upper(), "reference", "\u00e9" * 9))
    if value is None:
        return rng.choice((torch.zeros(3), torch.zeros(0), torch.zeros(2, 2, dtype=torch.int32), None))
    return rng.choice((value, torch.float64, torch.int8, torch.bool, None))


def changed(arguments: list[Any], rng: random.Random) -> list[Any]:
    made = [guarded(each) if isinstance(each, Tensor) else each for each in arguments]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(made))
        made[at] = hostile(made[at], rng)
    if rng.random() < 0.05:  # one tensor in two places, of which one may be written
        tensors = [i for i, each in enumerate(made) if isinstance(each, Tensor)]
        if len(tensors) > 1:
            one, other = rng.sample(tensors, 2)
            made[one] = made[other]
    return made


def _operator(seed: int) -> str:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    valid = calls()
    name = rng.choice(sorted(valid))
    arguments = changed(valid[name], rng)
    try:
        getattr(torch.ops.sparseloom, name).default(*arguments)
    except _OPERATOR_RAISES:
        pass
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return ""


def _random(rows: Any, cols: Any, *rest: Any) -> Pattern:
    """Draws a pattern; hundreds of millions of blocks are a fair demand, but take longer than a trial may."""
    if isinstance(rows, int) and isinstance(cols, int) and rows * cols > 2**34:
        raise Error("campaign", "at most 2^34 elements", f"{rows} x {cols}", "ask for fewer")
    return pattern.random(rows, cols, *rest)


def front() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Returns calls of the front with valid arguments."""
    weight = torch.randn(40, 48) * (torch.rand(40, 48) < 0.5)
    made = pattern.random(40, 48, (8, 16), 0.6, 1)
    crow, col = made.index()
    index = ops.make_index(crow, col, 40, 48, (8, 16))
    values, x, dy = torch.randn(index.blocks, 8, 16), torch.randn(5, 48), torch.randn(5, 40)
    csr = layouts.get("csr").from_dense(weight)
    coo = layouts.get("coo").from_dense(weight)
    nm = layouts.get("nm").from_dense(weight, n=2, m=4)
    nmg = layouts.get("nmg").from_dense(weight, n=1, m=4, g=2)
    q = torch.randn(1, 2, 70, 16)
    attended = AttentionPattern.from_map(torch.ones(1, 1, 2, 2, dtype=torch.bool), 64)

    def through(cls: type, *names: str) -> Callable[..., Any]:
        def make(stored: Tensor, rows: int, cols: int, *fields: Any) -> Tensor:
            if not isinstance(stored, Tensor):
                raise TypeError("a layer's values are its Parameter")
            layout = cls(rows, cols, **dict(zip(names, fields, strict=True)))
            layout.require_consistent("campaign", stored)
            return layout.linear(x, stored, None)

        return make

    def layer(name: str, entries: Tensor) -> Tensor:
        block = BlockSparseLinear(48, 40, pattern=made)
        block.load_state_dict({**block.state_dict(), name: entries})
        return block(x)

    def indexed(
        packed: Tensor, blocks: int, rows: int, cols: int, bm: int, bn: int, values: Tensor
    ) -> Tensor:
        return ops.linear(x, values, ops.Index(packed, blocks, rows, cols, bm, bn, index.digest))

    return {
        "linear": (ops.linear, [x, values, index, torch.randn(40), "relu", False, None, dy]),
        "linear of an index": (indexed, [*index[:6], values]),
        "linear_dx": (ops.linear_dx, [dy, values, index, False, None]),
        "linear_dw": (ops.linear_dw, [dy, x, index, False, None]),
        "gated_linear": (ops.gated_linear, [x, values, index, torch.rand(index.blocks)]),
        "make_index": (ops.make_index, [crow, col, 40, 48, (8, 16)]),
        "plan": (ops.plan, [index, "forward", torch.float32, 5, False, None]),
        "Pattern": (Pattern, [40, 48, (8, 16), made.mask]),
        "Pattern.from_index": (Pattern.from_index, [crow, col, 40, 48, (8, 16)]),
        "pattern.random": (_random, [40, 48, (8, 16), 0.5, 1]),
        "pattern.watts_strogatz": (pattern.watts_strogatz, [64, 64, 8, 4, 0.1, 1]),
        "pattern.top_k": (pattern.top_k, [torch.rand(5, 3), 40, 48, (8, 16), 0.5]),
        "BlockSparseLinear": (BlockSparseLinear, [48, 40]),
        "state crow": (functools.partial(layer, "crow"), [crow]),
        "state col": (functools.partial(layer, "col"), [col]),
        "state values": (functools.partial(layer, "values"), [values]),
        "csr": (through(type(csr), "crow", "col"), [csr.pack(weight), 40, 48, csr.crow, csr.col]),
        "coo": (through(type(coo), "indices"), [coo.pack(weight), 40, 48, coo.indices]),
        "nm": (through(type(nm), "positions", "n", "m"), [nm.pack(weight), 40, 48, nm.positions, 2, 4]),
        "nmg": (through(type(nmg), "order", "n", "m", "g"), [nmg.pack(weight), 40, 48, nmg.order, 1, 4, 2]),
        "attention": (sparseloom.attention, [q, q, q, attended]),
        "attention map": (
            lambda kept, block: sparseloom.attention(q, q, q, AttentionPattern.from_map(kept, block)),
            [torch.ones(1, 1, 2, 2, dtype=torch.bool), 64],
        ),
        "attention lists": (
            lambda counts, indices, block: sparseloom.attention(
                q, q, q, AttentionPattern.from_lists(counts, indices, block)
            ),
            [attended.counts, attended.indices, 64],
        ),
        "SparseLinear": (snn.SparseLinear.from_dense, [weight, "csr"]),
    }  # fmt: skip


def _front(seed: int) -> str:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    valid = front()
    name = rng.choice(sorted(valid))
    call, arguments = valid[name]
    arguments = changed(arguments, rng)
    try:
        call(*arguments)
    except (Error, TypeError, MemoryError):
        pass
    except RuntimeError as error:
        # torch's own words: of a tensor without values, or of load_state_dict, which names the entry
        if not any(
            word in str(error) for word in ("meta", "Error(s) in loading", "alloc", "memory", "sparseloom::")
        ):
            return f"{name}: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return ""


def case(seed: int) -> dict[str, int]:
    """Makes CALLS calls of operators or of the front."""
    warnings.simplefilter("ignore")
    logging.getLogger("sparseloom").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    one, name = (_operator, "operators") if seed % 2 == 0 else (_front, "front")
    require_none(name, trials(CALLS, lambda at: one(seed * CALLS + at)))
    return {name: CALLS}
