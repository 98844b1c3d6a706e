"""dW added to an fp32 gradient: ops.linear_dw(out=), and layers whose values have a main_grad, Megatron-LM's
protocol."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(dtype=torch.float32, start=0.0, **options):
    torch.manual_seed(0)
    options = {"density": 0.5, "block": 16, "fuse_wgrad_accumulation": True} | options
    layer = BlockSparseLinear(100, 70, dtype=dtype, **options)
    layer.values.main_grad = torch.full_like(layer.values, start, dtype=torch.float32)
    return layer


def rows(count, features, dtype=torch.float32, seed=1):
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_dw(layer, dy, x):
    dense, index = dy.double().t() @ x.double(), layer.index
    return ops.call("pack", dense.contiguous(), index.crow, index.col, *layer.block)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_micro_batches_are_added_in_fp32(dtype):
    layer, expected = make(dtype, start=0.25), 0
    for seed in range(2):
        x, dy = rows(24, 100, dtype, seed), rows(24, 70, dtype, seed + 10)
        layer(x).backward(dy)
        expected = expected + exact_dw(layer, dy, x)
    assert layer.values.grad is None and layer.bias.grad is not None
    inside = exact_dw(layer, torch.ones(1, 70), torch.ones(1, 100))  # 1 where the matrix is
    torch.testing.assert_close(
        layer.values.main_grad.double() * inside, expected + 0.25 * inside, atol=2e-5, rtol=1e-5
    )
    assert torch.equal(
        layer.values.main_grad[inside == 0], torch.full_like(expected, 0.25).float()[inside == 0]
    )


def test_sixteen_micro_batches_beat_a_bf16_gradient():
    layer = make(torch.bfloat16)
    plain = copy.deepcopy(layer)
    plain.fuse_wgrad_accumulation = False
    exact = torch.zeros_like(layer.values, dtype=torch.float64)
    for seed in range(16):
        x, dy = rows(32, 100, torch.bfloat16, seed), rows(32, 70, torch.bfloat16, seed + 100)
        for net in (layer, plain):
            net(x).backward(dy)
        exact += exact_dw(layer, dy, x)
    errors = [float((g.double() - exact).abs().max()) for g in (layer.values.main_grad, plain.values.grad)]
    assert errors[0] < 1e-3 * errors[1], errors
    assert errors[0] < 1e-6 * float(exact.abs().max())


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_all_else_is_as_without(activation):
    fused = make(activation=activation)
    plain = copy.deepcopy(fused)
    plain.fuse_wgrad_accumulation = False
    dy = rows(9, 70, seed=2)
    xs = [rows(9, 100).requires_grad_() for _ in range(2)]
    ys = [net(x) for net, x in zip((fused, plain), xs, strict=True)]
    for y in ys:
        y.backward(dy)
    assert (
        torch.equal(ys[0], ys[1])
        and torch.equal(xs[0].grad, xs[1].grad)
        and torch.equal(fused.bias.grad, plain.bias.grad)
    )
    torch.testing.assert_close(fused.values.main_grad, plain.values.grad, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_autocast_reads_the_parameters_own_main_grad(bias):
    layer = make(bias=bias)
    x, dy = rows(24, 100), rows(24, 70, torch.bfloat16, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.backward(dy)
    assert layer.values.grad is None
    torch.testing.assert_close(
        layer.values.main_grad.double(), exact_dw(layer, dy, x.bfloat16()), atol=1e-5, rtol=1e-5
    )


def test_a_buffer_put_there_after_the_forward_pass_is_the_one():
    layer = make()
    y, first = layer(rows(3, 100)), layer.values.main_grad
    layer.values.main_grad = torch.zeros_like(first)
    y.sum().backward()
    assert not first.any() and layer.values.main_grad.any()


def test_a_slice_of_a_frameworks_buffer_is_added_to_in_place():
    layer, plain = make(), make()
    buffer = torch.zeros(layer.values.numel() + 2)
    layer.values.main_grad = buffer[1:-1].view(layer.values.shape)  # at 4 bytes past what torch aligns
    for net in (layer, plain):
        net(rows(5, 100)).sum().backward()
    assert (
        torch.equal(buffer[1:-1].view(layer.values.shape), plain.values.main_grad)
        and buffer[0] == buffer[-1] == 0
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_megatrons_flag_is_set_and_its_hooks_get_a_gradient(autocast):
    layer, seen = make(), []
    layer.values.grad_added_to_main_grad = False
    layer.values.register_post_accumulate_grad_hook(
        lambda p: seen.append((p.grad.shape, p.grad_added_to_main_grad))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = layer(rows(5, 100))
    y.sum().backward()
    assert layer.values.grad_added_to_main_grad is True and seen == [(layer.values.shape, True)]
    assert layer.values.main_grad.any()


def test_without_the_flag_hooks_see_no_gradient():
    layer, seen = make(), []
    layer.values.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
    layer(rows(5, 100)).sum().backward()
    assert seen == [None] and not hasattr(layer.values, "grad_added_to_main_grad")


def test_nothing_is_added_where_no_gradient_of_the_values_is_asked_for():
    layer, x = make(), rows(5, 100).requires_grad_()
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = layer(x)
        torch.autograd.grad(y.sum(), [x, layer.bias])
    layer.values.requires_grad_(False)
    layer(x).sum().backward()
    with torch.no_grad():
        layer(x)
    assert not layer.values.main_grad.any() and x.grad is not None


def test_autograd_grad_of_the_values_says_where_their_gradient_is():
    layer = make()
    with pytest.raises(
        sparseloom.Error, match="backward\\(\\), which leaves the gradient of values in their main_grad"
    ):
        torch.autograd.grad(layer(rows(5, 100)).sum(), [layer.bias, layer.values])
    layer(rows(5, 100)).sum().backward(inputs=[layer.values])
    assert layer.values.main_grad.any() and layer.bias.grad is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_adds_once(reentrant):
    layer, plain, x = make(activation="gelu"), make(activation="gelu"), rows(5, 100).requires_grad_()
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    plain(x).sum().backward()
    assert torch.equal(layer.values.main_grad, plain.values.main_grad)


def test_several_dimensions_and_no_tokens():
    layer, plain = make(), make()
    x = rows(24, 100)
    layer(x.view(2, 3, 2, 2, 100)).sum().backward()
    plain(x).sum().backward()
    assert torch.equal(layer.values.main_grad, plain.values.main_grad)
    layer(x[:0]).sum().backward()
    assert torch.equal(layer.values.main_grad, plain.values.main_grad)


def test_new_blocks_start_with_a_main_grad_of_zero():
    layer = make(start=1.0)
    mask = torch.zeros_like(layer.pattern.mask)
    mask.view(-1)[: len(layer.values)] = True
    moved = layer.set_topology_(mask)
    assert (moved < 0).any() and torch.equal(layer.values.main_grad.amax((1, 2)), (moved >= 0).float())


def test_the_option_is_copied_shown_and_not_saved():
    layer = make()
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert again.fuse_wgrad_accumulation and "fuse_wgrad_accumulation=True" in repr(again)
    assert set(layer.state_dict()) == {"values", "bias", "crow", "col"}
    plain = BlockSparseLinear(64, 64, density=0.5)
    assert not plain.fuse_wgrad_accumulation and "fuse_wgrad" not in repr(plain)
    plain.fuse_wgrad_accumulation = True  # a layer that sparsify_ made
    with pytest.raises(sparseloom.Error, match="main_grad"):
        plain(torch.randn(2, 64)).sum().backward()


def broken(main_grad):
    layer = make()
    layer.values.main_grad = main_grad(layer.values)
    return layer


@pytest.mark.parametrize(
    ("main_grad", "expected", "got"),
    [
        (lambda v: None, "a tensor on cpu in values.main_grad", "got none"),
        (lambda v: 3, "a tensor on cpu in values.main_grad", "got 3"),
        (lambda v: torch.zeros_like(v, dtype=torch.bfloat16), "contiguous float32 of shape", "ScalarType 15"),
        (lambda v: torch.zeros(v.shape[0] + 1, 16, 16), "contiguous float32 of shape", f"[{18 + 1}, 16, 16]"),
        (lambda v: torch.zeros(v.shape).transpose(1, 2), "contiguous float32 of shape", "not contiguous"),
        (lambda v: torch.zeros(v.numel()), "main_grad of shape [blocks, block rows, block cols]", "got ["),
        (
            lambda v: torch.zeros(v.shape, device="meta"),
            "a tensor on cpu in values.main_grad",
            "got one on meta",
        ),
    ],
)
def test_a_main_grad_that_does_not_fit_is_named(main_grad, expected, got):
    layer = broken(main_grad)
    y = layer(rows(3, 100))
    with pytest.raises(sparseloom.Error) as caught:
        y.sum().backward()
    assert expected in str(caught.value) and got in str(caught.value), str(caught.value)
    assert layer.values.grad is None and caught.value.remedy


def test_a_second_differentiation_is_refused():
    layer, x = make(), rows(3, 100).requires_grad_()
    with pytest.raises(sparseloom.Error, match="create_graph=False"):
        torch.autograd.grad(layer(x).square().sum(), [x, layer.bias, layer.values], create_graph=True)
    assert not layer.values.main_grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_dw_adds_to_out(dtype):
    layer, x, dy = make(dtype), rows(11, 100, dtype), rows(11, 70, dtype, 2)
    out = torch.full(layer.values.shape, 2.0)
    version = out._version
    assert ops.linear_dw(dy, x, layer.index, out=out) is out and out._version > version
    expected = exact_dw(layer, dy, x)
    torch.testing.assert_close(out.double() - 2, expected, atol=1e-5, rtol=1e-5)
    for kernel in ops.info()["kernels"]:
        try:
            again = ops.linear_dw(dy, x, layer.index, kernel=kernel, out=torch.full(layer.values.shape, 2.0))
        except sparseloom.Error:
            continue
        torch.testing.assert_close(again, out, atol=1e-5, rtol=1e-5)


def test_linear_dw_to_out_is_not_differentiable_and_says_so():
    layer, x, dy = make(), rows(3, 100).requires_grad_(), rows(3, 70)
    out = torch.zeros(layer.values.shape)
    with pytest.raises(sparseloom.Error, match="x that requires one"):
        ops.linear_dw(dy, x, layer.index, out=out)
    assert not out.any()
    with torch.no_grad():
        assert ops.linear_dw(dy, x, layer.index, out=out).any()
    with pytest.raises(sparseloom.Error, match="dvalues to add to as contiguous float32"):
        ops.linear_dw(dy, x.detach(), layer.index, out=out.double())
    with pytest.raises(sparseloom.Error, match="on dw of f32, f16 or bf16 only"):
        ops.linear_dw(dy.double(), x.detach().double(), layer.index, out=out)


@pytest.fixture
def fresh_dynamo():
    import torch._dynamo.testing

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_compiled_model_breaks_its_graph_there_and_adds_the_same(fresh_dynamo, activation):
    def model():
        layer = make(activation=activation)
        return nn.Sequential(nn.Linear(100, 100), layer, nn.Linear(70, 8))

    nets = [model() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(nets[0], backend=counter)
    for seed in range(3):
        x = rows(6, 100, seed=seed)
        if seed == 2:  # another buffer, as after a step
            for net in nets:
                net[1].values.main_grad = torch.zeros_like(net[1].values)
        compiled(x).square().sum().backward()
        nets[1](x).square().sum().backward()
    assert nets[0][1].values.grad is None and counter.frame_count > 0
    torch.testing.assert_close(nets[0][1].values.main_grad, nets[1][1].values.main_grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(nets[0][0].weight.grad, nets[1][0].weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_is_an_ordinary_one(fresh_dynamo, strict):
    layer, x = make(), rows(3, 100)
    exported = torch.export.export(layer, (x,), strict=strict).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(x), layer(x))


def test_compiled_inference_needs_no_break(fresh_dynamo):
    layer, x = make(), rows(3, 100)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(x)  # and one graph cannot hold what adds to main_grad
