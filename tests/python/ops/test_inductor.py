"""Inductor's pass: what moves into which operator, with the results and gradients of eager calls."""

import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from test_scaled import fast_int8
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from sparseloom import BlockSparse, InLayout, ops, quantize_, sparsify_
from sparseloom.nn import BlockSparseConv2d, BlockSparseLinear, Semi24Linear, SparseLinear
from sparseloom.ops import autograd, operators
from sparseloom.ops.inductor import beside, epilogues

# torch's own, at inductor's import
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
DTYPES = [torch.float32, torch.bfloat16]
ALL = tuple(ops.ACTIVATIONS)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def as_on_cuda(monkeypatch):
    monkeypatch.setattr(autograd, "CPU_FUSES", ALL)


def words(node):
    """What an operator of ours computes: name, activation, and what it adds."""
    target = node.args[0] if "auto_functionalized" in str(node.target) else node.target
    if getattr(target, "namespace", "") != "sparseloom":
        return []
    given = dict(zip([each.name for each in target._schema.arguments], node.args, strict=False))
    given = node.kwargs if node.kwargs else given
    name = target._schema.name.removeprefix("sparseloom::").removeprefix("bsr_")
    activation = ALL[given.get("activation", 0)]
    added = "+residual" if isinstance(given.get("residual"), torch.fx.Node) else ""
    return [f"{name}{f'({activation})' if activation else ''}{added}"]


class Compiled:
    """A function compiled as by Inductor up to its code, for which torch's own operators run; ``graphs`` are
    those behind the passes. A hundred forms would take Inductor's C++ compiler minutes."""

    def __init__(self, function, dynamic=None):
        from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes

        self.graphs = []

        def keep(graph, _):
            self.graphs.append(graph.graph)
            return make_boxed_func(graph.forward)

        def parted(joint, inputs, **how):
            return min_cut_rematerialization_partition(joint_graph_passes(joint), inputs, **how)

        backend = aot_autograd(
            fw_compiler=keep, inference_compiler=lambda graph, given: keep(joint_graph_passes(graph), given),
            partition_fn=parted, decompositions=select_decomp_table(),
        )  # fmt: skip
        self.call = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)

    def operators(self):
        return [word for graph in self.graphs for node in graph.nodes for word in words(node)]


def agree(got, want, dtype):
    """One rounding more or less in between costs half an ulp, 2^-9 in bfloat16, and as much at each of the
    few operators behind."""
    for a, b in zip(got, want, strict=True):
        bound = (2**-17 if dtype == torch.float32 else 8 * 2**-9) * (float(b.detach().float().norm()) + 1e-6)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert float((a.detach().float() - b.detach().float()).norm()) <= bound


def run(function, parameters, x, train, dynamic=None):
    """Returns the operators of the compiled function, whose results and gradients agree with eager ones."""
    compiled, leaves = Compiled(function, dynamic), [x, *parameters]
    x.requires_grad_(train)
    with torch.set_grad_enabled(train):
        y, expected = compiled.call(x), function(x)
        agree([y], [expected], expected.dtype)
        if train:
            dy = torch.randn_like(expected)
            gradients = [torch.autograd.grad(each, leaves, dy, allow_unused=True) for each in (y, expected)]
            assert [each is None for each in gradients[0]] == [each is None for each in gradients[1]]
            pairs = ([each for each in group if each is not None] for group in gradients)
            agree(*pairs, expected.dtype)
    return compiled.operators()


def mlp(dtype=torch.float32, **how):
    how = {"density": 0.5, "block": 16, "dtype": dtype, "generator": 3, **how}
    return BlockSparseLinear(48, 64, **how), BlockSparseLinear(64, 48, **how)


def by_hand(z):  # as transformers' NewGELUActivation
    return 0.5 * z * (1 + torch.tanh(0.7978845608028654 * (z + 0.044715 * torch.pow(z, 3.0))))


def seen_flat(up, down, x):
    h = up(x)
    return x + down(F.gelu(h.view(-1, 64)).view(h.shape))


