"""Reports on one sparse layer: its sizes, its kernels, and its times compared to nn.Linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import Error
from ..nn import SparseLinear
from ..nn.held.sparse_weight import SparseWeight
from ..nn.linears import Planned
from ..nn.masked.linear import MaskedLinear
from ..timing.rounds import Spread, in_turn, quotient
from .break_even import FALLBACKS, Size, break_even, fastest_sparse
from .result import LayerReport, Ratios, Times

#: The products that a direction's time consists of: "backward" is both of its products.
_PRODUCTS = {"forward": ("forward",), "backward": ("dx", "dw")}
_COPY = "dense copy"


def described(name: str, layer: Planned, weight: SparseWeight, tokens: int | None) -> LayerReport:
    """Returns the layer's report without the times."""
    entry = listed(name, layer, weight)
    dtype = product_dtype(weight.values)
    entry.tokens, entry.dtype, entry.note = tokens, str(dtype).removeprefix("torch."), ""
    if not tokens:
        entry.note = "not reached by the example input"
    elif weight.values.is_meta:
        entry.note = "on meta: nothing to measure"
    else:
        plans = {direction: layer.plan(tokens, direction, dtype) for direction in weight.directions}
        name_kernels(entry, plans)
    return entry


def name_kernels(entry: LayerReport, plans: dict[str, dict[str, Any]]) -> None:
    """Notes the kernels that the plans of a layer's directions choose."""
    entry.kernels = {direction: str(plan["kernel"]) for direction, plan in plans.items()}
    for direction, plan in plans.items():
        copy = plan.get("dense_copy")  # layers of other layouts keep none
        if copy and copy["used"]:  # forward and dX have the same one
            entry.kernels[direction], entry.copy_bytes = _COPY, copy["bytes"]


def name_unplanned(entry: LayerReport, layer: SparseLinear, weight: SparseWeight) -> None:
    """Notes what runs in a layer whose layout's plans name no kernels: its own methods, or dense products."""
    plans = {direction: layer.plan(1, direction) for direction in weight.directions}
    name_kernels(entry, plans)
    if dense := [direction for direction, plan in plans.items() if plan["kernel"] in FALLBACKS]:
        entry.note = f"dense products ({', '.join(dense)}); {entry.note}"


def listed(name: str, module: nn.Module, weight: SparseWeight) -> LayerReport:
    """Returns the report of a sparse weight that cannot be timed alone, because the arguments of its module
    are not known."""
    values, (rows, cols), parameters = weight.values, weight.shape, list(module.parameters(recurse=False))
    in_blocks, dtype, note = weight.layout == "bsr", values.dtype, "not timed alone"
    other_bytes = dense_other_bytes = sum(tensor.nbytes for tensor in parameters if tensor is not values)
    if weight.scaled:  # 8-bit layers have buffers alone, and a dense twin in the dtype of the bias
        bias = module.bias
        dtype = bias.dtype if isinstance(bias, Tensor) else torch.float32
        dense_other_bytes = bias.nbytes if isinstance(bias, Tensor) else 0
        other_bytes = dense_other_bytes + sum(scale.nbytes for scale in scales_of(module))
    elif weight.gated:
        note += ": gates multiply its blocks in each call"
    return LayerReport(
        name,
        type(module).__name__,
        (rows, cols),
        values.nbytes + weight.index_bytes + other_bytes,
        rows * cols * weight.taps * dtype.itemsize + dense_other_bytes,
        weight.block if in_blocks else None,
        weight.density,
        dtype=str(values.dtype).removeprefix("torch."),
        pattern=weight.pattern if in_blocks else None,
        layout=None if in_blocks else weight.layout,
        note=note,
    )


def scales_of(module: nn.Module) -> list[Tensor]:
    """Returns the factors of an 8-bit layer."""
    scales = (getattr(module, name, None) for name in ("w_scale", "x_scale"))
    return [scale for scale in scales if isinstance(scale, Tensor)]


def masked(name: str, layer: MaskedLinear) -> LayerReport:
    """Returns the report of a layer that trains a dense weight under a mask, which ends with ``pack_``."""
    parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    size, elements = sum(tensor.nbytes for tensor in parameters), layer.block == (1, 1)
    return LayerReport(
        name,
        type(layer).__name__,
        (layer.out_features, layer.in_features),
        size + layer.mask.nbytes,
        size,
        None if elements else layer.block,
        None if layer.mask.is_meta else layer.mask.float().mean().item(),
        dtype=str(layer.weight.dtype).removeprefix("torch."),
        layout="masked",
        note="not timed alone: it trains a dense weight under a mask until pack_",
    )


def dense_kernels(entry: LayerReport, trains: bool) -> str:
    """Returns a text with the directions in which a layer runs no sparse kernel, and the kernels that it
    runs; "" if there are none."""
    kernels = [
        f"{direction} {kernel}"
        for direction, kernel in entry.kernels.items()
        if kernel in (*FALLBACKS, _COPY) and (trains or direction == "forward")
    ]
    return f"{entry.name or 'model'} ({', '.join(kernels)})" if kernels else ""


