"""Inductor's pass in layers and models: what each kind of layer takes, and what torch keeps on disk."""

import subprocess
import sys

import inductor_stand
import pytest
import torch
import torch.nn.functional as F
from inductor_stand import agree, mlp, named, run, words
from test_scaled import fast_int8
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from sparseloom import BlockSparse, InLayout, quantize_, sparsify_
from sparseloom.nn import BlockSparseConv2d, BlockSparseLinear, Semi24Linear, SparseLinear

# torch's own, at inductor's import
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
# the fixtures
unchanged = inductor_stand.unchanged


def semi24():
    return Semi24Linear.from_dense(nn.Linear(64, 64), prune="magnitude")


def eight_bits():
    model = nn.Sequential(BlockSparseLinear(64, 64, density=0.5, block=16, seed=3))
    quantize_(model)
    return model[0]


def strict():
    layer = BlockSparseLinear(64, 64, density=0.5, block=16, seed=3)
    layer.strict = True
    return layer


#: Layer -> what becomes of a relu behind it, and of a residual, in inference and in a training step.
KINDS = {
    "2:4": (semi24, "semi24_linear(relu) semi24_linear+residual"),
    "csr": (lambda: SparseLinear(64, 64, layout="csr", density=0.1), "csr_linear(relu) csr_linear+residual"),
    "bitmap": (
        lambda: SparseLinear(64, 64, layout="bitmap", density=0.5),
        "bitmap_linear(relu) bitmap_linear+residual",
    ),
    "n:m:g": (lambda: SparseLinear(64, 64, layout="nmg", n=1, m=8, g=2), "nmg_linear nmg_linear"),
    "strict": (strict, "linear(relu) linear+residual"),
} | ({"8 bits": (eight_bits, "scaled_linear(relu) linear+residual")} if fast_int8() else {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_takes_what_its_kernels_do(kind):
    make, expected = KINDS[kind]
    torch.manual_seed(3)
    # Before a layer of 8 bits an activation belongs to the loop that quantizes.
    a, b, x = make(), strict() if kind == "8 bits" else make(), torch.randn(5, 64)
    trains = kind not in ("8 bits", "n:m:g")
    parameters = [each for each in (*a.parameters(), *b.parameters()) if each.requires_grad]
    for train in (False, True)[: 1 + trains]:
        torch._dynamo.reset()
        found = run(lambda x: x + b(F.relu(a(x))), parameters, x, train)
        products = [each for each in found if "quantize" not in each]
        assert products[:2] == expected.split()
    a.fuse = b.fuse = False
    torch._dynamo.reset()
    found = run(lambda x: x + b(F.relu(a(x))), parameters, x.detach(), False)
    assert not any("relu" in each or "residual" in each for each in found)


def test_convolutions_take_an_activation_behind_channels_that_were_moved():
    conv = BlockSparseConv2d(64, 64, 3, density=0.2, block=16, padding=1)
    conv.strict = True
    x = torch.randn(2, 64, 6, 6)
    for train in (False, True):
        torch._dynamo.reset()
        found = run(lambda x: conv(F.relu(conv(x))), list(conv.parameters()), x, train)
        assert found[:2] == ["conv(relu)", "conv"]


@pytest.mark.parametrize("fuse", [True, False])
def test_torchs_encoder_layer_whole(fuse):
    """sparsify_ leaves the pass no activation, and the pass finds what sparsify_ does not know: residuals."""
    model = nn.TransformerEncoderLayer(64, 2, 96, 0.0, batch_first=True)
    sparsify_(model, {".*": BlockSparse(16, 0.5)}, fuse=fuse)
    attention, feed_forward = "linear linear+residual", "linear(relu) linear+residual"
    expected = f"{attention} {feed_forward}" if fuse else ". . . ."
    x = torch.randn(2, 5, 64)
    assert run(model, [], x, False) == named(expected)
    torch._dynamo.reset()
    found = run(model, list(model.parameters()), x, True)
    assert found[:4] == named(expected) and len(found) == 8


def test_sparsify_forbids_it_for_a_model(unchanged):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    sparsify_(model, {"0": BlockSparse(16, 0.5), "2": InLayout("csr", density=0.1)}, fuse=False)
    run(lambda x: x + model(x), list(model.parameters()), torch.randn(5, 64), False)
    assert unchanged
    quantize_(model)
    assert not model[0].fuse  # what a layer becomes keeps it


class Theirs(CustomGraphPass):
    def __init__(self, key):
        self.key, self.seen = key, []

    def __call__(self, graph):
        self.seen += [word for node in graph.nodes for word in words(node)]

    def uuid(self):
        return self.key


@pytest.mark.parametrize("key", ["theirs", None])
def test_it_runs_behind_the_users_pass_and_both_key_what_is_kept(key):
    up, down = mlp()
    x, theirs = torch.randn(5, 48), Theirs(key)
    with torch._inductor.config.patch(joint_custom_post_pass=theirs):
        found = run(lambda x: down(F.gelu(up(x))), [], x, False)
        uuid = torch._inductor.config.joint_custom_post_pass.uuid()
    assert theirs.seen == named(". .") and found == named("(gelu) .")
    assert uuid is None if key is None else "theirs" in uuid and len(uuid) == 3
    torch._dynamo.reset()  # and it is back where a program has put its own aside
    assert run(lambda x: down(F.gelu(up(x))), [], x, False) == named("(gelu) .")


def test_inductors_code_holds_no_loop_of_its_own_and_is_found_on_disk():
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_inductor_cache, run_and_get_code

    up, down = mlp()
    x = torch.randn(5, 48)
    with torch.no_grad(), fresh_inductor_cache():
        for hits in (0, 1):
            counters.clear()
            torch._dynamo.reset()
            compiled = torch.compile(lambda x: x + down(F.gelu(up(x))), fullgraph=True)
            y, code = run_and_get_code(compiled, x)
            agree([y], [x + down(F.gelu(up(x)))], torch.float32)
            assert (
                counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
                >= hits
            )
        calls = code[0].split("def call")[1].split("def get_args")[0]
        assert calls.count("bsr_linear.default(") == 2 and "cpp_fused" not in calls


def test_importing_us_imports_no_inductor():
    program = "import sys, sparseloom; assert 'torch._inductor.config' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
