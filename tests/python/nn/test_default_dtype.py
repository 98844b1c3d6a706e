"""torch's defaults of the program around: no tensor of ours that has a dtype or place of its own takes
them."""

import copy

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseGRU, BlockSparseLinear, QuantizedBlockSparseLinear
from sparseloom.report import report
from sparseloom.testing import Case, check_product


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.fixture
def default_device():
    """meta, on which a tensor that should hold something holds nothing: every machine has it."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)  # not the device before: naming even the CPU would leave a mode on


def test_a_layer_is_made_in_the_default_dtype_with_the_values_of_float32(default_dtype):
    layer = BlockSparseLinear(80, 72, density=0.5, block=16, seed=torch.Generator().manual_seed(3))
    assert layer.values.dtype == layer.bias.dtype == default_dtype
    torch.testing.assert_close(
        layer(torch.ones(3, 80)),
        nn.functional.linear(torch.ones(3, 80), layer.to_dense().weight, layer.bias),
        atol=0.05,
        rtol=0.05,
    )
    # The bound by fan-in is computed in float32 whatever the layer's dtype is.
    bound = sparseloom.nn.held.state.fan_in(layer.pattern)
    assert bound.dtype == torch.float32


def test_fan_in_is_exact_beyond_what_the_default_dtype_counts(default_dtype):
    pattern = sparseloom.pattern.full(8, 8 * 2049, 8)  # 16392 is no bfloat16
    assert sparseloom.nn.held.state.fan_in(pattern).tolist() == [16392.0]


def test_explicit_dtypes_are_unmoved_by_the_default(default_dtype):
    layer = BlockSparseLinear(64, 96, density=0.5, dtype=torch.float32)
    x = torch.randn(4, 64, dtype=torch.float32, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad.dtype == layer.values.grad.dtype == torch.float32
    quantized = QuantizedBlockSparseLinear.from_sparse(layer)
    quantized.kernel = "reference"
    assert quantized.w_scale.dtype == torch.float32
    torch.testing.assert_close(quantized(x.detach()), layer(x).detach(), atol=0.1, rtol=0.1)
    assert quantized.dequantized().values.dtype == torch.float32
    wide, scale = ops.quantize_rows(x.detach(), torch.int8)
    assert wide.dtype == torch.int8 and scale.dtype == torch.float32


def test_a_model_goes_the_whole_way_under_a_default_dtype(default_dtype, tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    twin = copy.deepcopy(model)
    sparseloom.sparsify_(
        model,
        {
            "0": sparseloom.BlockSparse(density=0.5, block=16),
            "2": sparseloom.BlockSparse(density=0.25, block=16, select="random", seed=1),
        },
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    sparseloom.save(model, tmp_path / "model.safetensors")
    again = copy.deepcopy(model)
    sparseloom.load(tmp_path / "model.safetensors", again)
    x = torch.randn(8, 64)
    assert torch.equal(again(x), model(x))
    with torch.no_grad():
        model[0].dense_copy = True
        assert model[0](x).dtype == default_dtype
    model[0].dense_copy = False
    report(model, x, seconds=0.02)
    assert model[2].plan(8, measure=default_dtype is not torch.float64)["kernel"]
    sparseloom.densify_(model)
    assert model[0].weight.dtype == default_dtype and twin[0].weight.shape == model[0].weight.shape


def test_a_plan_into_main_grad_is_measured_under_a_default_dtype(default_dtype):
    layer = BlockSparseLinear(64, 64, density=0.5, dtype=torch.float32)
    assert "measured_us" in str(layer.plan(8, "dw", measure=True, accumulate=True)["candidates"])


def test_the_tolerance_rule_holds_under_a_default_dtype(default_dtype):
    case = Case("default dtype", "dw", torch.float32, (16, 16), 8, 48, 40, "balanced")
    inputs = case.inputs()
    assert check_product(case, inputs, ops.linear_dw(inputs.dy, inputs.x, inputs.index)).ok


def test_layers_patterns_and_measurements_under_a_default_device(default_device):
    pattern = sparseloom.pattern.balanced(64, 96, 16, 0.5, seed=1)
    assert pattern.mask.device.type == "cpu" and pattern.blocks == 12
    assert BlockSparseLinear(96, 64, density=0.5).values.is_meta
    layer = BlockSparseLinear(96, 64, pattern=pattern, device="cpu")
    assert layer(torch.ones(2, 96, device="cpu")).device.type == "cpu" and layer.values.abs().sum() > 0
    layer(torch.ones(2, 96, device="cpu")).sum().backward()
    assert layer.pattern == pattern and layer.plan(8, measure=True)["kernel"]
    assert torch.equal(
        torch.func.vmap(layer)(torch.ones(2, 96, device="cpu")), layer(torch.ones(2, 96, device="cpu"))
    )
    quantized = QuantizedBlockSparseLinear.from_sparse(layer)
    quantized.kernel = "reference"
    assert quantized(torch.ones(2, 96, device="cpu")).device.type == "cpu"
    report(nn.Sequential(layer), torch.ones(2, 96, device="cpu"), seconds=0.02)
    case = Case("default device", "dw", torch.float32, (16, 16), 8, 48, 40, "corner")
    assert case.inputs(integers=True).x.device.type == "cpu"


@pytest.fixture
def named_default_device():
    """The CPU as the default that a script names: a mode of torch.overrides is on then."""
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def sparse_attention():
    model = nn.Sequential(nn.MultiheadAttention(32, 2, batch_first=True))
    sparseloom.sparsify_(model, {"0": sparseloom.BlockSparse(block=16, density=0.5)})
    return model[0]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: BlockSparseLinear(32, 32, density=0.5, block=16), (2, 1, 2, 3, 32)),
        (lambda: BlockSparseGRU(16, 16, density=0.5, block=16), (3, 2, 16)),
        (sparse_attention, (2, 3, 32)),
    ],
    ids=["linear of five dimensions", "gru", "attention"],
)
def test_compile_needs_no_break_under_a_default_device(named_default_device, make, shape):
    layer, x = make(), torch.randn(shape)

    def run(x):
        y = layer(x, x, x) if hasattr(layer, "num_heads") else layer(x)
        return y[0] if isinstance(y, tuple) else y

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), run(x))