#: Form, the operators of inference, and those of a training step where the operator may give out z: "train"
#: is linear_train and "back" linear_backward, by default of two bare products.
FOLDED = {
    "relu": (lambda up, down, x: down(F.relu(up(x))), "(relu) .", "(relu) . back back(relu)"),
    "relu in place": (
        lambda up, down, x: down(F.relu(up(x), inplace=True)), "(relu) .", "(relu) . back back(relu)",
    ),
    "gelu": (lambda up, down, x: down(F.gelu(up(x))), "(gelu) .", "train(gelu) . back back(gelu)"),
    "gelu by tanh": (
        lambda up, down, x: down(F.gelu(up(x), approximate="tanh")), "(gelu_tanh) .",
        "train(gelu_tanh) . back back(gelu_tanh)",
    ),
    "gelu by hand": (
        lambda up, down, x: down(by_hand(up(x))), "(gelu_tanh) .", "train(gelu_tanh) . back back(gelu_tanh)",
    ),
    "silu": (lambda up, down, x: down(F.silu(up(x))), "(silu) .", "train(silu) . back back(silu)"),
    "squared relu": (
        lambda up, down, x: down(F.relu(up(x)).square()), "(relu2) .", "train(relu2) . back back(relu2)",
    ),
    "dropout of nothing": (
        lambda up, down, x: down(F.dropout(F.gelu(up(x)), 0.0)), "(gelu) .", "train(gelu) . back back(gelu)",
    ),
    "residual": (
        lambda up, down, x: x + down(F.gelu(up(x))), "(gelu) .+residual",
        "train(gelu) .+residual back back(gelu)",
    ),
    "residual in place": (
        lambda up, down, x: down(up(x)).add_(x) * 2, ". .+residual", ". .+residual back back",
    ),
    "residual of a transposed result": (
        lambda up, down, x: x.transpose(0, 1) + down(up(x)).transpose(0, 1), ". .+residual",
        ". .+residual back back",
    ),
    "residual before an activation": (
        lambda up, down, x: F.gelu(down(up(x)) + x), ". .+residual", ". .+residual back back",
    ),
    "views between": (seen_flat, "(gelu) .+residual", "train(gelu) .+residual back back"),
    "bias": (
        lambda up, down, x: down(F.gelu(up(x) + x.new_ones(64))), "(gelu) .", "train(gelu) . back back(gelu)",
    ),
}  # fmt: skip


def named(text):
    names = {".": "linear", "train": "linear_train", "back": "linear_backward"}
    found = []
    for word in text.split():
        name, *rest = re.split(r"(?=[(+])", word, maxsplit=1)
        found.append(names.get(name, name or "linear") + "".join(rest))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FOLDED)
def test_what_follows_moves_into_the_product(name, dtype, as_on_cuda):
    form, inference, training = FOLDED[name]
    up, down = mlp(dtype, bias=name != "bias")
    x, parameters = torch.randn(3, 5, 48, dtype=dtype), [*up.parameters(), *down.parameters()]
    assert run(lambda x: form(up, down, x), parameters, x, False) == named(inference)
    torch._dynamo.reset()
    assert run(lambda x: form(up, down, x), parameters, x, True) == named(training)


def test_a_training_step_on_the_cpu_leaves_inductor_what_a_layer_leaves_it():
    up, down = mlp()
    for function, expected in ((nn.GELU(), ". . back back"), (nn.ReLU(), "(relu) . back back(relu)")):
        torch._dynamo.reset()
        model = nn.Sequential(up, function, down)
        found = run(model, list(up.parameters()), torch.randn(5, 48), True)
        assert found == named(expected)


@pytest.fixture
def unchanged(monkeypatch):
    """Counts the graphs that the pass meets, which it has to leave as they are."""
    met = []

    def checked(graph):
        def all_of_it():
            return str(graph), [dict(node.meta) for node in graph.nodes]

        before = all_of_it()
        epilogues.fold(graph)
        now = all_of_it()
        assert now[0] == before[0]
        for a, b in zip(now[1], before[1], strict=True):
            assert a.keys() == b.keys() and all(a[key] is b[key] for key in a)
        met.append(graph)

    monkeypatch.setattr(beside, "fold", checked)
    return met


