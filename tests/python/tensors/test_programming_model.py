"""The programming model on whole models: the snippet that it began with, BERT and a ResNet of transformers,
each beside a masked dense twin."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparseloom as sl
from sparseloom import layouts as L
from sparseloom import ops
from sparseloom import sparsify as S


def bert() -> Any:
    """BERT whose GELU is a function, so that its name is that of a traced node."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = BertModel(config).eval()
    for layer in model.encoder.layer:
        del layer.intermediate.intermediate_act_fn
        layer.intermediate.intermediate_act_fn = functional.gelu
    return model


def resnet() -> Any:
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return ResNetModel(config).eval()


def zeroed(model: nn.Module, name: str, sparsifier: Any) -> None:
    """Makes a weight of a dense twin what its sparse one is: zero where nothing stays, without a gradient
    there."""
    weight = model.get_parameter(name)
    mask = sparsifier.select_mask(weight.detach().flatten(1)).view(weight.shape)
    with torch.no_grad():
        weight.mul_(mask)
    weight.register_hook(lambda gradient: gradient * mask)


@pytest.mark.package("transformers")
@pytest.mark.filterwarnings("error::sparseloom.ops.DenseFallback")
def test_the_snippet() -> None:
    """As it stands in the seed's words, but for the bodies; without a dense fallback anywhere."""

    @L.register
    class Ell(L.Layout):
        name = "snippet_ell"
        col: Tensor

        @classmethod
        def from_dense(cls, weight: Tensor, width: int) -> Ell:
            return cls(*weight.shape, col=weight.abs().topk(width, dim=1).indices.sort(dim=1).values)

        def pack(self, dense: Tensor) -> Tensor:
            return dense.gather(1, self.col)

        def to_dense(self, values: Tensor) -> Tensor:
            return values.new_zeros(self.rows, self.cols).scatter(1, self.col, values)

    @S.register(S.ScalarFraction, source=L.Dense, target=Ell)
    def to_ell(sparsifier: Any, context: S.Context) -> Ell:
        return Ell.from_dense(
            context.weight, width=round((1 - sparsifier.fraction) * context.weight.shape[1])
        )

    @sl.ops.register(torch.mm, inputs=(Ell, L.Dense), outputs=[(S.KeepAll, L.Dense)])
    class EllMm:
        @staticmethod
        def forward(ctx: Any, w: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(w, x)
            return (w.stored.unsqueeze(-1) * x[w.layout_index.col]).sum(1)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            w, x = ctx.saved_tensors
            return sl.SparseTensor(w.layout_index, w.layout_index.pack(dy @ x.t())), w.to_dense().t() @ dy

    keep = sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, S.ScalarFraction(0.75), Ell)])
    x = torch.randn(6, 8, requires_grad=True)
    y = torch.mm(keep(x), torch.randn(8, 3))
    assert type(y.grad_fn).__name__ == "EllMmBackward"
    y.sum().backward()
    assert int(x.grad.count_nonzero()) == 6 * 2

    add = sl.sparsified_op(
        torch.add, out_fmt=[(S.KeepAll(), L.Coo, S.RandomFraction(0.5), L.Csr)], grad_out_fmt=[S.DENSE]
    )
    assert add(x, x).format is L.Csr

    model = bert().encoder.layer[0]
    b = sl.SparsityBuilder(model)
    b.set_weight("attention.self.query.weight", initial_sparsifier=S.ScalarFraction(0.9), out_format=L.Csr)
    b.set_interm(r".*\.gelu", external_sparsifier=S.ScalarThreshold(0), out_format=L.Csr)
    twin = b.get_sparse_model()
    assert twin.attention.self.query.values.numel() == round(0.1 * 16 * 16)
    dense, hidden = copy.deepcopy(model), torch.randn(2, 5, 16)
    zeroed(dense, "attention.self.query.weight", S.ScalarFraction(0.9))
    compare(twin, dense, hidden, ["attention.self.query"])


def compare(made: nn.Module, twin: nn.Module, x: Tensor, layers: list[str]) -> None:
    """Requires the same outputs and gradients of every parameter; ``layers`` are SparseLinear in ``made``."""
    found = []
    for each in (made, twin):
        each.zero_grad()
        y = each(x)
        y = y if isinstance(y, Tensor) else y[0]
        y.square().sum().backward()
        found.append(y.detach())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    wanted = {name: each.grad for name, each in twin.named_parameters()}
    for name, each in made.named_parameters():
        if name.endswith(".values"):
            layer: Any = made.get_submodule(name.removesuffix(".values"))
            want = layer.layout.pack(wanted[name.replace(".values", ".weight")])
        elif ".parametrizations." in name:
            own = name.replace(".parametrizations.weight.original", "")
            module: Any = made.get_submodule(own)
            want = module.parametrizations.weight[0].layout_index.pack(wanted[f"{own}.weight"].flatten(1))
        else:
            want = wanted[name]
        if want is not None:
            torch.testing.assert_close(each.grad, want, rtol=1e-3, atol=1e-5)
    assert all(isinstance(made.get_submodule(each), sl.nn.SparseLinear) for each in layers)


class Masked(nn.Module):
    """A function whose result is masked in a dense twin."""

    def __init__(self, function: Any, sparsifier: Any) -> None:
        super().__init__()
        self.function, self.sparsifier = function, sparsifier

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(x)
        return y * self.sparsifier.select_mask(y.detach())


