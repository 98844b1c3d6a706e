"""torch.compile and opcheck on CUDA: one graph, any batch, CUDA graphs inside, and nothing runs but our
kernel."""

import re

import pytest
import torch
import torch.nn.functional as F
from on_gpu import capture, device_work, make, random
from torch import nn

from sparseloom.ops import operators
from sparseloom.testing import tf32_switch

pytestmark = [
    pytest.mark.gpu,
    # torch's own, at inductor's import
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]


def agree(compiled, layer, m):
    x = random(m, 2, layer.in_features, seed=m).requires_grad_()
    leaves = [x, *layer.parameters()]
    expected = layer(x)
    dy = random(*expected.shape, seed=m + 1)
    wanted = torch.autograd.grad(expected, leaves, dy)
    for _ in range(3):  # with CUDA graphs: warm-up, capture, replay
        torch.compiler.cudagraph_mark_step_begin()
        y = compiled(x)
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
        for got, want in zip(torch.autograd.grad(y, leaves, dy), wanted, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_fullgraph_with_a_dynamic_batch_forward_and_backward(mode, activation):
    layer = make(97, 70, activation=activation)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, mode=mode)
    for m in (3, 5, 17, 70):
        agree(compiled, layer, m)


def test_a_dynamic_batch_does_not_recompile():
    layer = make(64, 64)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for m in (3, 5, 17, 130):
        compiled(random(m, 64))
    assert counter.frame_count == 1


def test_a_model_under_autocast_trains_compiled():
    torch.manual_seed(0)
    model = nn.Sequential(make(64, 96, activation="gelu"), nn.LayerNorm(96, device="cuda"), make(96, 32))
    compiled, leaves = torch.compile(model, fullgraph=True), list(model.parameters())

    def gradients(call):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = call(random(40, 64))
        assert y.dtype == torch.bfloat16
        return torch.autograd.grad(y.float().square().sum(), leaves)

    for got, wanted in zip(gradients(compiled), gradients(model), strict=True):
        torch.testing.assert_close(got, wanted, atol=0.02 * float(wanted.abs().max()), rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [F.relu, F.gelu, F.silu])
def test_what_follows_moves_into_the_product_forward_and_backward(function, dtype):
    from torch._inductor.utils import run_fw_bw_and_get_code

    up, down = make(96, 192, dtype=dtype, seed=1), make(192, 96, dtype=dtype, seed=2)
    x = random(48, 96, dtype=dtype).requires_grad_()
    leaves = [x, *up.parameters(), *down.parameters()]

    def form(x):
        return x + down(function(up(x)))

    expected = form(x)
    wanted = torch.autograd.grad(expected.sum(), leaves)
    compiled = torch.compile(form, fullgraph=True)
    y, (forward, backward) = run_fw_bw_and_get_code(lambda: compiled(x))
    # up to four roundings in between; a relu's mask may differ where its input rounds to zero
    bound = 2**-16 if dtype == torch.float32 else 2**-5
    for got, want in zip([y, *(leaf.grad for leaf in leaves)], [expected, *wanted], strict=True):
        assert float((got.float() - want.float()).norm()) <= bound * float(want.float().norm())
    first = "bsr_linear" if function is F.relu else "bsr_linear_train"
    called = r"(?m)^ *(?:\w+ = )?torch\.ops\.sparseloom\.(\w+)\.default\("  # comments name them, too
    calls = forward.split("def call")[1]
    assert re.findall(called, calls) == [first, "bsr_linear"] and "triton_poi" not in calls
    assert re.findall(called, backward.split("def call")[1]) == ["bsr_linear_backward"] * 2


def test_the_loop_of_a_norm_adds_what_it_reads():
    """The product would read the residual, which costs more than it saves where a loop reads the sum."""
    from torch._inductor.utils import run_and_get_code

    up, down, x = make(96, 192, seed=1), make(192, 96, seed=2), random(48, 96)

    def form(x):
        return F.layer_norm(x + down(up(x)), (96,))

    with torch.no_grad():
        y, (code,) = run_and_get_code(torch.compile(form, fullgraph=True), x)
        torch.testing.assert_close(y, form(x), atol=1e-5, rtol=1e-5)
    kernels = re.findall(r"(?m)^ *\w+ = async_compile\.triton\('(\w+)'", code)
    assert [name.startswith("triton_per_fused_add") for name in kernels] == [True], kernels


