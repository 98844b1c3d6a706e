"""Measures a 2:4 training step of one layer, packed in each call, beside dense, torch's own semi-structured
training and xformers'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.sparse import SparseSemiStructuredTensorCUSPARSELT

from sparseloom.nn import Semi24Training

from ..timing import Spread, ratios
from .measure import CALM_ROUNDS, Record, Settings, one_line, under_load
from .replay import Replay, in_turn
from .semi24_peers import version
from .training import DTYPE, operands, step, steps

SHAPE = (8192, 4096, 4096)
#: The least speed-up over dense, in bursts and under load.
LEAST, LEAST_SUSTAINED = 1.08, 1.15
DENSE, OURS, REFRESHED = "dense", "ours", "ours_refreshed"
#: Most of |found - expected| / |expected|, in the Frobenius norm: two bf16 roundings of sums in fp32.
TOLERANCE = 0.006

Module = Callable[[Tensor], Tensor]


class _Straight(torch.autograd.Function):
    """Prunes and packs a weight in forward, and hands its gradient through, as torchao's SemiSparseLinear
    does."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return SparseSemiStructuredTensorCUSPARSELT.prune_dense_static_sort(weight.detach())  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _refreshed(linear: nn.Linear) -> Module:
    layer = _layer(linear)

    def call(x: Tensor) -> Tensor:
        layer.refresh_()
        return layer(x)  # type: ignore[no-any-return]

    return call


def _layer(linear: nn.Linear) -> Semi24Training:
    return Semi24Training.over(linear, linear.weight, None)  # type: ignore[arg-type]


def _torchs(linear: nn.Linear) -> Module:
    return lambda x: F.linear(x, _Straight.apply(linear.weight))


def _xformers(linear: nn.Linear, backend: str) -> Module:
    from xformers.ops import sparsify24  # type: ignore[import-not-found]

    return lambda x: F.linear(x, sparsify24(linear.weight, gradient="ste", backend=backend))


#: Each takes the layer whose weight it multiplies with, and returns what is called with x. All but ``OURS``
#: choose the mask anew in each call.
WAYS: dict[str, Callable[[nn.Linear], Module]] = {
    OURS: _layer, REFRESHED: _refreshed, "torch": _torchs,
    "xformers, cuSPARSELt": partial(_xformers, backend="cusparselt"),
    "xformers, CUTLASS": partial(_xformers, backend="cutlass"),
}  # fmt: skip


def fields() -> Record:
    """Returns the fields that name the record."""
    m, k, n = SHAPE
    return {
        "op": "semi24_train",
        "name": f"semi24-train-bf16-{m}x{k}x{n}",
        "dtype": "bf16",
        "m": m,
        "k": k,
        "n": n,
    }


def measure(settings: Settings) -> Record:
    """Returns the record of forward and backward by each way, in one CUDA graph where it can be captured.
    Raises what our own step raised."""
    m, k, n = SHAPE
    generator = torch.Generator(settings.device).manual_seed(0)
    linear = nn.Linear(k, n, bias=False, dtype=DTYPE, device=settings.device)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(n, k, generator=generator, device=settings.device) * k**-0.5)
    data = operands(m, k, n, 2, settings.device)
    contenders = {DENSE: Replay(steps(linear, [linear.weight], data))}
    errors, absent, eager = {}, {}, []
    for name, way in WAYS.items():
        if name not in (OURS, REFRESHED) and not settings.peers:
            continue
        try:
            module = way(linear)
            errors[name] = checked(module, linear, data[0])
            calls = steps(module, [linear.weight], data)
            contenders[name] = _replay(calls)
            if not contenders[name].graphed:
                eager.append(name)
        except Exception as error:
            if name in (OURS, REFRESHED):
                raise
            absent[name] = one_line(error)
    samples = in_turn(contenders, CALM_ROUNDS)
    loaded, clock, watts = under_load(contenders, settings.monitor)
    us = {name: Spread.of(times) for name, times in samples.items()}
    ratio = ratios(samples[DENSE], samples[OURS])
    peers = {name: round(us[name].median, 2) for name in contenders if name not in (DENSE, OURS, REFRESHED)}
    return fields() | {
        "us": us[OURS].rounded(2),
        "refreshed_us": round(us[REFRESHED].median, 2),
        "dense_us": round(us[DENSE].median, 2),
        "speedup": round(ratio.median, 3),
        "speedup_spread": ratio.rounded(3),
        "least": {"speedup": LEAST, "sustained": LEAST_SUSTAINED},
        "peers": peers,
        "peers_absent": absent,
        "peer_version": version() if peers else None,
        "eager": eager,
        "sustained": {"us": loaded, "speedup": round(loaded[DENSE] / loaded[OURS], 3)},
        "relative_error": errors,
        "clock_mhz": clock,
        "sustained_watts": watts,
    }


def _replay(calls: list[Callable[[], Tensor]]) -> Replay:
    """Launches one by one what no graph holds."""
    try:
        return Replay(calls)
    except RuntimeError:
        torch.cuda.synchronize()
        return Replay(calls, graphed=False)


def checked(module: Module, linear: nn.Linear, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Returns the relative errors of y, dX and dW against the weight that the module itself multiplies with.
    Raises RuntimeError where one is beyond ``TOLERANCE``, or where that weight is not 2:4 along rows and
    columns or not made of the layer's."""
    x, dy = data
    with torch.no_grad():
        weight = module(torch.eye(x.shape[1], dtype=x.dtype, device=x.device)).t().float()
        kept = weight != 0
        two = all(
            int(each.unflatten(1, (-1, 4)).sum(-1).max()) <= 2 for each in (kept, kept.t().contiguous())
        )
        if not two or not torch.equal(weight[kept], linear.weight.float()[kept]) or kept.float().mean() < 0.4:
            raise RuntimeError("it multiplies with another weight than a transposable 2:4 one of the layer's")
    exact = [x.detach().float() @ weight.t(), dy.float() @ weight, dy.float().t() @ x.detach().float()]
    found = step(module, [linear.weight], x, dy)
    errors = {
        name: round(float((ours.detach().float() - true).norm() / true.norm()), 5)
        for name, ours, true in zip(("y", "dx", "dw"), found, exact, strict=True)
    }
    if wrong := {name: error for name, error in errors.items() if not error <= TOLERANCE}:
        raise RuntimeError(f"relative errors {wrong}, at most {TOLERANCE}")
    return errors
