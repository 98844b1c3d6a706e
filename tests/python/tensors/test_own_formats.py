"""A format, a sparsifier and operators of a user on whole models: BERT and a ResNet train in them, with
gradients that are sparsified again in every step, and stay equal to dense twins that mask by hand."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from ell import Ell
from test_programming_model import Masked, bert, compare, resnet, zeroed
from torch import Tensor, nn
from torch.nn import functional

import sparseloom as sl
from sparseloom import layouts as L
from sparseloom import ops
from sparseloom import sparsify as S

pytestmark = pytest.mark.package("transformers")


class TopOfRow(S.ElementSparsifier):
    """Keeps the largest of each row: a row alone decides."""

    kind, passes, memory = "blocking", 2, "O(b)"

    def __init__(self, width: int) -> None:
        self.width = width

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        most = dense.detach().abs().topk(self.width, dim=-1).indices
        return torch.zeros(dense.shape, dtype=torch.bool, device=dense.device).scatter_(-1, most, True)


@S.register(TopOfRow, source=L.Dense, target=Ell)
def to_ell(sparsifier: TopOfRow, context: S.Context) -> Ell:
    return Ell.from_dense(context.weight, width=sparsifier.width)


class EllConv:
    """A convolution whose weight lies in Ell, and takes its gradient in Ell."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Tensor | None = None, *how: Any) -> Tensor:
        EllConv.calls += 1
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.bias = how, bias
        return functional.conv2d(x, whole(weight), bias, *how)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        sizes = None if ctx.bias is None else list(ctx.bias.shape)
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias is not None]
        dx, dense, db = torch.ops.aten.convolution_backward(
            dy, x, whole(weight), sizes, stride, padding, dilation, False, [0, 0], groups, wanted
        )
        index = weight.layout_index
        dw = sl.SparseTensor(index, index.pack(dense.flatten(1)), weight.shape)
        return (dx, dw, db, *(None for _ in ctx.how))


def whole(weight: Any) -> Tensor:
    dense: Tensor = weight.layout_index.to_dense(weight.stored)
    return dense.view(weight.shape)


def trained(models: list[nn.Module], x: Tensor, steps: int = 3) -> None:
    for model in models:
        # Not Adam, whose steps have one size: the gradient of a key's bias is zero but for rounding.
        optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
        for _ in range(steps):
            optimizer.zero_grad()
            model(x)[0].square().mean().backward()
            optimizer.step()


@pytest.mark.filterwarnings("error::sparseloom.ops.DenseFallback")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bert_trains_in_a_format_and_by_a_sparsifier_of_a_user(device: str, tmp_path: Path):
    model, twin, fifth, third = bert().to(device), bert().to(device), TopOfRow(3), TopOfRow(11)
    tokens = torch.arange(12, device=device).view(2, 6)
    b = sl.SparsityBuilder(model)
    b.set_weight(r".*\.(query|value)\.weight", initial_sparsifier=fifth, out_format=Ell)
    b.set_weight_grad(r".*\.key\.weight", external_sparsifier=fifth)
    b.set_interm(r".*\.intermediate\.gelu", external_sparsifier=third, out_format=L.Csr)
    made = b.get_sparse_model()
    layers = [f"encoder.layer.{i}.attention.self.{part}" for i in (0, 1) for part in ("query", "value")]
    for name in layers:
        assert made.get_submodule(name).values.shape == (16, 3)
        zeroed(twin, f"{name}.weight", fifth)
    for name, parameter in twin.named_parameters():
        if name.endswith("key.weight"):
            parameter.register_hook(fifth.sparsified)
    for layer in twin.encoder.layer:
        del layer.intermediate.intermediate_act_fn
        layer.intermediate.intermediate_act_fn = Masked(functional.gelu, third)
    compare(made, twin, tokens, layers)
    layer = made.get_submodule(layers[0])
    again = pickle.loads(pickle.dumps(layer))
    assert again.layout.name == Ell.name and torch.equal(again.values, layer.values)
    with pytest.raises(sl.Error, match=r"query in layout ell_rows; save with sparseloom.save"):
        made.save_pretrained(tmp_path)
    sl.save(made, tmp_path / "bert.safetensors")
    read = b.get_sparse_model()
    with torch.no_grad():
        for parameter in read.parameters():
            parameter.zero_()
    sl.load(tmp_path / "bert.safetensors", read)
    assert torch.equal(read(tokens)[0], made(tokens)[0])
    trained([made, twin], tokens)
    compare(made, twin, tokens, layers)  # the same elements are stored, whatever the optimizer wrote
    for name in layers:
        weight = made.get_submodule(name).to_dense().weight
        torch.testing.assert_close(weight, twin.get_parameter(f"{name}.weight"), rtol=1e-4, atol=1e-6)
    key = made.get_parameter("encoder.layer.0.attention.self.key.weight")
    assert int(key.grad.count_nonzero()) == 3 * 16


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_resnet_trains_with_convolutions_in_a_format_of_a_user(device: str):
    mine, kept = ops.Registry(strict=True), TopOfRow(6)
    mine.register(functional.conv2d, [L.Dense, Ell], [(S.KeepAll, L.Dense)])(EllConv)
    model, twin = resnet().to(device), resnet().to(device)
    names = [name for name, each in model.named_parameters() if each.dim() == 4 and "encoder" in name]
    b = sl.SparsityBuilder(model, registry=mine)
    b.set_weight(r"encoder.*convolution\.weight", initial_sparsifier=kept, out_format=Ell)
    made, EllConv.calls = b.get_sparse_model(), 0
    for name in names:
        zeroed(twin, name, kept)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(device)
    compare(made, twin, x, [])
    copied = copy.deepcopy(made)
    trained([made, twin], x)
    assert EllConv.calls == 4 * len(names)
    for name in names:
        weight = made.get_submodule(name.removesuffix(".weight")).weight.to_dense()
        torch.testing.assert_close(weight, twin.get_parameter(name), rtol=1e-3, atol=1e-5)
        assert int(weight.count_nonzero()) == 6 * len(weight)
        before = copied.get_submodule(name.removesuffix(".weight")).weight.to_dense()
        assert torch.equal(before != 0, weight != 0) and not torch.equal(before, weight)
