"""What a user's own type checker sees: test_surface.py runs `mypy --strict` on this file, with nothing of
mypy's settings here."""

from __future__ import annotations

from typing import Any, Literal, assert_type

import torch

import sparseloom
from sparseloom import (
    Advice,
    BlockSparse,
    BlockSparseModelPatcher,
    Pattern,
    Report,
    layouts,
    nn,
    ops,
    pattern,
    sparsify,
)
from sparseloom.patch import Change, Patched, Skip
from sparseloom.quantize import Quantized, QuantizedLayer
from sparseloom.report import LayerReport, ModelReport, Totals

model = torch.nn.Sequential(torch.nn.Linear(64, 64))
x = torch.randn(4, 64)
result = assert_type(
    sparseloom.sparsify_(model, {"0": BlockSparse(block=16, density=0.5)}, strict=True), Patched
)
assert_type(result.changed, list[Change])
assert_type(result.skipped, list[Skip])
assert_type(result.parameters, tuple[int, int])
assert_type(sparseloom.densify_(model), Patched)
rigl = sparseloom.sparsify.methods.rigl(100)
optimizer = sparseloom.optim.AdamW(model.parameters(), lr=1e-3)
trained = sparseloom.sparsify_(model, {"0": BlockSparse(16, 0.5, method=rigl)}, optimizer=optimizer)
assert_type(trained.method, sparseloom.sparsify.Run)
assert_type(trained.method.attach(optimizer).densities(), dict[str, float])
assert_type(sparseloom.pack_(model, optimizer), Patched)
assert_type(nn.MaskedLinear(64, 64, block=16).pack(), nn.BlockSparseLinear)
quantized = assert_type(sparseloom.quantize_(model, {"0": torch.int8}, x_scale=0.1), Quantized)
assert_type(quantized.changed, list[QuantizedLayer])
patcher = BlockSparseModelPatcher()
patcher.add_pattern("0", {"density": 0.5})
assert_type(patcher.get_patchable_layers(model), list[dict[str, Any]])
assert_type(patcher.patch_model(model, strict=True), Patched)
found = assert_type(sparseloom.report(model, x, batch_sizes=[1, 4], strict=True), Report)
assert_type(found.layers, list[LayerReport])
assert_type(found.model, ModelReport | None)
assert_type(found.totals, Totals | None)
assert_type(found.to_html(), str)
advice = assert_type(sparseloom.advise(model, x, measure=True, strict=True), Advice)
assert_type(advice.patterns(0.25), dict[str, BlockSparse])
assert_type(sparseloom.prepare_ddp(model), torch.nn.Module)
assert_type(sparseloom.info(), dict[str, Any])
sparseloom.save(model, "model.safetensors")
sparseloom.load("model.safetensors", model)
made = assert_type(pattern.balanced(64, 64, 16, 0.5), Pattern)
assert_type(made.density, float)
layer = nn.BlockSparseLinear(64, 64, pattern=made, activation="gelu")
assert_type(layer.values, torch.nn.Parameter)
assert_type(layer.bias, torch.nn.Parameter | None)
eight = assert_type(
    nn.QuantizedBlockSparseLinear.from_sparse(layer, torch.int8), nn.QuantizedBlockSparseLinear
)
assert_type(eight.dequantized(), nn.BlockSparseLinear)
assert_type(ops.quantize_rows(x, torch.int8), tuple[torch.Tensor, torch.Tensor])
assert_type(layer.strict, bool)
assert_type(
    nn.BlockSparseLinear(64, 64, density=0.5, fuse_wgrad_accumulation=True).fuse_wgrad_accumulation, bool
)
assert_type(ops.linear_dw(x, x, layer.index, out=torch.zeros(layer.values.shape)), torch.Tensor)
assert_type(ops.linear(x, layer.values, layer.index, main_grad_of=layer.values), torch.Tensor)
assert_type(layer.pattern, Pattern)
assert_type(layer.forward(x), torch.Tensor)
assert_type(layer.plan(4), dict[str, Any])
assert_type(layer.dense_copy, bool | Literal["auto"])
assert_type(layer.to_dense(), torch.nn.Module)
assert_type(nn.BlockSparseLinear.from_dense(torch.nn.Linear(64, 64), density=0.5), nn.BlockSparseLinear)
assert_type(ops.linear(x, layer.values, layer.index, layer.bias, strict=True), torch.Tensor)
assert_type(sparseloom.Error("a", "b", "c", "d").remedy, str)
tensor = assert_type(sparseloom.SparseTensor.from_dense(x, layouts.Csr), sparseloom.SparseTensor)
assert_type(tensor.format, type[layouts.Layout])
assert_type(tensor.layout_index, layouts.Layout)
add = sparseloom.sparsified_op(torch.add, [sparsify.DENSE], registry=ops.Registry(strict=True))
with ops.strict(), ops.Registry().active():
    add(x, x)
builder = sparseloom.SparsityBuilder(model)
builder.set_weight("weight", sparsify.ScalarFraction(0.9), out_format=layouts.Csr)
assert_type(builder.get_sparse_model(), torch.nn.Module)