LEFT = {
    "read twice": lambda up, down, x: down(F.gelu(h := up(x)) + h),
    "added to itself": lambda up, down, x: (lambda y: y + y)(down(up(x))),
    "added to what it gave": lambda up, down, x: (lambda y: y + y.cumsum(0))(down(up(x))),
    "a residual that is broadcast": lambda up, down, x: down(up(x)) + x[:1],
    "a residual times two": lambda up, down, x: torch.add(down(up(x)), x, alpha=2),
    "a residual of another dtype": lambda up, down, x: down(up(x)) + x.double(),
    "features apart": lambda up, down, x: down(up(x)) + x.new_zeros(48, 3, 5).permute(1, 2, 0),
    "relu6": lambda up, down, x: down(F.relu6(up(x))),
    "leaky relu": lambda up, down, x: down(F.leaky_relu(up(x))),
    "sigmoid's gelu": lambda up, down, x: down((lambda z: z * torch.sigmoid(1.702 * z))(up(x))),
    "relu that hides a NaN": lambda up, down, x: down((lambda z: torch.where(z > 0, z, 0.0))(up(x))),
    "a half": lambda up, down, x: down(torch.cat([F.relu((h := up(x))[..., :32]), h[..., 32:]], -1)),
    "an activation that a loop takes along": lambda up, down, x: F.relu(down(up(x))).cumsum(0).softmax(-1),
    "apart": lambda up, down, x: down(F.relu(ops.apart(up(x)))),
}  # fmt: skip


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", LEFT)
def test_a_graph_with_nothing_to_move_is_left_as_it_is(name, train, as_on_cuda, unchanged):
    up, down = mlp()
    x = torch.randn(3, 5, 48)
    run(lambda x: LEFT[name](up, down, x), [*up.parameters(), *down.parameters()], x, train)
    assert unchanged


def test_dropout_between_stays_in_training_and_is_gone_in_inference(as_on_cuda):
    up, down = mlp()
    model = nn.Sequential(up, nn.GELU(), nn.Dropout(0.5), down)
    compiled = Compiled(model)
    with torch._inductor.config.patch(fallback_random=True):
        compiled.call(torch.randn(5, 48, requires_grad=True)).sum().backward()
    assert compiled.operators() == named(". . back back")
    torch._dynamo.reset()
    model.eval()
    assert run(model, list(model.parameters()), torch.randn(5, 48), False) == named("(gelu) .")


def test_both_results_are_given_out_where_something_else_reads_the_input(as_on_cuda):
    up, down = mlp()

    def both(x):
        h = up(x)
        return torch.cat([down(F.gelu(h)), h.cumsum(0)], -1)

    expected = "train(gelu) . back back"  # two gradients meet at z, in a loop of Inductor's
    assert run(both, [*up.parameters(), *down.parameters()], torch.randn(5, 48), True) == named(expected)


def test_any_number_of_tokens(as_on_cuda):
    up, down = mlp()

    def form(x):
        return x + down(F.gelu(up(x)))

    compiled = Compiled(form, dynamic=True)
    for tokens in (3, 7, 33):
        x = torch.randn(2, tokens, 48, requires_grad=True)
        y = compiled.call(x)
        pair = [torch.autograd.grad(each.square().sum(), [x, up.values]) for each in (y, form(x))]
        agree([y, *pair[0]], [form(x), *pair[1]], torch.float32)
    assert compiled.operators() == named("train(gelu) .+residual back back(gelu)")


def test_a_kernel_that_is_forced_by_name_stays_alone():
    layer, x = mlp()[0], torch.randn(5, 48)
    row = ops.call("row_number", "reference")
    product = operators.linear
    rest = layer.index.rows, None, 0, None, row

    def form(x):
        return F.relu(product(x, layer.values, layer.packed_index, *rest))

    assert run(form, [], x, False) == named(".")


def test_autocast(as_on_cuda):
    up, down = mlp()

    def form(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return down(F.gelu(up(x))) + x  # x is float32: the sum is, too

    expected = "train(gelu) . back back(gelu)"
    assert run(form, [*up.parameters(), *down.parameters()], torch.randn(5, 48), True) == named(expected)


def semi24():
    return Semi24Linear.from_dense(nn.Linear(64, 64), prune="magnitude")


def eight_bits():
    model = nn.Sequential(BlockSparseLinear(64, 64, density=0.5, block=16, generator=3))
    quantize_(model)
    return model[0]


def strict():
    layer = BlockSparseLinear(64, 64, density=0.5, block=16, generator=3)
    layer.strict = True
    return layer


#: Layer -> what becomes of a relu behind it, and of a residual, in inference and in a training step.
KINDS = {
    "2:4": (semi24, "semi24_linear(relu) semi24_linear+residual"),
    "csr": (lambda: SparseLinear(64, 64, layout="csr", density=0.1), "csr_linear(relu) csr_linear+residual"),
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