def require_sparse(entries: Sequence[tuple[LayerReport, bool]]) -> None:
    """Raises Error that names every layer, of which the second says whether it trains, that would run a dense
    or reference kernel."""
    if refused := [words for entry, trains in entries if (words := dense_kernels(entry, trains))]:
        remedy = "the layer's plan(..)['text'] says why; lower the density, or leave strict out"
        raise Error("report", "sparse kernels in every layer (strict=True)", ", ".join(refused), remedy)


def measure(entry: LayerReport, layer: Planned, seconds: float) -> None:
    """Measures the times, if the layer can be timed."""
    if not entry.kernels or entry.tokens is None:
        return
    entry.times, entry.dense_times, entry.ratios = _measured(layer, entry.tokens, seconds)
    if entry.slower:
        entry.note = f"slower than dense: {', '.join(entry.slower)}"


def break_evens(entry: LayerReport, layer: Planned) -> dict[str, float | None]:
    """Returns the break-even densities of a measured layer, by direction; none where the density of its
    layout is fixed."""
    if entry.times is None or entry.dense_times is None or entry.tokens is None or entry.block is None:
        return {}
    weight = layer.values
    size = Size(
        (layer.out_features, layer.in_features),
        entry.tokens,
        product_dtype(weight),
        weight.device,
        layer.bias is not None,
    )
    densities = {}
    for direction, us in entry.times.items():
        products = _PRODUCTS[direction]
        rows = [fastest_sparse(layer.plan(entry.tokens, product, size.dtype)) for product in products]
        # Where the layer itself runs dense, its time says nothing about the sparse kernels' time: the bare
        # prediction is used.
        sparse = all(
            row is not None and row["kernel"] == entry.kernels[p]
            for row, p in zip(rows, products, strict=True)
        )
        expected = sum(float(row["predicted_us"]) for row in rows if row is not None)
        scale = us / expected if sparse and expected > 0 else 1.0
        densities[direction] = break_even(size, entry.block, products, entry.dense_times[direction], scale)
    return densities


def product_dtype(weight: Tensor) -> torch.dtype:
    """Returns the dtype in which the layer multiplies at present: autocast casts all but float64."""
    kind = weight.device.type
    if kind == "meta" or weight.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return weight.dtype
    return torch.get_autocast_dtype(kind)


def _measured(layer: Planned, tokens: int, seconds: float) -> tuple[Times, Times, Ratios]:
    """Returns the median times of the layer and of its dense twin, and the rounds' ratios."""
    device, dtype = layer.values.device, layer.values.dtype
    linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device, dtype)

    def dense(x: Tensor) -> Tensor:
        return ops.activate(linear(x), getattr(layer, "activation", None))

    # the twin trains the same parameters
    linear.weight.requires_grad_(layer.values.requires_grad)
    if layer.bias is not None:
        linear.bias.requires_grad_(layer.bias.requires_grad)
    twin = [parameter for parameter in linear.parameters() if parameter.requires_grad]
    return timed(layer, dense, twin, drawn(tokens, layer.in_features).to(device, dtype), seconds)


def drawn(*shape: int) -> Tensor:
    """Returns the same random numbers in each call, whatever torch's defaults are."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def timed(
    layer: nn.Module, dense: Callable[[Tensor], Tensor], twin: list[nn.Parameter], x: Tensor, seconds: float
) -> tuple[Times, Times, Ratios]:
    """Returns the median times of a layer on x and of ``dense``, whose trained parameters are ``twin``, and
    the rounds' ratios: forward, and where the layer trains backward."""
    gpu = x.device if x.is_cuda else None
    with torch.no_grad():
        samples = {"forward": in_turn([lambda: layer(x), lambda: dense(x)], seconds / 2, gpu)}
    trains = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    if not trains:
        return summed_up(samples)
    x.requires_grad_()

    def backward(y: Tensor, inputs: list[Tensor]) -> Callable[[], object]:
        dy = drawn(*y.shape).to(y.device, y.dtype)
        return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)

    with torch.enable_grad():
        calls = [backward(layer(x), [x, *trains]), backward(dense(x), [x, *twin])]
        samples["backward"] = in_turn(calls, seconds / 2, gpu)
    return summed_up(samples)


def summed_up(samples: dict[str, list[list[float]]]) -> tuple[Times, Times, Ratios]:
    """Summarizes the samples of the layer and of its twin, by direction."""
    medians = [
        {direction: Spread.of(pair[i]).median for direction, pair in samples.items()} for i in range(2)
    ]
    return (
        medians[0],
        medians[1],
        {direction: quotient(dense, ours) for direction, (ours, dense) in samples.items()},
    )
