"""Sparse, nested and mkldnn tensors where a strided one belongs: our Error with the remedy, from every route
and entry."""

import pytest
import torch

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear, BlockSparseTransformersConv1D, QuantizedBlockSparseLinear

LAYOUTS = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "mkldnn": lambda t: t.to_mkldnn(),
}
NESTED = {
    "nested": lambda t: torch.nested.nested_tensor([t, t[:2]]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t[:2]], layout=torch.jagged),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|nested tensors|mkldnn).*:UserWarning")


def layer_of(**options):
    return BlockSparseLinear(64, 96, density=0.5, block=16, **options)


def refused(call, match):
    with pytest.raises(sparseloom.Error, match=match) as error:
        call()
    assert "\n" not in str(error.value) and error.value.remedy
    return error.value


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("layout", [*LAYOUTS, *NESTED])
def test_a_layer_refuses_x_of_another_layout(layout, activation, grad):
    layer, x = layer_of(activation=activation), (LAYOUTS | NESTED)[layout](torch.randn(4, 64))
    with torch.set_grad_enabled(grad):
        remedy = refused(lambda: layer(x), "x strided").remedy
    assert (".values()" in remedy) == (layout in NESTED)


@pytest.mark.parametrize("layout", [*LAYOUTS, *NESTED])
def test_a_quantized_layer_refuses_x_of_another_layout(layout):
    quantized = QuantizedBlockSparseLinear.from_sparse(layer_of())
    refused(lambda: quantized((LAYOUTS | NESTED)[layout](torch.randn(4, 64))), "x strided")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_residual_and_sparse_values_are_refused(layout, activation, grad):
    layer, x = layer_of(activation=activation), torch.randn(4, 64)
    residual = LAYOUTS[layout](torch.randn(4, 96))
    with torch.set_grad_enabled(grad):
        refused(lambda: layer(x, residual), "residual strided")
        refused(
            lambda: ops.linear(x, layer.values, layer.index, layer.bias, residual=residual),
            "residual strided",
        )
        if layout == "coo":  # the others are matrices
            refused(lambda: ops.linear(x, layer.values.detach().to_sparse(), layer.index), "values strided")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dx_and_dw_refuse_another_layout(layout):
    layer, x, dy = layer_of(), torch.randn(4, 64), torch.randn(4, 96)
    refused(lambda: ops.linear_dx(LAYOUTS[layout](dy), layer.values, layer.index), "dy strided")
    refused(lambda: ops.linear_dw(LAYOUTS[layout](dy), x, layer.index), "dy strided")
    refused(lambda: ops.linear_dw(dy, LAYOUTS[layout](x), layer.index), "x strided")
    with torch.no_grad():
        out = torch.zeros(layer.values.shape)
        refused(lambda: ops.linear_dw(LAYOUTS[layout](dy), x, layer.index, out=out), "operands strided")


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_sparse_gradient_is_refused_in_the_backward_pass(activation):
    layer = layer_of(activation=activation)
    y = layer(torch.randn(4, 64))
    refused(lambda: y.backward(torch.randn(4, 96).to_sparse()), "operands strided")
    y = layer(torch.randn(4, 64))
    refused(lambda: torch.autograd.grad(y, layer.values, torch.randn(4, 96).to_sparse()), "operands strided")
    # Others never arrive: autograd itself compares layouts first.
    with pytest.raises(RuntimeError, match="expected layout Strided but got SparseCsr"):
        layer(torch.randn(4, 64)).backward(torch.randn(4, 96).to_sparse_csr())


@pytest.mark.parametrize("cls", [BlockSparseLinear, BlockSparseTransformersConv1D])
def test_a_checkpoint_s_weight_of_another_layout_is_refused_by_name_with_the_remedy(cls):
    """Sparse matrices of torch are taken: see test_loading.py."""
    layer = cls(64, 96, density=0.5, block=16)
    weight = torch.randn(96, 64) if cls is BlockSparseLinear else torch.randn(64, 96)
    before = {name: entry.clone() for name, entry in layer.state_dict().items()}
    said = r"\[load\] expected a strided weight, or a sparse matrix of torch, got torch\._mkldnn; .*to_dense"
    with pytest.raises(RuntimeError, match=said):
        layer.load_state_dict({"weight": LAYOUTS["mkldnn"](weight), "bias": torch.zeros(96)})
    assert all(torch.equal(before[name], entry) for name, entry in layer.state_dict().items())


def test_a_bsr_weight_still_brings_its_pattern():
    source, layer = layer_of(), layer_of()
    layer.load_state_dict({"weight": source.to_torch_bsr(), "bias": source.bias})
    assert layer.pattern == source.pattern and torch.equal(layer.values, source.values)


@pytest.mark.parametrize("name", ["values", "bias", "crow", "col"])
def test_sparse_entries_of_a_layer_s_own_checkpoint_are_refused(name):
    layer = layer_of()
    entries = dict(layer.state_dict())
    entries[name] = entries[name].to_sparse()
    with pytest.raises(RuntimeError, match=r"\[load\] expected"):
        layer_of().load_state_dict(entries)


@pytest.mark.parametrize("name", ["values", "bias", "w_scale"])
def test_sparse_entries_of_a_quantized_checkpoint_are_refused(name):
    layer = QuantizedBlockSparseLinear.from_sparse(layer_of())
    entries = dict(layer.state_dict())
    entries[name] = entries[name].to_sparse()
    with pytest.raises(RuntimeError, match=r"\[load\] expected"):
        layer.load_state_dict(entries)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_packs_a_weight_refuses_another_layout(layout):
    weight = LAYOUTS[layout](torch.randn(96, 64))
    if layout == "mkldnn":  # sparse matrices of torch are taken: see test_convert.py
        refused(lambda: BlockSparseLinear.from_dense(weight, density=0.5), "nn.Linear or a weight")
    refused(lambda: sparseloom.pattern.from_dense(weight, 16, 0.5), "strided")
    refused(lambda: sparseloom.pattern.top_k(96, 64, 16, LAYOUTS[layout](torch.randn(6, 4)), 3), "strided")
