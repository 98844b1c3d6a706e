"""BlockSparseLinear on CUDA as a module: moves, states, conversions, plans, freezing, reports."""

import copy
import gc
import io
import json
import pickle

import pytest
import torch
from on_gpu import make, random
from test_state import same_layers
from torch import nn

import sparseloom
from sparseloom import pattern
from sparseloom.nn import BlockSparseLinear

pytestmark = pytest.mark.gpu


def test_to_moves_everything_and_back():
    torch.manual_seed(0)
    layer = BlockSparseLinear(100, 70, density=0.5, block=16)
    x = torch.randn(9, 100)
    expected = layer(x).detach()
    for move in (
        lambda: layer.to("cuda"),
        layer.cpu,
        layer.cuda,
        lambda: layer.to("cpu"),
        lambda: layer.to("cuda:0"),
    ):
        move()
        assert {getattr(layer, name).device.type for name in ("packed_index", "values", "bias")} == {
            layer.values.device.type
        }
        assert layer.packed_index.dtype == torch.int32
        torch.testing.assert_close(
            layer(x.to(layer.values.device)).detach().cpu(), expected, atol=1e-5, rtol=1e-5
        )
    half = layer.to("cuda", torch.bfloat16)
    assert half.values.dtype == torch.bfloat16 and half.crow.dtype == torch.int32
    torch.testing.assert_close(
        half(x.to("cuda", torch.bfloat16)).float().cpu(), expected, atol=0.05, rtol=0.05
    )


def test_a_seed_means_the_same_layer_on_every_device():
    made = [
        BlockSparseLinear(
            100, 70, density=0.5, block=16, device=device, seed=torch.Generator().manual_seed(3)
        )
        for device in ("cpu", "cuda")
    ]
    same_layers(made[0].cuda(), made[1])


def test_initial_values_on_the_gpu_have_zero_padding_and_nn_linear_s_bounds():
    layer = make(1270, 90, density=1.0, block=32)
    dense = layer.to_dense().weight
    assert torch.equal(BlockSparseLinear.from_dense(dense, layer.pattern).values, layer.values)
    assert 0.9 * 1270**-0.5 < dense.abs().max() <= 1270**-0.5


def roundtrips(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    state = {name: tensor.cpu() for name, tensor in layer.state_dict().items()}
    filled, assigned = make(seed=5), make(seed=6, device="meta")
    filled.load_state_dict(state)
    assigned.load_state_dict(layer.state_dict(), assign=True)
    emptied = make(seed=7, device="meta").to_empty(device="cuda")
    emptied.load_state_dict(state)
    return {
        "pickle": pickle.loads(pickle.dumps(layer)),
        "deepcopy": copy.deepcopy(layer),
        "torch.save": torch.load(buffer, weights_only=False),
        "torch.load on the CPU": torch.load(
            io.BytesIO(buffer.getvalue()), weights_only=False, map_location="cpu"
        ).cuda(),
        "state_dict": filled,
        "state_dict assign": assigned,
        "meta, to_empty, load": emptied,
        "to and back": copy.deepcopy(layer).cpu().cuda(),
    }


WAYS = [
    "pickle",
    "deepcopy",
    "torch.save",
    "torch.load on the CPU",
    "state_dict",
    "state_dict assign",
    "meta, to_empty, load",
    "to and back",
]


@pytest.mark.parametrize("way", WAYS)
def test_b29_sparsity_survives(way):
    layer = make()
    found = roundtrips(layer)
    assert list(found) == WAYS
    same_layers(layer, found[way])
    found[way](random(3, 100)).sum().backward()
    assert found[way].values.grad.is_cuda and found[way].values.grad.shape == layer.values.shape


def test_save_and_load_files(tmp_path):
    model = nn.Sequential(make(activation="gelu"), nn.Linear(70, 40, device="cuda"), make(40, 30, seed=1))
    sparseloom.save(model, tmp_path / "model.safetensors")
    again = nn.Sequential(
        make(activation="gelu", seed=2), nn.Linear(70, 40, device="cuda"), make(40, 30, seed=3)
    )
    sparseloom.load(tmp_path / "model.safetensors", again)
    x = random(6, 100)
    assert again[0].values.is_cuda and torch.equal(again(x), model(x))
    on_cpu = copy.deepcopy(model).cpu()
    sparseloom.load(tmp_path / "model.safetensors", on_cpu)
    torch.testing.assert_close(on_cpu(x.cpu()), model(x).cpu(), atol=1e-4, rtol=1e-4)


def test_loading_another_pattern_takes_it_and_keeps_the_parameter():
    layer, other = make(), make(density=0.25, seed=1)
    parameter, optimizer = layer.values, torch.optim.AdamW(layer.parameters(), fused=True)
    layer(random(3, 100)).sum().backward()
    layer.load_state_dict(other.state_dict())
    same_layers(layer, other)
    assert layer.values is parameter and layer.values.grad is None
    layer(random(3, 100)).sum().backward()
    before = layer.values.detach().clone()
    optimizer.step()
    assert not torch.equal(layer.values, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("sizes", "block"), [((64, 96), (16, 32)), ((70, 101), (16, 32)), ((7, 5), (8, 8))])
def test_unpack_of_pack_is_the_masked_weight_exactly(dtype, sizes, block):
    made = pattern.random(*sizes, block, 0.5, 0)
    weight = random(*sizes, dtype=dtype)
    weight[0, 0], weight[1, 2], weight[2, 3] = -0.0, torch.nan, torch.inf
    layer = BlockSparseLinear.from_dense(weight, made)
    assert layer.values.is_cuda and layer.values.dtype == dtype
    mask = (
        made.mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: sizes[0], : sizes[1]].cuda()
    )
    expected = torch.where(mask, weight, torch.zeros((), dtype=dtype, device="cuda"))
    assert torch.equal(layer.to_dense().weight.view(torch.uint8), expected.view(torch.uint8))  # bit for bit


