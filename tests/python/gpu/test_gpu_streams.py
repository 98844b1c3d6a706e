"""Streams and devices: work goes where torch's current stream is, nobody waits for it, and neighbours do not
change a bit."""

import threading
from dataclasses import replace

import pytest
import torch
from on_gpu import make, random, sleeping

import sparseloom
from sparseloom import ops
from sparseloom.nn.held.state import build_index
from sparseloom.testing import Case, cases, check_product, kernels_for, sparse_product

pytestmark = pytest.mark.gpu
#: Repeats of one product beside a busy stream.
REPEATS = 10_000
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def gradients(layer, x):
    """y, and the gradients of its sum of squares."""
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


def test_a_side_stream_does_the_work_while_the_default_one_sleeps():
    layer, x = make(256, 192, block=32), random(100, 256).requires_grad_()
    expected = gradients(layer, x)
    side = torch.cuda.Stream()
    with sleeping() as default_wakes:
        with torch.cuda.stream(side):
            got = gradients(layer, x)
        side.synchronize()
        assert not default_wakes.query()  # nothing of it was queued behind the sleep
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_a_side_stream_keeps_its_own_order():
    """x is made late on the side stream: a product on any other stream would read what the memory held
    before."""
    layer, late = make(256, 192, block=32).requires_grad_(False), random(100, 256)
    expected, x = layer(late), torch.full((100, 256), torch.nan, device="cuda")
    side = torch.cuda.Stream()
    with sleeping(side), torch.cuda.stream(side):
        x.copy_(late)
        y = layer(x)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls_return_before_the_gpu_has_begun(dtype):
    layer, x = make(256, 192, block=32, dtype=dtype), random(100, 256, dtype=dtype).requires_grad_()
    gradients(layer, x)  # kernels are loaded at their first launch, which may wait
    # of another pattern: plans are made in these very calls
    fresh = make(256, 192, block=32, dtype=dtype, seed=1)
    with sleeping() as wakes:
        gradients(fresh, x)
        with torch.no_grad():
            fresh(x)
        assert not wakes.query()


def test_nothing_synchronises_by_torch_s_own_watch():
    """On the first call of a pattern and on later ones; torch's watch sees copies to the host and waits
    through torch."""
    layers = [make(256, 192, block=32, seed=seed, activation="gelu") for seed in range(2)]
    x, dy = random(100, 256).requires_grad_(), random(100, 192)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for layer in [*layers, *layers]:
            torch.autograd.grad(layer(x), [x, *layer.parameters()], dy)
            with torch.no_grad():
                layer(x)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                layer(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_call_allocates_its_output_and_declared_scratch_alone():
    case = Case("memory", "forward", torch.bfloat16, (32, 32), 700, 512, 512, "random", 0.2, device="cuda")
    for direction in ops.DIRECTIONS:
        turned = replace(case, direction=direction)
        inputs = turned.inputs()
        for kernel in kernels_for(turned, inputs):
            if kernel == "dense":  # cuBLAS has a workspace of its own
                continue
            sparse_product(turned, inputs, kernel)
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            result = sparse_product(turned, inputs, kernel)
            plan = ops.plan(
                build_index(inputs.pattern), direction, case.dtype, case.m, kernel=kernel, device="cuda"
            )
            scratch = int(plan["workspace_bytes"] > 0)
            made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
            assert result.is_cuda and 1 <= made <= 1 + scratch, kernel


REPEATED = [
    Case("F", "forward", torch.bfloat16, (32, 32), 512, 1024, 768, "random", 0.2, device="cuda"),
    Case("dX", "dx", torch.bfloat16, (32, 32), 512, 1024, 768, "random", 0.2, device="cuda"),
    Case("dW", "dw", torch.bfloat16, (32, 32), 512, 1024, 768, "random", 0.2, device="cuda"),
    Case("F", "forward", torch.bfloat16, (32, 32), 16, 1024, 768, "random", 0.2, device="cuda"),
    Case("dX", "dx", torch.bfloat16, (32, 32), 16, 1024, 768, "random", 0.2, device="cuda"),
    Case("dW", "dw", torch.bfloat16, (16, 16), 4096, 512, 384, "random", 0.2, device="cuda"),
    Case("dW", "dw", torch.float32, (64, 64), 512, 1024, 768, "random", 0.2, device="cuda"),
]


@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_ten_thousand_repeats_beside_a_busy_stream_are_bitwise_equal(case):
    inputs, bits = case.inputs(), BITS[case.dtype]
    kernel = next(kernel for kernel in kernels_for(case, inputs) if kernel != "dense")
    if case.m <= 64:
        kernel = "sm80_decode"
    expected = sparse_product(case, inputs, kernel).view(bits)
    busy, a = torch.cuda.Stream(), random(4096, 4096, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    same = torch.ones((), dtype=torch.bool, device="cuda")
    for repeat in range(REPEATS):
        if repeat % 8 == 0:
            with torch.cuda.stream(busy):
                a @ a
        same &= (sparse_product(case, inputs, kernel).view(bits) == expected).all()
    assert bool(same), f"{case} by {kernel}"


def test_threads_with_streams_of_their_own():
    layers = [make(256, 192, block=32, seed=seed) for seed in range(4)]
    x = random(130, 256)
    with torch.no_grad():
        expected = [layer(x) for layer in layers]
    torch.cuda.synchronize()
    failed = []

    def work(i):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                if not torch.equal(layers[i % 4](x), expected[i % 4]):
                    failed.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


SECOND = [
    case for case in cases("cuda") if case.name == "ragged" and case.block in ((8, 64), (32, 32), (128, 128))
]


@pytest.mark.two_gpus
@pytest.mark.parametrize("case", SECOND, ids=str)
def test_second_device_every_kernel(case):
    """The current device is the first: launches, attributes and streams must follow the operands."""
    assert torch.cuda.current_device() == 0
    there = replace(case, device="cuda:1")
    here_inputs, inputs = case.inputs(), there.inputs()
    for kernel in kernels_for(there, inputs):
        result = sparse_product(there, inputs, kernel)
        found = check_product(there, inputs, result)
        assert found.ok, f"{kernel}: {found}"
        if kernel != "dense" and torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1):
            assert torch.equal(result.cpu(), sparse_product(case, here_inputs, kernel).cpu()), kernel
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
def test_second_device_a_layer_moves_trains_and_sleeps_alone():
    layer, x = make(256, 192, block=32), random(100, 256).requires_grad_()
    expected = [t.cpu() for t in gradients(layer, x)]
    moved, x1 = layer.to("cuda:1"), x.detach().to("cuda:1").requires_grad_()
    assert moved.values.device == moved.packed_index.device == torch.device("cuda:1")
    with sleeping() as first_wakes:  # device 0 is asleep meanwhile
        got = gradients(moved, x1)
        torch.cuda.synchronize(1)
        assert not first_wakes.query()
    assert torch.cuda.current_device() == 0
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a.cpu(), b)
    with torch.cuda.device(1):
        assert torch.equal(make(256, 192, block=32, device="cuda").values.cpu(), layer.values.detach().cpu())


@pytest.mark.two_gpus
def test_second_device_operands_of_two_devices_are_refused():
    layer, x = make(64, 48, block=16), random(5, 64, device="cuda:1")
    for call in (lambda: layer(x), lambda: ops.linear(x, layer.values.detach(), layer.index)):
        with pytest.raises(sparseloom.Error, match=r"cuda:1.*cuda:0|cuda:0.*cuda:1"):
            call()