def test_the_tf32_switch_reaches_a_compiled_layer():
    layer, x = make(512, 512, block=32).requires_grad_(False), random(300, 512)
    compiled = torch.compile(layer, fullgraph=True)
    results = []
    for on in (False, True):
        with tf32_switch(on):
            results.append((compiled(x), layer(x)))
    for got, wanted in results:
        assert torch.equal(got, wanted)
    assert not torch.equal(results[0][0], results[1][0])


def strict_layer(activation="gelu"):
    """bf16, with bias and activation, on a sparse kernel for sure."""
    layer = make(512, 384, block=32, density=0.2, activation=activation, dtype=torch.bfloat16).requires_grad_(
        False
    )
    layer.strict = True
    return layer


@pytest.mark.parametrize("tokens", [1, 16, 64, 300])
@pytest.mark.parametrize("how", ["eager", "compiled", "CUDA graph"])
def test_inference_is_one_kernel_and_nothing_else(how, tokens):
    layer, x = strict_layer(), random(tokens, 512, dtype=torch.bfloat16)
    call = lambda: layer(x)  # noqa: E731
    if how == "compiled":
        compiled = torch.compile(layer, fullgraph=True)
        call = lambda: compiled(x)  # noqa: E731
    if how == "CUDA graph":
        call = capture(call)[0].replay
    with torch.no_grad():
        ran = device_work(call)
    assert len(ran) == 1 and "sparseloom" in ran[0], ran


def test_a_backward_pass_is_our_kernels_and_nothing_else():
    layer = make(512, 512, False, block=32, density=0.2, dtype=torch.bfloat16)
    layer.strict = True
    x, dy = (
        random(64, 512, dtype=torch.bfloat16).requires_grad_(),
        random(64, 512, dtype=torch.bfloat16, seed=1),
    )
    y = layer(x)
    ran = device_work(lambda: torch.autograd.grad(y, [x, layer.values], dy, retain_graph=True))
    ours = [name for name in ran if "sparseloom" in name]
    assert ran == ours and 2 <= len(ours) <= 3, ran  # dw may end in a second kernel that adds its pieces


def recorded(monkeypatch):
    """Every operator call of a forward and a backward pass of a layer, with its arguments."""
    calls = []
    for name in ("linear_eagerly", "linear_train", "linear_backward"):
        real = getattr(operators, name.removesuffix("_eagerly"))
        monkeypatch.setattr(operators, name, lambda *a, real=real: calls.append((real, a)) or real(*a))
    layer = make(37, 27, block=8)
    for layer.activation, x in zip(
        (None, "relu", "gelu", "silu"),
        (random(5, 37), random(37), random(37, 5).t(), random(130, 37)),
        strict=True,
    ):
        layer(x.requires_grad_()).sum().backward()
    with torch.no_grad():
        layer(random(5, 37))
    monkeypatch.undo()
    index, raw = layer.index, torch.ops.sparseloom
    calls.append((raw.pack.default, (random(27, 37), index.crow, index.col, 8, 8)))
    calls.append((raw.unpack.default, (layer.values, index.crow, index.col, 27, 37)))
    return calls


def test_opcheck(monkeypatch):
    calls = recorded(monkeypatch)
    assert len({op for op, _ in calls}) == 5
    for op, arguments in calls:
        plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
        assert set(torch.library.opcheck(op, plain).values()) == {"SUCCESS"}, op


def test_export_with_a_dynamic_batch():
    layer = make(64, 48, activation="silu")
    exported = torch.export.export(
        layer, (random(4, 64),), dynamic_shapes=({0: torch.export.Dim("m", min=2, max=64)},)
    )
    x = random(9, 64)
    torch.testing.assert_close(exported.module()(x), layer(x), atol=1e-6, rtol=1e-6)