@pytest.mark.parametrize("select", ["magnitude", "l2", "max"])
def test_from_dense_chooses_the_same_blocks_as_on_the_cpu(select):
    dense = nn.Linear(96, 64)
    on_cpu = BlockSparseLinear.from_dense(dense, density=0.25, block=16, select=select)
    on_gpu = BlockSparseLinear.from_dense(copy.deepcopy(dense).cuda(), density=0.25, block=16, select=select)
    assert (
        on_gpu.values.is_cuda
        and on_gpu.pattern == on_cpu.pattern
        and torch.equal(on_gpu.values.cpu(), on_cpu.values)
    )
    for view in (dense.weight.detach().cuda().t(), dense.weight.detach().cuda()[::2]):
        layer = BlockSparseLinear.from_dense(view, pattern.full(*view.shape, 16))
        assert torch.equal(layer.to_dense().weight, view)


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
@pytest.mark.parametrize("int64", [False, True])
def test_torch_bsr_shares_memory_in_both_directions(int64):
    layer = make(96, 64, block=(16, 32))
    shared = layer.to_torch_bsr()
    assert shared.values().data_ptr() == layer.values.data_ptr() and shared.is_cuda
    if int64:
        indices = shared.crow_indices().long(), shared.col_indices().long()
        shared = torch.sparse_bsr_tensor(*indices, shared.values(), shared.shape)
    again = BlockSparseLinear.from_torch_bsr(shared, layer.bias.detach())
    assert again.values.data_ptr() == layer.values.data_ptr()
    same_layers(layer, again)
    again(random(4, 96)).sum().backward()
    assert again.values.grad is not None


@pytest.mark.parametrize("tokens", [1, 16, 64, 65, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plan_names_what_runs_and_strict_keeps_dense_out(dtype, tokens):
    layer = make(1024, 1024, density=0.1, block=32, activation="gelu", dtype=dtype)
    for direction in ("forward", "dx", "dw"):
        plan = layer.plan(tokens, direction)
        refusals = {candidate["kernel"]: candidate["refusal"] for candidate in plan["candidates"]}
        assert refusals[plan["kernel"]] == "" and "CPU" in refusals["reference"] and not refusals["dense"]
        assert direction in plan["text"] and plan["kernel"] in plan["text"] and plan["predicted_us"] > 0
    layer.strict = True
    plan = layer.plan(tokens)
    assert plan["kernel"] not in ("dense", "reference")
    assert (
        "strict" in {candidate["kernel"]: candidate["refusal"] for candidate in plan["candidates"]}["dense"]
    )
    assert layer(random(tokens, 1024, dtype=dtype)).isfinite().all()


def test_the_plan_goes_dense_where_nothing_is_left_out():
    assert make(2048, 2048, density=1.0, block=16, dtype=torch.bfloat16).plan(4096)["kernel"] == "dense"


def test_report_measures_on_the_gpu():
    model = nn.Sequential(
        make(1024, 2048, density=0.1, block=32, activation="gelu", dtype=torch.bfloat16),
        nn.LayerNorm(2048, device="cuda", dtype=torch.bfloat16),
        make(2048, 1024, density=0.1, block=64, dtype=torch.bfloat16),
    )
    made = sparseloom.report(model, random(4, 256, 1024, dtype=torch.bfloat16), seconds=0.1)
    assert torch.cuda.get_device_name() in made.machine and torch.cuda.get_device_name() in str(made)
    for layer in (made.layers[0], made.layers[2]):
        assert layer.tokens == 1024 and set(layer.kernels) == {"forward", "dx", "dw"}
        assert all(kernel.startswith(("sm", "dense")) for kernel in layer.kernels.values())
        # Longer than a launch alone, shorter than anything a GPU of this kind takes for 4 GFLOP.
        assert all(1 < us < 5000 for us in [*layer.times.values(), *layer.dense_times.values()])
    assert json.loads(json.dumps(made.to_dict()))["layers"][0]["kernels"]


def test_memory_is_flat_over_many_steps():
    layer, x = make(256, 512, block=32), random(64, 256).requires_grad_()

    def steps(count):
        for _ in range(count):
            layer(x).sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    gc.collect()  # what earlier tests left in cycles may go at any step
    assert steps(10) == steps(500)


@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_a_plan_measures_its_candidates_on_the_gpu(direction):
    plan = make(512, 512, block=64, dtype=torch.bfloat16).plan(256, direction, measure=True)
    measured = [c["kernel"] for c in plan["candidates"] if c["measured_us"] is not None]
    assert (
        plan["kernel"] in measured and len(measured) >= 3 and plan["text"].count("measured") >= len(measured)
    )
    assert "rates read from" in plan["text"] or "rates measured" in plan["text"]
