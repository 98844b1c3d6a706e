"""dense_copy on the GPU: in stream order, and never stale under replayed graphs."""

import copy

import pytest
import torch
from on_gpu import capture, device_work, make, random, sleeping

from sparseloom import ops
from sparseloom.nn import Semi24Linear

pytestmark = pytest.mark.gpu


def blocks(layer, x):
    """What the layer's blocks give, whatever it keeps."""
    return ops.linear(x, layer.values, layer.index, layer.bias, layer.activation).detach()


def copied(layer, x):
    """Calls the layer for inference, checks the result against the blocks as they are now, and returns
    whether a copy was read."""
    with torch.no_grad():
        torch.testing.assert_close(layer(x), blocks(layer, x), atol=1e-4, rtol=1e-4)
    return layer._copy is not None and layer._copy._weight is not None


def made(**options):
    return make(128, 96, dense_copy=True, **options)


def test_a_copy_lies_on_the_gpu_and_follows_the_layer():
    layer, x = made(activation="silu"), random(5, 128)
    assert copied(layer, x) and layer._copy._weight.is_cuda
    assert not any(
        "sparseloom" in name or "unpack" in name for name in device_work(lambda: no_grad(layer, x))
    )
    twin = copy.deepcopy(layer).cpu()
    with torch.no_grad():
        torch.testing.assert_close(twin(x.cpu()), layer(x).cpu(), atol=1e-5, rtol=1e-5)
    layer.load_state_dict(made(seed=1).state_dict())
    assert copied(layer, x)
    layer.values.detach().mul_(2)
    assert not copied(layer, x)


def no_grad(layer, x):
    with torch.no_grad():
        return layer(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_auto_follows_the_plan(dtype):
    dense, sparse = (
        make(2048, 2048, density=density, block=block, dtype=dtype, dense_copy="auto")
        for density, block in ((1.0, 16), (0.05, 64))
    )
    for layer, used in ((dense, True), (sparse, False)):
        x = random(4096, 2048, dtype=dtype)
        assert layer.plan(4096)["dense_copy"]["used"] == used
        with torch.no_grad():
            layer(x)
        assert (layer._copy._weight is not None) == used


def test_other_streams_wait_for_the_stream_that_makes_the_copy():
    layer, x = made(), random(64, 128)
    expected = blocks(layer, x)
    late, side = torch.cuda.Stream(), torch.cuda.Stream()
    with sleeping(late):
        with torch.cuda.stream(late):
            no_grad(layer, x)
        with torch.cuda.stream(side):
            got = no_grad(layer, x)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_captured_training_step_leaves_no_stale_copy(fused, requires_grad):
    layer, x, target = made(), random(64, 128), random(64, 96, seed=1)
    assert copied(layer, x)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, capturable=True, fused=fused)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    graph, _ = capture(step)
    optimizer.zero_grad(set_to_none=True)
    layer.requires_grad_(requires_grad)
    for _ in range(3):
        before = layer.values.detach().clone()
        graph.replay()
        assert not torch.equal(before, layer.values)
        assert not copied(layer, x)


def test_a_captured_average_of_the_weights_leaves_no_stale_copy():
    layer, x = made().requires_grad_(False), random(64, 128)
    layer.dense_copy = True
    source = torch.randn_like(layer.values)
    assert copied(layer, x)
    graph, _ = capture(lambda: layer.values.lerp_(source, 0.5))
    for seed in range(3):
        source.normal_(generator=torch.Generator("cuda").manual_seed(seed))
        graph.replay()
        assert not copied(layer, x)
    layer.load_state_dict(made(seed=1).state_dict())
    graph.replay()
    assert not copied(layer, x)


def test_a_captured_call_reads_the_blocks():
    layer, x = made().requires_grad_(False), random(64, 128)
    layer.dense_copy = True
    assert copied(layer, x)
    graph, y = capture(lambda: no_grad(layer, x))
    for _ in range(2):
        layer.values.mul_(2)
        graph.replay()
        torch.testing.assert_close(y, blocks(layer, x))


