"""Times the whole model against its dense twin, at one batch size or several."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import Error
from ..nn.held.sparse_weight import SparseWeight, is_sparse, sparse_layers, sparse_modules
from ..nn.masked.linear import MaskedLinear, masked_layers
from ..patch.exchange import Exchange
from ..sparsify.gates import Gate
from ..sparsify.grid import expanded
from ..timing.rounds import Spread, in_turn, quotient
from .attentions import DenseAttention
from .inputs import batch_of, evaluated, resized, run, tensors_in
from .layers import scales_of
from .result import ModelReport, Totals
from .ways import EAGER, forward_call, launch_share

#: The least rounds, and the calls between two events: a model's call is long.
_ROUNDS, _GPU_CALLS = 3, 3


def totals(model: nn.Module) -> Totals:
    """Returns the totals of the model as it is, and of its dense twin."""
    counts = {_key(entry.weight): _of_sparse(entry.weight) for entry in sparse_layers(model)}
    counts |= {id(layer.weight): _of_masked(layer) for layer in masked_layers(model)}
    gates = {entry for module in model.modules() if isinstance(module, Gate) for entry in module.parameters()}
    unique = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    scaled = [entry.weight.owner for entry in sparse_layers(model) if entry.weight.scaled]
    eight = {id(part): part for owner in scaled for part in (owner.values, owner.bias) if part is not None}
    stored = [*unique, *eight.values()]
    parameters = sum(tensor.numel() for tensor in stored)
    size = sum(_bytes(tensor) for tensor in stored)
    extra = sum(gate.numel() for gate in gates), sum(_bytes(gate) for gate in gates)
    all_counts = counts.values()
    dense_parameters = parameters - extra[0] + sum(entry.dense - entry.stored for entry in all_counts)
    return Totals(
        parameters,
        dense_parameters,
        size + sum(entry.beside for entry in all_counts),
        size - extra[1] + sum(entry.dense_bytes - entry.stored_bytes for entry in all_counts),
        sum(entry.dense for entry in all_counts) / max(1, dense_parameters),
        masked=sum(entry.masked for entry in all_counts),
    )


class _Counts(NamedTuple):
    """Counts of one weight: its stored elements, those of its dense twin, and the bytes of index, mask and
    factors."""

    stored: int
    stored_bytes: int
    dense: int
    dense_bytes: int
    beside: int
    masked: int = 0  # elements that a mask prunes, which are stored all the same


def _key(weight: SparseWeight) -> int:
    """Returns a key that identifies a weight: layers may share values, and computed values are a new tensor
    in each look-up."""
    values = weight.values
    return id(values if isinstance(values, nn.Parameter) else weight.owner)


def _of_sparse(weight: SparseWeight) -> _Counts:
    values, bias = weight.values, getattr(weight.owner, "bias", None)
    dense, other_bytes, dtype = math.prod(weight.shape) * weight.taps, weight.index_bytes, values.dtype
    if weight.scaled:
        dtype = torch.float32 if bias is None else bias.dtype
        other_bytes += sum(_bytes(scale) for scale in scales_of(weight.owner))
    return _Counts(values.numel(), _bytes(values), dense, dense * dtype.itemsize, other_bytes)


def _of_masked(layer: MaskedLinear) -> _Counts:
    weight, mask = layer.weight, layer.mask
    pruned = 0
    if not mask.is_meta:
        pruned = int((~expanded(mask, layer.block, (layer.out_features, layer.in_features))).sum())
    size = weight.numel(), _bytes(weight)
    return _Counts(*size, *size, _bytes(mask), pruned)


def dense_twin(model: nn.Module) -> nn.Module:
    """Returns a copy with every sparse and masked layer dense, zero where nothing is stored or kept."""
    twin = copy.deepcopy(model)
    if is_sparse(twin) or isinstance(twin, MaskedLinear):
        return twin.to_dense()
    sparse = {**{module: None for _, module in sparse_modules(twin)}, **dict.fromkeys(masked_layers(twin))}
    Exchange(twin, [(module, module.to_dense()) for module in sparse]).put()
    return twin


def measured(
    model: nn.Module,
    example_input: Any,
    batch_sizes: Sequence[int],
    seconds: float,
    more_ways: Sequence[str] = (),
    attends: bool = False,
) -> tuple[ModelReport, list[ModelReport]]:
    """Measures the model at the example's own size, and at each of batch_sizes; forward also in more_ways.
    ``attends``: its attention over kept blocks is dense in the twin.

    What cannot be measured is noted: the twin may not fit beside the model, or a copy may be impossible.
    """
    batch = batch_of(example_input)
    sizes = _checked(batch_sizes, batch)
    if any(parameter.is_meta for parameter in model.parameters()):
        return ModelReport(batch, note="on meta: nothing to measure"), []
    models, note = [model], ""
    if attends or any(sparse_modules(model)) or masked_layers(model):
        try:
            twin = dense_twin(model)
            twin = DenseAttention(twin) if attends else twin
            with evaluated(twin), torch.no_grad():
                run(twin, example_input)
            models.append(twin)
        # The error is whatever the model's own parts raise when copied, or called with dense layers inside.
        except Exception as error:
            note = f"no dense twin: {_line(error)}"
    whole_model = _measured(models, example_input, batch, seconds, note, more_ways)
    reports: dict[int | None, ModelReport] = {batch: whole_model}
    for size in sizes:
        if size not in reports:
            assert batch is not None
            own_input = resized(example_input, batch, size)
            reports[size] = _measured(models, own_input, size, seconds, note, more_ways)
    return whole_model, [reports[size] for size in sizes]


def _checked(sizes: Sequence[int], batch: int | None) -> list[int]:
    if not sizes:
        return []
    if not batch:
        raise Error(
            "report",
            "a tensor with rows in example_input",
            str(batch),
            "batch_sizes repeats its first dimension",
        )
    if wrong := [size for size in sizes if not isinstance(size, int) or isinstance(size, bool) or size < 1]:
        raise Error("report", "batch_sizes of ints >= 1", repr(wrong[0]), "pass batch_sizes=[1, 16, 256]")
    return list(dict.fromkeys(sizes))


def _measured(
    models: list[nn.Module],
    example_input: Any,
    batch: int | None,
    seconds: float,
    note: str,
    more_ways: Sequence[str],
) -> ModelReport:
    entry = ModelReport(batch, note=note)
    gpu = gpu_of(models[0])
    kinds: list[tuple[str, Callable[..., Calls]]] = [("forward", _forwards), ("backward", _backwards)]
    kinds += [(way, partial(_forwards, way=way)) for way in more_ways]
    for direction, calls_of in kinds:
        try:
            samples = _samples(models, example_input, seconds / 2, calls_of)
            if direction == "forward" and gpu is not None:
                with evaluated(models[0]), torch.no_grad():
                    entry.launch_share = launch_share(_forwards(models, example_input)[0], gpu)
        # There may be no memory for both graphs; a module may have no backward pass in evaluation, or be
        # nothing that torch can compile or capture.
        except RuntimeError as error:
            entry.note = "; ".join(
                part for part in (entry.note, f"{direction} not measured: {_line(error)}") if part
            )
            if direction == "forward":
                break
            continue
        if not samples:  # nothing trains
            continue
        ours, *dense = samples
        entry.times = (entry.times or {}) | {direction: Spread.of(ours).median}
        if dense:
            entry.dense_times = (entry.dense_times or {}) | {direction: Spread.of(dense[0]).median}
            entry.ratios[direction] = quotient(dense[0], ours)
    return entry


Calls = list[Callable[[], object]]


def _samples(
    models: list[nn.Module], example_input: Any, seconds: float, calls_of: Callable[..., Calls]
) -> list[list[float]]:
    gpu = gpu_of(models[0])
    with evaluated(models[0]), evaluated(models[-1]), torch.set_grad_enabled(calls_of is _backwards):
        calls = calls_of(models, example_input)
        if not calls:
            return []
        return in_turn(calls, seconds, gpu, least=_ROUNDS, gpu_calls=_GPU_CALLS)


def gpu_of(model: nn.Module) -> torch.device | None:
    """Returns the GPU of the model's first parameter that lies on one."""
    return next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)


def _forwards(models: list[nn.Module], example_input: Any, way: str = EAGER) -> Calls:
    if way != EAGER:
        return [forward_call(way, model, example_input) for model in models]
    return [lambda model=model: run(model, example_input) for model in models]  # type: ignore[misc]


def _backwards(models: list[nn.Module], example_input: Any) -> Calls:
    """Returns the backward calls; none if the model does not train: no parameter, or no result, needs a
    gradient."""
    calls: Calls = []
    with torch.enable_grad():
        for model in models:
            inputs = [parameter for parameter in model.parameters() if parameter.requires_grad]
            outputs = (
                [tensor for tensor in tensors_in(run(model, example_input)) if tensor.requires_grad]
                if inputs
                else []
            )
            if not outputs:
                return []
            calls.append(_backward(outputs, inputs))
    return calls


def _backward(outputs: list[Tensor], inputs: list[nn.Parameter]) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    # explicit, whatever torch's defaults are
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    gradients = [torch.randn(tensor.shape, **options).to(tensor.device, tensor.dtype) for tensor in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True, allow_unused=True)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
