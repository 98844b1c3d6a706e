"""Builds a sparse layer and prints its pattern, its plan, its gradients and its gain over dense on this
machine."""

import torch

import sparseloom

generator = torch.Generator().manual_seed(0)
layer = sparseloom.nn.BlockSparseLinear(1024, 2048, density=0.1, block=32, seed=generator)
x = torch.randn(512, 1024, generator=generator, requires_grad=True)

print(layer)
print(layer.pattern.ascii(32))
print(layer.plan(512)["text"])

layer(x).square().mean().backward()
assert layer.values.grad is not None and x.grad is not None
print(f"gradient of {layer.values.grad.numel():,} stored values; a dense weight has {1024 * 2048:,}")

print(sparseloom.report(layer, x.detach()))
