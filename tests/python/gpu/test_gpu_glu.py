"""The gated linear unit of Hopper, act(x W^T) * (x V^T) in one kernel, against two products in float64."""

import pytest
import torch
from on_gpu import capture, device_work, make, poison, random
from torch import nn
from torch.nn import functional as F

from sparseloom import Error, Pattern, ops
from sparseloom.nn import BlockSparseLinear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="a kernel of Hopper",
    ),
]
bf16, f16 = torch.bfloat16, torch.float16
NARROW, WIDE = "sm90_wgmma_narrow", "sm90_wgmma"


def pair(features, outputs, **how):
    return [make(features, outputs, seed=seed, **how) for seed in (1, 2)]


def glu(x, gate, up, activation="silu", kernel=None, strict=False):
    row = -1 if kernel is None else ops.call("row_number", kernel)
    return ops.call(
        "bsr_linear_glu", x, gate.values, gate.packed_index, up.values, up.packed_index, gate.out_features,
        gate.bias, up.bias, tuple(ops.ACTIVATIONS).index(activation), row, strict,
    )  # fmt: skip


def expected(x, gate, up, activation):
    """In float64 of products that are rounded as the layers store them."""

    def rounded(layer):
        weight = layer.to_dense().weight.double()
        z = F.linear(x.double(), weight, None if layer.bias is None else layer.bias.double())
        return z.to(x.dtype).double()

    return ops.activate(rounded(gate), activation) * rounded(up)


def close(got, want):
    # One rounding of the result, and products whose sums are rounded to the neighbour.
    error = (got.double() - want).norm() / want.norm()
    assert error < (4e-3 if got.dtype == bf16 else 6e-4), error
    assert got.isfinite().all()


@pytest.mark.parametrize("activation", list(ops.ACTIVATIONS))
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_activations(activation, dtype):
    gate, up = pair(512, 768, block=64, dtype=dtype)
    x = random(700, 512, dtype=dtype)
    close(glu(x, gate, up, activation), expected(x, gate, up, activation))


@pytest.mark.parametrize("tokens", [1, 63, 257, 3000])
@pytest.mark.parametrize("outputs", [768, 760, 72])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("block", "kernel"),
    [
        (32, WIDE),
        (32, NARROW),
        ((32, 64), WIDE),
        ((32, 128), NARROW),
        (64, WIDE),
        ((64, 32), WIDE),
        ((64, 128), WIDE),
    ],
)
@pytest.mark.parametrize("density", [0.1, 0.6])
def test_shapes(tokens, outputs, bias, block, kernel, density):
    gate, up = pair(640, outputs, block=block, dtype=bf16, bias=bias, density=density)
    x = random(tokens, 640, dtype=bf16)
    poison(tokens * outputs * 2)
    close(glu(x, gate, up, kernel=kernel), expected(x, gate, up, "silu"))


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("tokens", [1, 7, 16])
@pytest.mark.parametrize("outputs", [768, 760, 72])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block", [32, (32, 64), 64, (64, 32), 128])
def test_few_tokens(dtype, tokens, outputs, bias, block):
    gate, up = pair(640, outputs, block=block, dtype=dtype, bias=bias, density=0.4)
    x = random(tokens, 640, dtype=dtype)
    poison(tokens * outputs * 2)
    close(glu(x, gate, up, kernel="sm90_decode_lines"), expected(x, gate, up, "silu"))


def test_weights_of_unlike_patterns_and_empty_block_rows():
    """NaN under absent blocks reaches nothing; outputs without blocks are those of the biases."""
    masks = torch.zeros(2, 8, 6, dtype=torch.bool)
    masks[0, ::2, :3] = True
    masks[1, 1:4, 2:] = True
    patterns = (Pattern(512, 384, (64, 64), mask) for mask in masks)
    gate, up = (BlockSparseLinear(384, 512, pattern=each, device="cuda", dtype=bf16) for each in patterns)
    for layer, seed in ((gate, 1), (up, 2)):
        layer.bias.data.copy_(random(512, seed=seed))
    x = random(300, 384, dtype=bf16)
    x[:, 320:] = float("nan")
    up_sees = torch.nan_to_num(x)
    got = glu(x, gate, up)
    assert got[:, 256:].isfinite().all() and got[:, :64].isfinite().all()
    close(got[:, 256:], expected(up_sees, gate, up, "silu")[:, 256:])
    assert got[:, 64:256].isnan().all()


def test_views_streams_and_graphs():
    gate, up = pair(512, 768, block=64, dtype=bf16)
    whole = random(4, 90, 1024, dtype=bf16)
    x = whole[..., :512]
    assert glu(x, gate, up).shape == (4, 90, 768)
    close(glu(x, gate, up), expected(x, gate, up, "silu"))
    graph, result = capture(lambda: glu(x, gate, up))
    whole.copy_(random(4, 90, 1024, seed=5, dtype=bf16))
    graph.replay()
    assert torch.equal(result, glu(x, gate, up))


def test_refusals():
    gate, up = pair(512, 768, block=128, dtype=bf16)
    x = random(300, 512, dtype=bf16)
    with pytest.raises(Error, match="block rows of both weights in one tile"):
        glu(x, gate, up)
    with pytest.raises(Error, match="bias of both weights"):
        gate, up = pair(512, 768, block=64, dtype=bf16)
        ops.call(
            "bsr_linear_glu", x, gate.values, gate.packed_index, up.values, up.packed_index, 768, gate.bias
        )
    with pytest.raises(Error, match="f16 and bf16 only"):
        glu(x.float(), *pair(512, 768, block=64))
    with pytest.raises(Error):
        glu(x, *pair(512, 768, block=64, dtype=f16))


class Mlp(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.gate_proj, self.up_proj = pair(1024, 3072, **how)
        self.down_proj = make(3072, 1024, **how)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("tokens", [1, 16, 4096])
@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_compiled(tokens, block, bias):
    torch._dynamo.reset()
    model, x = Mlp(block=block, dtype=bf16, bias=bias, density=0.25), random(tokens, 1024, dtype=bf16)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        got, want = compiled(x), model(x)
        assert (got.float() - want.float()).norm() <= 0.01 * want.float().norm()
        work = device_work(lambda: compiled(x))
    assert any("glu" in name.lower() for name in work), work
    assert len(work) == 2, work  # the unit, and down
