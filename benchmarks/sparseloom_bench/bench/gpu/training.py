"""Measures training as a user runs it: one layer's step by autograd beside the three products it consists of,
and a compiled GPT MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.linears import sparse_linears

from ..cells import DIRECTIONS, Cell
from ..timing import Spread
from . import goals
from .measure import Record, Settings, plan_of
from .operands import Call, Operands, gather
from .replay import Replay, in_turn

BLOCKS = (64, 128)
DTYPE = torch.bfloat16
ACTIVATION = "gelu"
ROUNDS, DENSE_ROUNDS = 5, 3
MLP_DENSITY, MLP_BLOCK, TOKENS, WIDTH, HIDDEN = 0.2, 64, 8192, 4096, 16384


def step_fields(block: int, density: float) -> Record:
    """Returns the fields that name a layer's record."""
    m, k, n = goals.SQUARE
    name = f"step-bf16-{m}x{k}x{n}-{block}x{block}-d{density:g}"
    return {
        "op": "step",
        "name": name,
        "dtype": "bf16",
        "m": m,
        "k": k,
        "n": n,
        "block": [block, block],
        "density": density,
    }


def mlp_fields() -> Record:
    """Returns the fields that name the MLP's record."""
    name = f"mlp-bf16-{TOKENS}x{WIDTH}x{HIDDEN}-{MLP_BLOCK}x{MLP_BLOCK}-d{MLP_DENSITY:g}"
    block = [MLP_BLOCK, MLP_BLOCK]
    return {
        "op": "mlp",
        "name": name,
        "dtype": "bf16",
        "m": TOKENS,
        "k": WIDTH,
        "n": HIDDEN,
        "block": block,
        "density": MLP_DENSITY,
    }