@pytest.mark.package("transformers")
@pytest.mark.filterwarnings("error::sparseloom.ops.DenseFallback")
@pytest.mark.parametrize("layout", [L.Csr, L.Coo])
def test_bert_is_its_masked_twin(layout: Any) -> None:
    """Weights, and activations that a dense layer reads as they are, without a dense fallback."""
    model, twin = bert(), bert()
    fraction, threshold = S.ScalarFraction(0.8), S.ScalarThreshold(0.02)
    b = sl.SparsityBuilder(model)
    b.set_weight(r".*\.(query|value)\.weight", initial_sparsifier=fraction, out_format=layout)
    b.set_interm(r".*\.intermediate\.gelu", external_sparsifier=threshold, out_format=layout)
    b.sparsify_model_inplace()
    layers = [f"encoder.layer.{i}.attention.self.{part}" for i in (0, 1) for part in ("query", "value")]
    for name in layers:
        zeroed(twin, f"{name}.weight", fraction)
    for layer in twin.encoder.layer:
        del layer.intermediate.intermediate_act_fn
        layer.intermediate.intermediate_act_fn = Masked(functional.gelu, threshold)
    compare(model, twin, torch.arange(12).view(2, 6), layers)


class MaskedConv:
    """A convolution by the weight that a mask leaves, whose gradient is masked: values in L.MaskedDense."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Tensor | None = None, *how: Any) -> Tensor:
        MaskedConv.calls += 1
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.bias = how, bias
        return functional.conv2d(x, weight.stored.view(weight.shape), bias, *how)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        sizes = None if ctx.bias is None else list(ctx.bias.shape)
        dx, dense, db = torch.ops.aten.convolution_backward(
            dy, x, weight.stored.view(weight.shape), sizes, stride, padding, dilation, False, [0, 0], groups,
            [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias is not None],
        )  # fmt: skip
        index = weight.layout_index
        dw = sl.SparseTensor(index, index.pack(dense.flatten(1)), weight.shape)
        return (dx, dw, db, *(None for _ in ctx.how))


@pytest.mark.package("transformers")
@pytest.mark.parametrize("registered", [True, False])
def test_a_resnet_with_masked_convolutions_is_its_twin_and_trains(registered: bool) -> None:
    mine = ops.Registry(strict=registered)
    if registered:
        mine.register(functional.conv2d, [L.Dense, L.MaskedDense], [(S.KeepAll, L.Dense)])(MaskedConv)
    model, twin, fraction = resnet(), resnet(), S.ScalarFraction(0.75)
    names = [name for name, each in model.named_parameters() if each.dim() == 4 and "encoder" in name]
    b = sl.SparsityBuilder(model, registry=mine)
    b.set_weight(r"encoder.*convolution\.weight", initial_sparsifier=fraction, out_format=L.MaskedDense)
    with pytest.warns(ops.DenseFallback, match="aten.convolution") if not registered else ops.strict():
        made, MaskedConv.calls = b.get_sparse_model(), 0
        for name in names:
            zeroed(twin, name, fraction)
        x = torch.randn(2, 3, 32, 32)
        compare(made, twin, x, [])
        steps = [torch.optim.SGD(each.parameters(), 0.01, momentum=0.9) for each in (made, twin)]
        for _ in range(3):
            for each, step in zip((made, twin), steps, strict=True):
                step.zero_grad()
                each(x)[0].square().mean().backward()
                step.step()
    assert MaskedConv.calls == (4 * len(names) if registered else 0)
    for name in names:
        weight = made.get_submodule(name.removesuffix(".weight")).weight.to_dense()
        torch.testing.assert_close(weight, twin.get_parameter(name), rtol=1e-4, atol=1e-6)
        assert int(weight.count_nonzero()) == round(0.25 * weight.numel())


@pytest.mark.package("transformers")
def test_training_with_sparsified_gradients_equals_the_twins() -> None:
    """Gradients of weights and of an intermediate are sparsified again in every step."""
    model, twin, fraction = bert(), bert(), S.ScalarFraction(0.5)
    b = sl.SparsityBuilder(model)
    b.set_weight_grad(r".*(key|intermediate\.dense)\.weight", external_sparsifier=fraction)
    b.set_interm_grad(r".*\.output\.LayerNorm", external_sparsifier=fraction)
    made = b.get_sparse_model()
    for name, parameter in twin.named_parameters():
        if name.endswith(("key.weight", "intermediate.dense.weight")):
            parameter.register_hook(fraction.sparsified)
    for name, module in twin.named_modules():
        if name.endswith("output.LayerNorm"):
            module.register_forward_hook(
                lambda module, given, y: y.register_hook(lambda dy: on_rows(dy, fraction)) and None
            )
    tokens, steps = torch.arange(12).view(2, 6), []
    for each in (made, twin):
        steps.append(torch.optim.AdamW(each.parameters(), 1e-3))
    for _ in range(3):
        for each, step in zip((made, twin), steps, strict=True):
            step.zero_grad()
            each(tokens)[0].square().mean().backward()
            step.step()
    for (name, one), (_, other) in zip(made.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=name)
    key = made.get_parameter("encoder.layer.0.attention.self.key.weight")
    assert int(key.grad.count_nonzero()) == key.numel() // 2


def on_rows(dy: Tensor, sparsifier: Any) -> Tensor:
    masked: Tensor = sparsifier.sparsified(dy.flatten(0, -2)).view_as(dy)
    return masked
