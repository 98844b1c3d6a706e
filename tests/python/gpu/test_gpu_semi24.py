"""2:4 layers on a GPU: the products beside dense, and torch's tensors of both backends."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import Semi24, ops, sparsify_
from sparseloom.nn import QuantizedSemi24Linear, Semi24Linear
from sparseloom.ops import semi24

pytestmark = pytest.mark.gpu
DTYPES = [torch.float16, torch.bfloat16]


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def layer_of(rows: int, cols: int, dtype: torch.dtype) -> Semi24Linear:
    torch.manual_seed(0)
    return Semi24Linear.from_dense(torch.randn(rows, cols, device="cuda").to(dtype), "magnitude")


@pytest.mark.parametrize("backend", ["cutlass", "cusparselt"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 128), (128, 320), (256, 64)])
def test_torchs_tensors_come_and_go_bit_by_bit(shape: tuple[int, int], dtype: torch.dtype, backend: str):
    layer = layer_of(*shape, dtype)
    sparse = layer.to_torch(backend)
    assert backend == sparse.BACKEND and sparse.is_cuda
    back = Semi24Linear.from_torch(sparse)
    assert torch.equal(bits(back.to_dense().weight), bits(layer.to_dense().weight))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_tensor_of_cusparselt_stays_where_it_is(dtype: torch.dtype):
    layer = layer_of(64, 128, dtype)
    with torch.no_grad():
        layer.values[3, :2] = torch.tensor([float("nan"), float("inf")])
    back = Semi24Linear.from_torch(layer.to_torch("cusparselt"))
    assert torch.equal(bits(back.to_dense().weight), bits(layer.to_dense().weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 128), (96, 200), (5, 11)])
@pytest.mark.parametrize("tokens", [1, 17, 300])
def test_products_are_those_of_the_dense_twin(shape: tuple[int, int], dtype: torch.dtype, tokens: int):
    layer = layer_of(*shape, dtype)
    layer.activation = "gelu"
    twin = layer.to_dense().double()
    x = torch.randn(tokens, shape[1], device="cuda").to(dtype).requires_grad_()
    y = layer(x)
    exact = x.detach().double().requires_grad_()
    want = twin(exact)
    (dx,) = torch.autograd.grad(y.float().sum(), x)
    (want_dx,) = torch.autograd.grad(want.sum(), exact)
    for mine, theirs in ((y, want), (dx, want_dx)):
        error = float((mine.double() - theirs).norm() / theirs.norm())
        assert error < 2 * torch.finfo(dtype).eps


def test_a_model_on_the_gpu_is_made_2_4_saved_and_captured(tmp_path):
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).half().cuda()
    sparsify_(net, {"[02]": Semi24("magnitude")})
    sparseloom.save(net, tmp_path / "net.safetensors")
    x = torch.randn(32, 128, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        want = net(x)
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        graph.replay()
        assert torch.equal(y, want)
        compiled = torch.compile(net, fullgraph=True)
        torch.testing.assert_close(compiled(x), want, rtol=1e-2, atol=1e-2)


def test_the_order_of_the_positions_follows_the_layer(tmp_path):
    layer = layer_of(64, 256, torch.bfloat16)
    other = Semi24Linear.from_dense(torch.randn(64, 256, device="cuda").bfloat16(), "transposable_greedy")
    x = torch.randn(8, 256, device="cuda").bfloat16()

    def check(made: Semi24Linear, like: Semi24Linear) -> None:
        with torch.no_grad():
            assert torch.equal(made(x), like.to_dense()(x)) or torch.allclose(
                made(x).float(), like.to_dense()(x).float(), rtol=2e-2, atol=2e-2
            )

    assert layer.metadata is not None and "metadata" not in layer.state_dict()
    check(layer, layer)
    check(copy.deepcopy(layer), layer)
    check(copy.deepcopy(layer).cpu().cuda(), layer)
    loaded = copy.deepcopy(layer)
    loaded.load_state_dict(other.state_dict())
    check(loaded, other)
    written = copy.deepcopy(layer)
    with torch.no_grad():
        written.positions.copy_(other.positions)
        written.values.copy_(other.values)
    check(written, other)
    tensors = {**dict(other.named_parameters()), "positions": other.positions}
    with torch.no_grad():
        y = torch.func.functional_call(layer, tensors, (x,))
    torch.testing.assert_close(y.float(), other(x).float(), rtol=2e-2, atol=2e-2)
    torch.save(layer, tmp_path / "layer.pt")
    check(torch.load(tmp_path / "layer.pt", weights_only=False), layer)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(64, 128), (264, 512), (5, 11), (96, 2080)])
@pytest.mark.parametrize("tokens", [1, 17, 300])
@pytest.mark.parametrize("fast", [False, True])
def test_quantized_products_are_those_of_the_dense_twin(
    shape: tuple[int, int], dtype: torch.dtype, tokens: int, fast: bool
):
    check_quantized(shape, dtype, tokens, fast)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("fast", [False, True])
def test_quantized_products_of_more_tiles_than_multiprocessors(dtype: torch.dtype, fast: bool):
    check_quantized((4096, 320), dtype, 5000, fast)


def check_quantized(shape: tuple[int, int], dtype: torch.dtype, tokens: int, fast: bool) -> None:
    layer = layer_of(*shape, torch.bfloat16)
    layer.activation = "relu"
    eight = QuantizedSemi24Linear.from_sparse(layer, dtype)
    eight.use_fast_accum = fast
    weight = eight.dequantized(torch.float64).to_dense()[0].weight
    for given in (torch.bfloat16, torch.float32, torch.float16):
        x = torch.randn(tokens, shape[1], device="cuda").to(given)
        quantized, x_scale = ops.quantize_rows(x, dtype)
        with torch.no_grad():
            y = eight(x)
            want = (quantized.double() * x_scale.double() @ weight.T).relu()
        assert y.dtype is given
        # of the sums' terms: the tensor cores keep 14 bits of a sum, of 128 columns or of all of them
        loose = 2.0**-20 if dtype is torch.int8 else 2.0**-10 if fast else 2.0**-13
        norm = quantized.double().abs() * x_scale.double() @ weight.abs().T
        assert ((y.double() - want).abs() <= torch.finfo(given).eps * want.abs() + loose * norm).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_every_kernel_of_quantized_layers_gives_the_same_bits(dtype: torch.dtype):
    layer = layer_of(256, 512, torch.bfloat16)
    eight = QuantizedSemi24Linear.from_sparse(layer, dtype)
    if dtype is not torch.int8:  # sums of few small integers are exact in any order
        eight.values.copy_(torch.randint(-3, 4, eight.values.shape, device="cuda").float())
    q = torch.randint(-3, 4, (40, 512), device="cuda").float().to(dtype)
    scale, how = torch.rand(40, device="cuda"), {"out_dtype": torch.float32, "metadata": eight.metadata}
    results = [
        semi24.scaled_linear(
            q, eight.values, eight.positions, 512, scale, eight.w_scale, kernel=kernel, **how
        )
        for kernel in ("sm90_wgmma", "sm90_decode", "sm80_dots")
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_quantized_model_is_captured_compiled_and_moved():
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).bfloat16().cuda()
    sparsify_(net, {"[02]": Semi24("magnitude")})
    sparseloom.quantize_(net, {"0": torch.int8, "2": torch.float8_e4m3fn})
    assert net[0].metadata is not None and "metadata" not in net[0].state_dict()
    x = torch.randn(32, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        want = net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        graph.replay()
        assert torch.equal(y, want)
        compiled = torch.compile(net, fullgraph=True)
        torch.testing.assert_close(compiled(x), want, rtol=5e-2, atol=5e-2)
        moved = copy.deepcopy(net).cpu()
        torch.testing.assert_close(moved(x.cpu()), want.cpu(), rtol=5e-2, atol=5e-2)
        assert torch.equal(moved.cuda()(x), want)


@pytest.mark.parametrize("method", ["magnitude", "transposable_greedy", "transposable_exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_pruning_on_the_gpu_has_the_bits_of_the_cpu(method: str, dtype: torch.dtype):
    weight = torch.randn(513, 1027).to(dtype)
    both = method != "magnitude"
    for mine, want in zip(
        semi24.compress(weight.cuda(), method, both), semi24.compress(weight, method, both), strict=True
    ):
        assert mine.is_cuda and torch.equal(mine.cpu(), want)
    assert torch.equal(semi24.mask(weight.cuda(), method).cpu(), semi24.mask(weight, method))


def test_pruning_on_the_gpu_waits_for_nothing_and_repeats_its_bits():
    weight = torch.randn(1024, 2048, device="cuda", dtype=torch.bfloat16)
    first = semi24.compress(weight, "transposable_greedy", True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = [semi24.compress(weight, "transposable_greedy", True) for _ in range(20)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for result in again for a, b in zip(result, first, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES, torch.float64, torch.int8])
@pytest.mark.parametrize("shape", [(64, 128), (37, 61), (5, 7)])
def test_weights_are_packed_and_unpacked_there_as_on_the_cpu(shape: tuple[int, int], dtype: torch.dtype):
    torch.manual_seed(0)
    places = torch.rand(shape[0], -(-shape[1] // 4), 4).argsort(-1)
    stored = torch.randint(0, 3, (*places.shape[:2], 1))  # none, one or two of a group
    kept = (places < stored).flatten(1)[:, : shape[1]]
    weight = torch.randint(1, 10, shape).to(dtype).masked_fill(~kept, 0)
    if dtype.is_floating_point:
        weight[3, 4:] = 0
        weight[3, 4:7] = torch.tensor([float("nan"), 0, float("-inf")])
    want_values, want_positions = semi24.pack(weight)
    values, positions = semi24.pack(weight.cuda())
    assert values.is_cuda and positions.is_cuda
    assert torch.equal(bits(values.cpu()), bits(want_values)) and torch.equal(positions.cpu(), want_positions)
    dense = semi24.unpack(values, positions, shape[1])
    assert dense.is_cuda and torch.equal(bits(dense.cpu()), bits(weight))


def test_a_weight_on_the_gpu_that_is_not_2_4_is_refused_by_its_first_group():
    weight = torch.zeros(8, 16, dtype=torch.float16, device="cuda")
    weight[5, 8:11] = 1
    with pytest.raises(sparseloom.Error, match=r"3 in row 5, group 2"):
        Semi24Linear.from_dense(weight)
    weight[5, 9] = 0
    layer = Semi24Linear.from_dense(weight)
    assert torch.equal(layer.to_dense().weight, weight)


@pytest.mark.parametrize("tokens", [1, 16, 300])
def test_a_call_of_a_layer_allocates_its_output_and_declared_scratch_alone(tokens: int):
    layer = layer_of(512, 1024, torch.bfloat16)
    eight = QuantizedSemi24Linear.from_sparse(layer, torch.int8)
    x = torch.randn(tokens, 1024, device="cuda").bfloat16()
    q, scale = ops.quantize_rows(x, torch.int8)
    weight = eight.values, eight.positions, 1024, scale, eight.w_scale
    how = {"out_dtype": torch.bfloat16, "metadata": eight.metadata}

    def made_by(call) -> int:
        call()  # plans
        before = int(torch.cuda.memory_stats()["allocation.all.allocated"])
        y = call()
        assert y.shape == (tokens, 512)
        return int(torch.cuda.memory_stats()["allocation.all.allocated"]) - before

    with torch.no_grad():
        scratch = int(layer.plan(tokens)["workspace_bytes"] > 0)
        assert 1 <= made_by(lambda: layer(x)) <= 1 + scratch
        own = partial(semi24.linear, x, layer.values, layer.positions, 1024, metadata=layer.metadata)
        able = [each["kernel"] for each in layer.plan(tokens)["candidates"] if not each["refusal"]]
        for kernel in able:
            if kernel != "dense_on_device":  # cuBLAS has a workspace of its own
                assert made_by(partial(own, kernel=kernel)) == 1, kernel
        assert made_by(lambda: semi24.scaled_linear(q, *weight, **how)) == 1