def operands(
    m: int, k: int, n: int, sets: int, device: torch.device, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Returns copies of x [m, k], which requires grad, and dy [m, n], to be used in turn, so that twice the
    L2 is touched between two uses of one copy."""
    generator = torch.Generator(device).manual_seed(seed)
    x, dy = (torch.randn(m, width, generator=generator, device=device).to(DTYPE) for width in (k, n))
    return [(x.clone().requires_grad_(), dy.clone()) for _ in range(sets)]


def step(
    module: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor, dy: Tensor
) -> tuple[Tensor, ...]:
    """Returns y, then the gradients of x and of the parameters."""
    y = module(x)
    return y, *torch.autograd.grad(y, [x, *parameters], dy)


def steps(
    module: Callable[[Tensor], Tensor], parameters: list[Tensor], data: list[tuple[Tensor, Tensor]]
) -> list[Call]:
    """Returns one call for each copy; a call returns dx, and the rest is freed."""
    return [lambda own=own: step(module, parameters, *own)[1] for own in data]  # type: ignore[misc]


def compared(names: list[str], ours: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> dict[str, float]:
    """Returns |ours - exact| / |exact| in the Frobenius norm, by name."""
    found = zip(names, ours, exact, strict=True)
    return {
        name: round(float((a.detach().float() - b.detach()).norm() / b.detach().norm().clamp(min=1e-30)), 6)
        for name, a, b in found
    }


def blocks_of(matrix: Tensor, layer: BlockSparseLinear) -> Tensor:
    """Returns the blocks of a dense gradient that the layer stores."""
    row = torch.arange(len(layer.crow) - 1, device=matrix.device).repeat_interleave(layer.crow.diff().long())
    return gather(matrix, row, layer.col.long(), layer.block)


def layer_step(settings: Settings, block: int, density: float) -> Record:
    """Measures the training step of a layer with bias and GELU: launched from the host as users do, in a CUDA
    graph, and its three products alone."""
    m, k, n = goals.SQUARE
    cells = {direction: Cell(direction, "bf16", m, k, n, (block, block), density) for direction in DIRECTIONS}
    pattern = cells["forward"].case().make_pattern(0)
    generator = torch.Generator().manual_seed(0)
    layer = BlockSparseLinear(k, n, pattern=pattern, activation=ACTIVATION, dtype=DTYPE, seed=generator).to(
        settings.device
    )
    linear = nn.Linear(k, n, dtype=DTYPE, device=settings.device)
    data = operands(m, k, n, 2, settings.device)

    twin = layer.to_dense().float()
    exact = step(
        twin, list(twin.parameters()), data[0][0].detach().float().requires_grad_(), data[0][1].float()
    )
    ours = step(layer, list(layer.parameters()), *data[0])
    exact = (*exact[:2], blocks_of(exact[2], layer), *exact[3:])
    errors = compared(["y", "dx", "dvalues", "dbias"], ours, exact)
    del ours, exact, twin

    calls = steps(layer, list(layer.parameters()), data)
    contenders = {"step": Replay(calls, graphed=False), **dict(_graphed(calls))}
    with torch.no_grad():
        for direction, cell in cells.items():
            made = Operands(cell, settings.device, settings.l2_bytes)
            contenders[direction] = Replay(made.calls(plan_of(made)["kernel"]))
    samples = in_turn(contenders, ROUNDS)
    dense = steps(lambda x: F.gelu(linear(x)), list(linear.parameters()), data)
    dense_us = Spread.of(in_turn({"dense": Replay(dense, graphed=False)}, DENSE_ROUNDS)["dense"]).median
    us = {name: Spread.of(times) for name, times in samples.items()}
    products = {direction: round(us[direction].median, 2) for direction in DIRECTIONS}
    return step_fields(block, density) | {
        "us": us["step"].rounded(2),
        "graph_us": us["graph"].rounded(2) if "graph" in us else None,
        "products_us": products,
        "beyond_us": round(us["step"].median - sum(products.values()), 2),
        "graph_beyond_us": round(us["graph"].median - sum(products.values()), 2) if "graph" in us else None,
        "dense_us": round(dense_us, 2),
        "speedup": round(dense_us / us["step"].median, 3),
        "relative_error": errors,
    }


def _graphed(calls: list[Call]) -> Iterator[tuple[str, Replay]]:
    """Yields the step in a CUDA graph, where it can be captured."""
    try:
        yield "graph", Replay(calls)
    except RuntimeError:
        torch.cuda.synchronize()


class Mlp(nn.Module):
    """Computes down(gelu(up(x))) of a GPT block."""

    def __init__(self, up: nn.Module, down: nn.Module, fused: bool) -> None:
        super().__init__()
        self.up, self.down, self.fused = up, down, fused

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return self.down(hidden if self.fused else F.gelu(hidden))  # type: ignore[no-any-return]


def mlps(device: torch.device, width: int, hidden: int) -> tuple[Mlp, Mlp]:
    """Returns the block-sparse MLP, and one of the same sizes with weights that have no zeros."""
    generator = torch.Generator().manual_seed(0)
    kept: dict[str, Any] = {
        "density": MLP_DENSITY,
        "block": MLP_BLOCK,
        "dtype": DTYPE,
        "generator": generator,
    }
    sparse = Mlp(
        BlockSparseLinear(width, hidden, activation=ACTIVATION, **kept),
        BlockSparseLinear(hidden, width, **kept),
        True,
    )
    dense = Mlp(nn.Linear(width, hidden, dtype=DTYPE), nn.Linear(hidden, width, dtype=DTYPE), False)
    return sparse.to(device), dense.to(device)


def mlp_error(mlp: Mlp, x: Tensor, dy: Tensor, run: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Returns the errors of y and dx of `run`, against the scattered weights in fp32. `run` is the
    block-sparse MLP or a compiled form of it."""
    twin = nn.Sequential(*(layer.to_dense().float() for _, layer in sparse_linears(mlp)))
    exact = step(twin, [], x.detach().float().requires_grad_(), dy.float())
    return compared(["y", "dx"], step(run, [], x, dy), exact)


def compiled_mlp(settings: Settings, backend: str = "inductor") -> Record:
    """Measures forward and backward of the MLP, sparse and dense in turn, both under torch.compile."""
    sparse, dense = mlps(settings.device, WIDTH, HIDDEN)
    data = operands(TOKENS, WIDTH, WIDTH, 2, settings.device)
    models = {"sparse": sparse, "dense": dense}
    compiled: dict[str, Any] = {
        name: torch.compile(model, fullgraph=True, backend=backend) for name, model in models.items()
    }
    calls = {name: steps(compiled[name], list(models[name].parameters()), data) for name in models}
    errors = mlp_error(sparse, *data[0], compiled["sparse"])
    samples = in_turn({name: Replay(each, graphed=False) for name, each in calls.items()}, ROUNDS)
    us = {name: Spread.of(times) for name, times in samples.items()}
    torch._dynamo.reset()  # torch.compile's graphs hold the models
    return mlp_fields() | {
        "us": us["sparse"].rounded(1),
        "dense_us": round(us["dense"].median, 1),
        "speedup": round(us["dense"].median / us["sparse"].median, 3),
        "relative_error": errors,
    }
