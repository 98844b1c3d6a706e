"""Inductor's pass: what moves into which operator, with the results and gradients of eager calls."""

import inductor_stand
import pytest
import torch
import torch.nn.functional as F
from inductor_stand import DTYPES, Compiled, agree, mlp, named, run
from torch import nn

from sparseloom import ops
from sparseloom.ops import operators

# torch's own, at inductor's import
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
# the fixtures
as_on_cuda = inductor_stand.as_on_cuda
unchanged = inductor_stand.unchanged


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