def test_a_captured_topology_leaves_no_stale_copy():
    layer, x = made(), random(64, 128)
    mask = layer.pattern.mask.cuda()
    assert copied(layer, x)
    graph, _ = capture(lambda: layer.set_topology_(mask))
    for shift in range(1, 4):
        mask.copy_(layer.pattern.mask.roll(shift, 1))
        graph.replay()
        assert not copied(layer, x)


def test_compiled_code_in_a_graph_follows_the_values():
    layer, x = made().requires_grad_(False), random(64, 128)
    layer.dense_copy = True
    assert copied(layer, x)
    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).clone(), blocks(layer, x), atol=1e-4, rtol=1e-4)
        layer.values.mul_(1.5)


FROZEN = {
    "2:4": lambda **options: Semi24Linear(128, 96, device="cuda", **options),
    "blocks": lambda **options: make(128, 96, **options).requires_grad_(False),
}


def frozen(kind, dtype=torch.float32):
    torch.manual_seed(0)
    layer = FROZEN[kind](dtype=dtype)
    layer.dense_copy = True
    return layer, random(64, 128, dtype=dtype).requires_grad_(), random(64, 96, seed=1, dtype=dtype)


def require_dx(dx, layer, dy):
    """The gradient of x must be that of the values as they are now."""
    weight = next(iter(layer.sparse_weights().values())).to_dense()
    expected = dy.double() @ weight.double()
    assert (dx.double() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dx_of_frozen_values_is_the_copys(kind, dtype):
    layer, x, dy = frozen(kind, dtype)
    require_dx(torch.autograd.grad(layer(x), x, dy)[0], layer, dy)
    kept = layer._copy._weight
    assert kept.is_cuda and kept.dtype == dtype
    work = device_work(lambda: torch.autograd.grad(layer(x), x, dy))
    assert work and not any("sparseloom" in name or "unpack" in name for name in work)
    assert layer._copy._weight is kept
    assert layer.plan(64, "dx")["dense_copy"]["used"]


@pytest.mark.parametrize("kind", FROZEN)
def test_dx_follows_values_that_are_written(kind):
    layer, x, dy = frozen(kind)
    y = layer(x)
    layer.values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, dy)
    require_dx(torch.autograd.grad(layer(x), x, dy)[0], layer, dy)
    assert layer._copy._weight is None
    layer.dense_copy = True
    require_dx(torch.autograd.grad(layer(x), x, dy)[0], layer, dy)
    assert layer._copy._weight is not None


@pytest.mark.parametrize("kind", FROZEN)
def test_a_captured_write_leaves_no_stale_dx(kind):
    layer, x, dy = frozen(kind)
    assert torch.autograd.grad(layer(x), x, dy) and layer._copy._weight is not None
    graph, _ = capture(lambda: layer.values.mul_(1.5))
    for _ in range(3):
        graph.replay()
        require_dx(torch.autograd.grad(layer(x), x, dy)[0], layer, dy)
        assert layer._copy._weight is None


@pytest.mark.parametrize("kind", FROZEN)
def test_a_captured_backward_pass_reads_what_is_stored(kind):
    layer, x, dy = frozen(kind)
    require_dx(torch.autograd.grad(layer(x), x, dy)[0], layer, dy)
    graph, dx = capture(lambda: torch.autograd.grad(layer(x), x, dy)[0])
    for _ in range(2):
        layer.values.mul_(2)
        graph.replay()
        require_dx(dx, layer, dy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_auto_takes_it_for_dx_of_many_tokens(dtype):
    layer = Semi24Linear(1024, 1024, device="cuda", dtype=dtype, dense_copy="auto")
    x = random(4096, 1024, dtype=dtype).requires_grad_()
    assert layer.plan(4096, "dx")["dense_copy"]["used"]
    (dx,) = torch.autograd.grad(layer(x), x, dy := random(4096, 1024, seed=1, dtype=dtype))
    require_dx(dx, layer, dy)
    assert layer._copy._weight is not None
