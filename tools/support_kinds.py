"""What each kind of layer can do, by trying: a table of docs/support.md."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sparseloom
import sparseloom.nn as snn
from sparseloom import pattern
from sparseloom.attention import patterns

WIDTH = 32


def linear() -> snn.BlockSparseLinear:
    return snn.BlockSparseLinear(WIDTH, WIDTH, density=0.5, block=16)


def lstm_like(cls: Any) -> Callable[[], nn.Module]:
    return functools.partial(cls, WIDTH, WIDTH, density=0.5, block=16)


def in_layout(layout: str, **options: Any) -> Callable[[], nn.Module]:
    return functools.partial(snn.SparseLinear, WIDTH, WIDTH, layout=layout, **options)


MATRIX, IMAGE, SEQUENCE, TOKENS = (8, WIDTH), (2, WIDTH, 6, 6), (3, 2, WIDTH), (2, 100, WIDTH)
#: Name of a kind -> what makes a layer of it, and the shape of what the layer maps.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BlockSparseLinear": (linear, MATRIX),
    "GatedBlockSparseLinear": (lambda: snn.GatedBlockSparseLinear(linear()), MATRIX),
    "MaskedLinear": (lambda: snn.MaskedLinear(WIDTH, WIDTH, block=16), MATRIX),
    "SparseLinear csr": (in_layout("csr", density=0.1), MATRIX),
    "SparseLinear coo": (in_layout("coo", density=0.1), MATRIX),
    "SparseLinear bitmap": (in_layout("bitmap", density=0.1), MATRIX),
    "SparseLinear nm": (in_layout("nm", n=2, m=8), MATRIX),
    "SparseLinear nmg": (in_layout("nmg", n=1, m=8, g=2), MATRIX),
    "SparseLinear tiles": (in_layout("tiles"), MATRIX),
    "Semi24Linear": (lambda: snn.Semi24Linear(WIDTH, WIDTH), MATRIX),
    "Semi24Training": (lambda: snn.Semi24Training(WIDTH, WIDTH), MATRIX),
    "Semi24TrainingConv2d": (lambda: snn.Semi24TrainingConv2d(nn.Conv2d(WIDTH, WIDTH, 3)), IMAGE),
    "Semi24FeedForward": (
        lambda: snn.Semi24FeedForward(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)),
        MATRIX,
    ),
    "BlockSparseConv2d": (lambda: snn.BlockSparseConv2d(WIDTH, WIDTH, 3, density=0.5, block=16), IMAGE),
    "BlockSparseConvTranspose2d": (
        lambda: snn.BlockSparseConvTranspose2d(WIDTH, WIDTH, 3, density=0.5, block=16),
        IMAGE,
    ),
    "BlockSparseSelfAttention": (
        lambda: snn.BlockSparseSelfAttention(WIDTH, 2, pattern=patterns.sliding_window(100, 10, block=64)),
        TOKENS,
    ),
    "BlockSparseLSTM": (lstm_like(snn.BlockSparseLSTM), SEQUENCE),
    "BlockSparseGRU": (lstm_like(snn.BlockSparseGRU), SEQUENCE),
    "SmallWorldLSTM": (
        lambda: snn.SmallWorldLSTM(WIDTH, WIDTH, pattern=lambda _: pattern.random(WIDTH, WIDTH, 16, 0.5)),
        SEQUENCE,
    ),
}


def first(y: Any) -> Tensor:
    """Returns the result itself of a layer that also returns its state."""
    made: Tensor = y[0] if isinstance(y, tuple) else y
    return made


def is_close(one: Any, other: Any, tolerance: float = 1e-4) -> bool:
    one, other = first(one).float(), first(other).float()
    return bool((one - other).abs().max() <= tolerance * (1 + other.abs().max()))


def to_dense(layer: Any, x: Tensor) -> bool:
    return is_close(layer.to_dense()(x), layer(x))


def plan(layer: Any, x: Tensor) -> bool:
    whole = x.dim() == 4 or isinstance(layer, snn.BlockSparseSelfAttention)
    asked: Any = x.shape if whole else x.shape[-2]
    return bool(layer.plan(asked))


def strict(layer: Any, x: Tensor) -> bool:
    layer.strict = True
    return True


def dense_copy(layer: Any, x: Tensor) -> bool:
    layer.dense_copy = True
    return is_close(layer(x), copy.deepcopy(layer)(x))


def quantize(layer: Any, x: Tensor) -> bool:
    model = nn.Sequential(layer)
    sparseloom.quantize_(model)
    return model[0] is not layer


def functional(layer: Any, x: Tensor) -> bool:
    """Whether torch.func.grad gives what backward gives, for x."""

    def loss(x: Tensor) -> Tensor:
        return first(layer(x)).sum()

    given = x.clone().requires_grad_()
    loss(given).backward()
    assert given.grad is not None
    return is_close(torch.func.grad(loss)(x), given.grad)


def export(layer: Any, x: Tensor) -> bool:
    program = torch.export.export(layer, (x,), strict=False)
    return is_close(program.module()(x), layer(x))


def parallel(layer: Any, x: Tensor) -> bool:
    """Whether DistributedDataParallel, here of one process, gives the gradients."""
    alone = copy.deepcopy(layer).train()
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        first(nn.parallel.DistributedDataParallel(layer.train())(x)).sum().backward()
        torch.manual_seed(0)
        first(alone(x)).sum().backward()
    finally:
        dist.destroy_process_group()
    pairs = zip(layer.parameters(), alone.parameters(), strict=True)
    return all(is_close(one.grad, other.grad) for one, other in pairs if other.grad is not None)


def sixteen_bits(layer: Any, x: Tensor) -> bool:
    """Whether bf16 and fp16 give about what fp32 gives, with gradients."""
    want, fits = layer(x), True
    for dtype in (torch.bfloat16, torch.float16):
        narrow, given = copy.deepcopy(layer).to(dtype), x.to(dtype).requires_grad_()
        y = first(narrow(given))
        y.sum().backward()
        fits &= y.dtype == dtype and given.grad is not None and is_close(y.detach(), want, 0.05)
    return fits


TRIALS = {
    "to_dense": to_dense,
    "plan": plan,
    "strict": strict,
    "dense_copy": dense_copy,
    "quantize_": quantize,
    "torch.func": functional,
    "export": export,
    "DDP": parallel,
    "16 bits": sixteen_bits,
}


def outcome(
    make: Callable[[], nn.Module], shape: tuple[int, ...], trial: Callable[[Any, Tensor], bool]
) -> str:
    """Returns yes, or "-" where the layer refuses. What goes through and is wrong ends the tool."""
    torch.manual_seed(0)
    layer, x = make().eval(), torch.randn(shape)
    try:
        fits = trial(layer, x)
    except (RuntimeError, AttributeError, TypeError):  # ours derives from the first
        return "-"
    if not fits and trial is not quantize:
        raise AssertionError(f"{trial.__name__} of {type(layer).__name__} gives another result")
    return "yes" if fits else "-"


def kind_rows() -> list[list[str]]:
    """Returns a row for each kind of layer: what it can do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            [name, *(outcome(make, shape, trial) for trial in TRIALS.values())]
            for name, (make, shape) in KINDS.items()
        ]


KIND_HEAD = ["kind", *TRIALS]
