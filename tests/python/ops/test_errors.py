"""The one exception: its parts, its text, and the C++ core's errors arriving as it."""

import pickle

import pytest
import torch

import sparseloom
from sparseloom import ops
from sparseloom.errors import translated
from sparseloom.nn.arguments import require_device


def test_error_carries_its_parts_and_reads_as_in_cpp():
    error = sparseloom.Error("linear", "x [..., 4]", "[3]", "pass 4 features")
    assert str(error) == "[linear] expected x [..., 4], got [3]; pass 4 features"
    assert (error.op, error.expected, error.actual, error.remedy) == (
        "linear",
        "x [..., 4]",
        "[3]",
        "pass 4 features",
    )
    assert isinstance(error, RuntimeError) and isinstance(error, ValueError)


def test_error_survives_pickle():
    error = pickle.loads(pickle.dumps(sparseloom.Error("a", "b", "c", "d")))
    assert (error.op, error.expected, error.actual, error.remedy) == ("a", "b", "c", "d")


def test_translated_leaves_foreign_errors_alone():
    foreign = RuntimeError("out of memory")
    assert translated(foreign) is foreign


GENERATE = ("generate_pattern",)


@pytest.mark.parametrize(
    ("arguments", "op", "fragments"),
    [
        ((*GENERATE, "random", 64, 64, 12, 32, [0.5], 0), "block", ("12x32", "{8, 16, 32, 64, 128}")),
        ((*GENERATE, "random", 64, 64, 32, 32, [1.5], 0), "random", ("density in [0, 1]", "1.5")),
        ((*GENERATE, "block_diagonal", 64, 64, 32, 32, [9], 0), "block_diagonal", ("groups", "9")),
        ((*GENERATE, "random", 64, 64, 32, 32, [], 0), "generate", ("random", "density", "0 numbers")),
        ((*GENERATE, "rando", 64, 64, 32, 32, [0.5], 0), "generate", ("watts_strogatz", "rando")),
    ],
)
def test_cpp_errors_arrive_with_their_parts(arguments, op, fragments):
    with pytest.raises(sparseloom.Error) as caught:
        ops.call(*arguments)
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)
    assert caught.value.remedy and caught.value.expected and caught.value.actual
    assert op in caught.value.op or "pattern" in caught.value.op


def make():
    return sparseloom.nn.BlockSparseLinear(64, 48, density=0.5, block=16)


def plan_of_int8(**asked):
    return ops.plan(make().index, "forward", torch.int8, 4, **asked)


@pytest.mark.parametrize(
    ("call", "expected", "actual", "remedy"),
    [
        (lambda: make()(torch.randn(2, 63)), "x [..., 64]", "[2, 63]", "in_features"),
        (lambda: make()(torch.tensor(1.0)), "x [..., 64]", "[]", "in_features"),
        (lambda: make()(torch.randn(2, 64).bfloat16()), "x of torch.float32", "torch.bfloat16", "autocast"),
        (lambda: make()(torch.randn(2, 64, device="meta")), "x on cpu", "meta", ".to()"),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8),
            "one of density and pattern",
            "neither",
            "density=0.1",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, pattern=make().pattern),
            "one of",
            "both",
            "pattern=",
        ),
        (lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=-0.1), "density in [0, 1]", "-0.1", ""),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, block=12),
            "{8, 16, 32, 64, 128}",
            "12",
            "",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, block=(8, 8, 8)),
            "a pair of ints",
            "(8, 8, 8)",
            "(32, 64)",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, block="8"),
            "a pair of ints",
            "'8'",
            "block=32",
        ),
        (lambda: sparseloom.nn.BlockSparseLinear(-8, 8, density=0.1), ">= 0", "-8", ""),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, pattern=make().pattern),
            "8 x 8",
            "48 x 64",
            "rows=out_features",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, activation="elu"),
            "'silu'",
            "'elu'",
            "after the layer",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear(8, 8, density=0.1, dtype=torch.int8),
            "float32",
            "torch.int8",
            ".to(",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear.from_dense(torch.randn(8, 8).to_mkldnn(), density=0.5),
            "nn.Linear or a weight",
            "mkldnn",
            "",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear.from_dense(torch.randn(8, 8)),
            "one of density and pattern",
            "neither",
            "",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear.from_dense(torch.randn(8, 8), density=0.5, select="l3"),
            "magnitude",
            "'l3'",
            "",
        ),
        (
            lambda: sparseloom.nn.BlockSparseLinear.from_torch_bsr(torch.randn(8, 8)),
            "sparse_bsr",
            "strided",
            "from_dense takes strided weights",
        ),
        (lambda: ops.kernel_number("tensor_core"), "reference", "'tensor_core'", "sparseloom info"),
        (lambda: make().plan(4, "sideways"), "forward, dx, dw", "'sideways'", "choose"),
        (
            lambda: make().plan(4, "dx", residual=True),
            "a residual on forward",
            "dx of f32",
            "a pass of your own",
        ),
        (
            lambda: make().plan(4, "dw", residual=True),
            "a residual on forward",
            "dw of f32",
            "a pass of your own",
        ),
        (
            lambda: make().plan(4, accumulate=True),
            "accumulate, into fp32, on dw",
            "forward of f32",
            "a pass of your own",
        ),
        (
            lambda: make().plan(4, "dx", accumulate=True),
            "accumulate, into fp32, on dw",
            "dx of f32",
            "a pass of your own",
        ),
        (
            lambda: make().plan(4, "dw", torch.float64, accumulate=True),
            "of f32, f16 or bf16 only",
            "dw of f64",
            "of your own",
        ),
        (
            lambda: plan_of_int8(residual=True),
            "neither residual nor accumulate beside int8",
            "residual",
            "of your own",
        ),
        (
            lambda: plan_of_int8(accumulate=True),
            "neither residual nor accumulate beside int8",
            "accumulate",
            "a pass of your own",
        ),
    ],
)
def test_wrong_arguments_are_named_with_expectation_and_remedy(call, expected, actual, remedy):
    with pytest.raises(sparseloom.Error) as caught:
        call()
    error = caught.value
    assert str(error) == f"[{error.op}] expected {error.expected}, got {error.actual}; {error.remedy}"
    assert expected in error.expected and actual in error.actual and remedy in error.remedy, str(error)
    assert "{" not in error.actual and error.remedy


def test_a_device_without_kernels_is_refused_by_name():
    # The check itself: a CPU build of torch refuses such a tensor before the layer sees it.
    with pytest.raises(
        sparseloom.Error, match=r"expected a device with kernels in this build .*, got xpu; pass device='cpu'"
    ):
        require_device(torch.device("xpu"))
