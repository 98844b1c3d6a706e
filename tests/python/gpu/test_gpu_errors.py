"""What CUDA calls refuse, and in which words."""

import pytest
import torch
from on_gpu import make, random

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case

pytestmark = pytest.mark.gpu


def operands():
    return Case("errors", "forward", torch.float32, (16, 16), 5, 64, 48, bias=True, device="cuda").inputs()


def bare(**changed):
    """ops.linear on operands of which some are changed."""
    inputs = operands()
    given = {"x": inputs.x, "values": inputs.values, "index": inputs.index, "bias": inputs.bias}
    return ops.linear(**(given | {name: change(given[name]) for name, change in changed.items()}))


def to_cpu(part):
    return part.to("cpu")


def operands_of():
    inputs = operands()
    return inputs.x, inputs.values, inputs.index


#: The call, and what its message must say besides its four parts; capitals do not count.
REFUSED = {
    "fp64 layer": (
        lambda: make(dtype=torch.float64)(random(2, 100, dtype=torch.float64)),
        "bf16 on CUDA",
        "got f64",
        ".float()",
    ),
    "fp64 plan": (
        lambda: make(dtype=torch.float64).plan(4),
        "f32, f16 or bf16 on CUDA",
        "got f64",
        ".float()",
    ),
    "x on the CPU": (lambda: make()(torch.randn(2, 100)), "cuda:0", "cpu", ".to()"),
    "layer on the CPU": (lambda: make(device="cpu")(random(2, 100)), "cuda:0", "cpu", ".to()"),
    "values on the CPU": (
        lambda: bare(values=to_cpu),
        "values on cuda:0, as x",
        "got the CPU",
        "to one device",
    ),
    "bare x on the CPU": (lambda: bare(x=to_cpu), "values on the CPU, as x", "got cuda:0", "to one device"),
    "bias on the CPU": (lambda: bare(bias=to_cpu), "bias on cuda:0, as x", "got the CPU", "to one device"),
    "index on the CPU": (lambda: bare(index=to_cpu), "on cuda:0, as x", "got the CPU", "to one device"),
    "int x": (lambda: make()(random(2, 100).int()), "x of torch.float32", "got torch.int32", "autocast"),
    "bf16 x": (
        lambda: make()(random(2, 100).bfloat16()),
        "x of torch.float32",
        "got torch.bfloat16",
        "autocast",
    ),
    "too few features": (lambda: make()(random(2, 99)), "x [..., 100]", "got [2, 99]", "in_features"),
    "int operands": (
        lambda: bare(x=lambda x: x.int(), values=lambda v: v.int()),
        "float32, float16",
        "convert",
    ),
    "unknown kernel": (
        lambda: ops.linear(*operands_of(), kernel="sm70_wmma"),
        "sm80_mma",
        "got 'sm70_wmma'",
        "sparseloom info",
    ),
    "a CPU kernel": (
        lambda: ops.linear(*operands_of(), kernel="reference"),
        "kernel 'reference'",
        "runs on the CPU",
        "refusals",
    ),
    "TF32 by force": (
        lambda: ops.linear(*operands_of(), kernel="sm80_mma"),
        "kernel 'sm80_mma'",
        "allow_tf32",
        "refusals",
    ),
    "block of 12": (
        lambda: BlockSparseLinear(8, 8, density=0.1, block=12, device="cuda"),
        "{8, 16, 32, 64, 128}",
        "12",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls_are_named_with_expectation_and_remedy(name):
    call, *said = REFUSED[name]
    with pytest.raises(sparseloom.Error) as caught:
        call()
    error = caught.value
    assert str(error) == f"[{error.op}] expected {error.expected}, got {error.actual}; {error.remedy}"
    assert all(part.lower() in str(error).lower() for part in said), str(error)
    assert error.remedy and not isinstance(error, torch.OutOfMemoryError)


def test_the_layer_works_after_all_of_them():
    for call, *_ in REFUSED.values():
        with pytest.raises(sparseloom.Error):
            call()
    torch.cuda.synchronize()  # no launch was left half done
    assert make()(random(2, 100)).isfinite().all()


def test_fp64_backward_and_moves_are_not_blocked_by_the_refusal():
    layer = make(dtype=torch.float64)
    assert layer.to_dense().weight.dtype == torch.float64
    on_cpu = layer.cpu()
    assert on_cpu(torch.randn(2, 100, dtype=torch.float64)).dtype == torch.float64
    assert on_cpu.float().cuda()(random(2, 100)).is_cuda
