"""Inductor's pass that makes one kernel of a gated linear unit: what it joins and what it leaves. The kernels
are Hopper's, so the operator refuses the CPU here; tests/python/gpu/test_gpu_glu.py has the values."""

import inductor_stand
import pytest
import torch
import torch.nn.functional as F
from inductor_stand import Compiled, named

from sparseloom import Error, ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.ops import operators
from sparseloom.ops.inductor import gated

# torch's own, at inductor's import
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
as_on_cuda = inductor_stand.as_on_cuda


def layers(**how):
    how = {"density": 0.5, "block": 16, "generator": 3, **how}
    return [BlockSparseLinear(*sizes, **how) for sizes in ((48, 64), (48, 64), (64, 48))]


def operators_of(form, x, **how):
    gate, up, down = layers(**how)
    compiled = Compiled(lambda x: form(gate, up, down, x))
    with torch.no_grad():
        try:
            compiled.call(x)
        except RuntimeError as error:  # of the operator
            assert "operands on a CUDA device" in str(error)
    return compiled.operators()


JOINED = {
    "silu": (lambda g, u, d, x: d(F.silu(g(x)) * u(x)), "linear_glu(silu) ."),
    "the other order": (lambda g, u, d, x: d(u(x) * F.silu(g(x))), "linear_glu(silu) ."),
    "gelu": (lambda g, u, d, x: d(F.gelu(g(x)) * u(x)), "linear_glu(gelu) ."),
    "relu": (lambda g, u, d, x: d(F.relu(g(x)) * u(x)), "linear_glu(relu) ."),
    "bilinear": (lambda g, u, d, x: d(g(x) * u(x)), "linear_glu ."),
    "a view behind": (lambda g, u, d, x: d((F.silu(g(x)) * u(x)).view(-1, 64)), "linear_glu(silu) ."),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", JOINED)
def test_joined(name, bias, dtype, as_on_cuda, monkeypatch):
    monkeypatch.setattr(gated, "_pays", lambda *_: True)
    form, expected = JOINED[name]
    assert operators_of(form, torch.randn(3, 5, 48, dtype=dtype), dtype=dtype, bias=bias) == named(expected)


LEFT = {
    "read by something else": lambda g, u, d, x: d(F.silu(h := g(x)) * u(x)) + h.mean(),
    "a gate read twice": lambda g, u, d, x: d((s := F.silu(g(x))) * u(x)) + s.mean(),
    "factors read twice": lambda g, u, d, x: d(F.silu(g(x)) * (h := u(x))) + h.mean(),
    "two inputs": lambda g, u, d, x: d(F.silu(g(x)) * u(x * 2)),
    "another function": lambda g, u, d, x: d(F.hardswish(g(x)) * u(x)),
    "activated factors": lambda g, u, d, x: d(F.silu(g(x)) * F.relu(u(x)).abs()),
    "a square": lambda g, u, d, x: d((h := g(x)) * h),
    "a scale on the way": lambda g, u, d, x: d(F.silu(g(x)) * u(x) * 2),
    "not stored": lambda g, u, d, x: (F.silu(g(x)) * u(x)).sum(),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name, as_on_cuda, monkeypatch):
    monkeypatch.setattr(gated, "_pays", lambda *_: True)
    assert "linear_glu(silu)" not in (found := operators_of(LEFT[name], torch.randn(3, 5, 48)))
    assert "linear_glu" not in found


def test_left_in_training(as_on_cuda, monkeypatch):
    monkeypatch.setattr(gated, "_pays", lambda *_: True)
    gate, up, down = layers()
    compiled = Compiled(lambda x: down(F.silu(gate(x)) * up(x)))
    compiled.call(torch.randn(3, 48)).sum().backward()
    assert not any("glu" in each for each in compiled.operators())


def test_left_where_the_plan_does_not_expect_a_gain():
    assert "linear_glu(silu)" not in operators_of(JOINED["silu"][0], torch.randn(3, 48))  # on the CPU


def test_left_where_blocks_move(as_on_cuda, monkeypatch):
    monkeypatch.setattr(gated, "_pays", lambda *_: True)
    gate, up, down = layers()
    product, moving = operators.linear, -2  # the digest of blocks whose places only the device knows

    def form(x):
        one = product(x, gate.values, gate.packed_index, 64, gate.bias, 0, None, -1, False, False, moving)
        other = product(x, up.values, up.packed_index, 64, up.bias)
        return product(F.silu(one) * other, down.values, down.packed_index, 48, down.bias)

    compiled = Compiled(form)
    with torch.no_grad():
        compiled.call(torch.randn(3, 48))
    assert compiled.operators() == named(". . .")


def test_refuses_the_cpu_and_one_bias():
    gate, up, _ = layers()
    x = torch.randn(3, 48)
    given = x, gate.values, gate.packed_index, up.values, up.packed_index, 64
    with pytest.raises(Error, match="operands on a CUDA device"):
        ops.call("bsr_linear_glu", *given)
    assert operators.call("glu_ratio", [64, 48, 16, 16, 6, 6], "bf16", 3, -1, True, 0) == float("inf")
    with pytest.raises(Error, match="two numbers of blocks"):
        ops.call("glu_ratio", [64, 48], "bf16", 3, 0, True, 0)


def test_fake_kernel_and_flops():
    from torch.utils.flop_counter import FlopCounterMode

    gate, up, _ = (each.to("meta") for each in layers())
    with FlopCounterMode(display=False) as counted:
        y = torch.ops.sparseloom.bsr_linear_glu(
            torch.empty(3, 48, device="meta"), gate.values, gate.packed_index, up.values, up.packed_index, 64
        )
    assert y.shape == (3, 64)
    assert counted.get_total_flops() == 2 * 3 * (gate.values.numel() + up.values.numel())
