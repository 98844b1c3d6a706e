"""torch.compile, export and opcheck: the operators are ordinary ones to torch's compilers."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.state import content_hash
from sparseloom.ops import autograd
from sparseloom.pattern import Pattern


def agree(compiled, layer, m):
    x = torch.randn(m, 2, layer.in_features, requires_grad=True)
    y, expected = compiled(x), layer(x)
    dy = torch.randn_like(y)
    leaves = [x, *layer.parameters()]
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    pairs = zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy), strict=True)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("dynamic", [True, None])
def test_fullgraph_with_a_dynamic_batch_forward_and_backward(activation, dynamic):
    layer = BlockSparseLinear(97, 70, density=0.5, block=16, activation=activation)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m in (3, 5, 17, 29):
        agree(compiled, layer, m)


def test_a_dynamic_batch_does_not_recompile():
    layer = BlockSparseLinear(64, 64, density=0.5)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for m in (3, 5, 17, 29):
        compiled(torch.randn(m, 64))
    assert counter.frame_count == 1


def test_what_is_done_with_a_model_between_compiled_steps_does_not_compile_it_again():
    model = torch.nn.Sequential(
        BlockSparseLinear(64, 64, density=0.5), BlockSparseLinear(64, 32, density=0.5, activation="gelu")
    )
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled, x = torch.compile(model, backend=counter), torch.randn(4, 64)
    before = compiled(x)
    before.sum().backward()
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
    model(x).sum().backward()
    model[0].plan(4)
    model.load_state_dict(model.state_dict())
    torch.testing.assert_close(compiled(x), before)
    assert counter.frame_count == 1


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_inductor_model_with_sparse_and_dense_layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        BlockSparseLinear(64, 96, density=0.5, activation="gelu"),
        nn.LayerNorm(96),
        BlockSparseLinear(96, 32, density=0.5),
    )
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for m in (4, 9):
        x = torch.randn(m, 64)
        leaves = list(model.parameters())
        expected = torch.autograd.grad(model(x).square().sum(), leaves)
        got = torch.autograd.grad(compiled(x).square().sum(), leaves)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_autocast_inside_compile():
    layer = BlockSparseLinear(64, 64, density=0.5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(torch.randn(3, 64)).dtype == torch.bfloat16


def test_a_loaded_pattern_is_seen_by_the_compiled_layer():
    layer, other = (BlockSparseLinear(64, 64, density=density, block=8) for density in (0.5, 0.3))
    compiled, x = torch.compile(layer, fullgraph=True, backend="aot_eager"), torch.randn(3, 64)
    compiled(x)
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(x), other(x))


def test_export_with_a_dynamic_batch():
    layer = BlockSparseLinear(64, 48, density=0.5, activation="silu")
    exported = torch.export.export(
        layer, (torch.randn(4, 64),), dynamic_shapes=({0: torch.export.Dim("m", min=2, max=64)},)
    )
    x = torch.randn(9, 64)
    torch.testing.assert_close(exported.module()(x), layer(x), atol=1e-6, rtol=1e-6)
    assert "sparseloom.bsr_linear" in exported.graph_module.code


class Block(nn.Module):
    """A residual block, as transformers repeat it."""

    def __init__(self, seed):
        super().__init__()
        of = {"density": 0.2, "block": 8, "generator": torch.Generator().manual_seed(seed)}
        self.up = BlockSparseLinear(96, 192, activation="gelu", **of)
        self.down = BlockSparseLinear(192, 96, **of)

    def forward(self, x):
        return self.down(self.up(x), residual=x)


def test_equal_blocks_with_different_patterns_compile_once():
    blocks = [Block(seed) for seed in range(24)]
    assert len({content_hash(block.up.pattern) for block in blocks}) == 24
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    x = torch.randn(5, 96)
    for block in blocks:
        expected = block(x)
        block.compile(backend=counter, fullgraph=True)
        y = block(x)
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
        y.sum().backward()
    assert counter.frame_count == 1


EXPORTED_ELSEWHERE = """
import sys, torch
from sparseloom import ops
program = torch.export.load(sys.argv[1])
node, = [n for n in program.graph.nodes if "sparseloom.bsr_linear" in str(n.target)]
print(node.args[10])  # the digest
torch.save(program.module()(torch.load(sys.argv[2])), sys.argv[3])
"""


def test_an_exported_program_carries_what_its_plans_know(tmp_path):
    even = BlockSparseLinear(64, 48, density=0.5, block=8)
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[0] = mask[1:, 0] = True
    uneven = BlockSparseLinear(64, 48, pattern=Pattern(48, 64, 8, mask))
    assert (even.index.digest % 2, uneven.index.digest % 2) == (0, 1)  # uneven rows
    x = torch.randn(4, 64)
    torch.save(x, tmp_path / "x")
    for layer in (even, uneven):
        torch.export.save(torch.export.export(layer, (x,)), tmp_path / "program.pt2")
        names = [str(tmp_path / name) for name in ("program.pt2", "x", "y")]
        run = subprocess.run(
            [sys.executable, "-c", EXPORTED_ELSEWHERE, *names], capture_output=True, text=True, check=True
        )
        assert int(run.stdout) == layer.index.digest
        torch.testing.assert_close(torch.load(tmp_path / "y"), layer(x), rtol=0, atol=0)


def samples():
    layer = BlockSparseLinear(37, 27, density=0.5, block=8)
    packed, blocks, rows, cols, bm, bn, digest = layer.index
    crow, col = layer.index.crow, layer.index.col
    x, dy, values = torch.randn(5, 37), torch.randn(5, 27), layer.values.detach()
    raw, strided = torch.ops.sparseloom, torch.randn(37, 5).t()

    def backward(dy, x, values, activation, need_bias, main_grad=None):
        saved = torch.randn_like(dy) if activation else None
        operands = (
            dy,
            saved,
            x,
            values,
            packed,
            cols,
            blocks,
            bm,
            bn,
            main_grad,
            need_bias,
            activation,
            False,
            False,
            digest,
        )
        return raw.bsr_linear_backward.default, operands

    return {
        "linear": (
            raw.bsr_linear.default,
            (x, values, packed, rows, layer.bias.detach(), 1, None, -1, False, False, digest),
        ),
        "linear_1d": (
            raw.bsr_linear.default,
            (x[0], values, packed, rows, None, 0, None, -1, False, False, digest),
        ),
        "linear_strided": (
            raw.bsr_linear.default,
            (strided, values, packed, rows, None, 0, None, -1, False, False, digest),
        ),
        "linear_dx": (
            raw.bsr_linear_dx.default,
            (dy, values, packed, cols, -1, False, False, digest),
        ),
        "linear_dw": (raw.bsr_linear_dw.default, (dy, x, packed, blocks, bm, bn, -1, False, False, digest)),
        "linear_dw_add": (
            raw.bsr_linear_dw_add.default,
            (torch.ones(values.shape), dy, x, packed, -1, False, False, digest),
        ),
        "linear_train": (
            raw.bsr_linear_train.default,
            (x, values, packed, rows, layer.bias.detach(), 2, None, -1, False, False, digest),
        ),
        "linear_backward": backward(dy, x, values, 2, True),
        "linear_backward_relu_dx": backward(dy, None, values, 1, False),
        "linear_backward_dw": backward(dy, x, None, 0, False),
        "linear_backward_bias": backward(dy, None, None, 0, True),
        "linear_backward_sum": backward(dy, x, values, 2, True, torch.ones(values.shape)),
        "block_gradient_norms": (raw.block_gradient_norms.default, (dy, x, bm, bn, "l2")),
        "pack": (raw.pack.default, (torch.randn(27, 37), crow, col, bm, bn)),
        "unpack": (raw.unpack.default, (values, crow, col, rows, cols)),
    }


@pytest.mark.parametrize("name", samples())
def test_opcheck(name):
    op, arguments = samples()[name]
    assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", [name for name in samples() if name not in ("pack", "linear_dw_add")])
def test_meta_tensors_give_the_shape_of_the_result(name):
    op, arguments = samples()[name]
    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
    results = [result if isinstance(result, tuple) else (result,) for result in (op(*meta), op(*arguments))]
    for got, expected in zip(*results, strict=True):
        assert (
            got.is_meta
            and got.shape == expected.shape
            and got.dtype == expected.dtype
            and got.stride() == expected.stride()
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_layer_gets_matrices_in_rows_where_features_lie_apart():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    matrices = []  # of the products, as the graphs have them; of one that may add to main_grad by name

    def keep(graph, _):
        for node in graph.graph.nodes:
            if "sparseloom" in f"{node.target} {node.args}":
                matrices.extend(
                    (node.kwargs["dy"], node.kwargs["x"]) if node.kwargs.get("dy") else node.args[:1]
                )
        return make_boxed_func(graph.forward)

    layer = BlockSparseLinear(64, 96, density=0.5)
    # tokens as a convolution leaves them, and a gradient as keys get it
    image = torch.randn(2, 64, 3, 5, requires_grad=True)

    queries = torch.randn(2, 4, 96)

    def scores(tokens):
        return queries @ layer(tokens).transpose(1, 2)

    expected = scores(image.flatten(2).transpose(1, 2))
    expected_gradients = torch.autograd.grad(expected.sum(), (image, layer.values))
    compiled = torch.compile(scores, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    y = compiled(image.flatten(2).transpose(1, 2))
    gradients = torch.autograd.grad(y.sum(), (image, layer.values))

    assert [matrix.meta["val"].stride(-1) for matrix in matrices] == [1, 1, 1]
    torch.testing.assert_close((y, *gradients), (expected, *expected_gradients))
    with torch.no_grad():
        torch.testing.assert_close(compiled(image.flatten(2).transpose(1, 2)), expected)
    assert [matrix.meta["val"].stride(-1) for matrix in matrices] == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_inductor_calls_one_operator_forward_and_one_backward_and_copies_nothing(monkeypatch):
    from torch._inductor.utils import run_fw_bw_and_get_code

    monkeypatch.setattr(autograd, "CPU_FUSES", (None, "gelu"))  # as on CUDA
    layer = BlockSparseLinear(64, 96, density=0.5, activation="gelu")
    x = torch.randn(4, 8, 64, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True)
    _, (forward, backward) = run_fw_bw_and_get_code(lambda: compiled(x))
    for code, name in ((forward, "linear_train"), (backward, "linear_backward")):
        calls = code.split("def call")[1].split("def get_args")[0]
        assert calls.count("= torch.ops.") == calls.count(f"= torch.ops.sparseloom.bsr_{name}.default(") == 1
        # no kernel of inductor's own, so no clone
        assert "cpp_fused" not in calls and "empty_strided" not in calls


def test_code_on_disk_is_keyed_by_the_schemas_beside_the_users_tag():
    """CI ran code with an older schema's default (findings/inductor-cache-keeps-old-defaults.sh)."""
    program = """if True:
        import torch, sparseloom
        from sparseloom.ops.library import tag_compiled_code

        def tag():
            torch.compiler.config.cache_key_tag = ""
            tag_compiled_code("1")
            return torch.compiler.config.cache_key_tag

        whole = torch.compiler.config.cache_key_tag
        assert whole.startswith("mine sparseloom-") and tag() == tag(), whole
        before = tag()
        torch.library.define("sparseloom::one_more", "(Tensor x) -> Tensor")
        assert tag() != before
    """
    tagged = {**os.environ, "TORCH_COMPILE_CACHE_KEY_TAG": "mine"}
    subprocess.run([sys.executable, "-c", program], check=True, env=tagged)
