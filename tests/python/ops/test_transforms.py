"""torch.func, forward mode and batched gradients: the masked dense twin's values, or a one-line refusal."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as fwd
from masked_twin import (
    ACTIVATIONS,
    F64,
    close,
    copied_or_quantized,
    layer_of,
    parameters,
    twin,
    weight_of,
    x_of,
)
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import sparseloom
from sparseloom import ops


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_jvp_gives_the_twin_s_tangents_and_no_zeros(activation, needs_grad):
    layer, x, dx = layer_of(activation).requires_grad_(needs_grad), x_of(5), x_of(5, seed=2)
    for actual, expected in zip(
        jvp(layer, (x,), (dx,)), jvp(lambda x: twin(layer, x), (x,), (dx,)), strict=True
    ):
        close(actual, expected)
    index, leaves = layer.index, (x, layer.values.detach(), layer.bias.detach(), torch.ones(5, 27, **F64))
    tangents = (dx, *(torch.randn_like(leaf) for leaf in leaves[1:]))
    ours = lambda x, values, bias, residual: ops.linear(x, values, index, bias, activation, residual=residual)  # noqa: E731
    theirs = lambda *a: twin(layer, *a)  # noqa: E731
    close(jvp(ours, leaves, tangents)[1], jvp(theirs, leaves, tangents)[1])


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_layer_under_dual_tensors_carries_the_tangent(needs_grad):
    layer, x, dx = layer_of("gelu").requires_grad_(needs_grad), x_of(5), x_of(5, seed=2)
    with fwd.dual_level():
        x = fwd.make_dual(x, dx)
        actual, expected = fwd.unpack_dual(layer(x)), fwd.unpack_dual(twin(layer, x))
        close(actual.primal, expected.primal)
        close(actual.tangent, expected.tangent)


@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_gradcheck_of_linear_in_both_modes_with_batches(activation):
    layer = layer_of(activation, n_in=19, n_out=13)
    leaves = (
        torch.randn(2, 19, **F64),
        layer.values.detach(),
        layer.bias.detach(),
        torch.randn(2, 13, **F64),
    )
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    f = lambda x, values, bias, r: ops.linear(x, values, layer.index, bias, activation, residual=r)  # noqa: E731
    batched = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert gradcheck(f, leaves, **batched)
    assert gradgradcheck(
        f, leaves, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True, fast_mode=True
    )


@pytest.mark.parametrize("direction", ["dx", "dw"])
def test_gradcheck_of_dx_and_dw_in_both_modes_with_batches(direction):
    layer = layer_of(n_in=19, n_out=13)
    dy, b = (
        torch.randn(2, 13, **F64),
        layer.values.detach() if direction == "dx" else torch.randn(2, 19, **F64),
    )
    product = ops.linear_dx if direction == "dx" else ops.linear_dw
    leaves = (dy.requires_grad_(), b.clone().requires_grad_())
    batched = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert gradcheck(lambda a, b: product(a, b, layer.index), leaves, **batched)
    assert gradgradcheck(
        lambda a, b: product(a, b, layer.index), leaves, check_fwd_over_rev=True, check_batched_grad=True
    )


@pytest.mark.parametrize("in_dim,out_dim", [(0, 0), (1, 0), (-1, 1), (2, -1), (0, 2)])
def test_vmap_over_x_at_any_dimension(in_dim, out_dim):
    layer, x = layer_of("relu"), x_of(4, 3).movedim(0, in_dim if in_dim != -1 else 2)
    close(vmap(layer, in_dim, out_dim)(x), vmap(lambda x: twin(layer, x), in_dim, out_dim)(x))


@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)])
def test_vmap_over_x_of_any_number_of_dimensions(sizes):
    layer, x = layer_of(), x_of(4, *sizes)
    close(vmap(layer)(x), twin(layer, x))
    close(vmap(vmap(layer), 1, 1)(x_of(5, 4, *sizes)), twin(layer, x_of(5, 4, *sizes)))


@pytest.mark.parametrize(
    "which", ["x", "values", "bias", "residual", "x values", "values bias", "x values bias residual"]
)
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3)])
def test_vmap_over_any_operands(which, sizes):
    layer = layer_of("gelu")
    shapes = {"x": (*sizes, 37), "values": layer.values.shape, "bias": (27,), "residual": (*sizes, 27)}
    dims = {name: (min(1, len(shape)) if name in which.split() else None) for name, shape in shapes.items()}
    operands = {}
    for name, shape in shapes.items():
        tensor = (
            torch.randn(*shape, **F64)
            if name not in which.split()
            else torch.randn(shape[0], 4, *shape[1:], **F64)
        )
        operands[name] = tensor
    f = lambda x, values, bias, residual: ops.linear(x, values, layer.index, bias, "gelu", residual=residual)  # noqa: E731
    g = lambda *a: twin(layer, *a)  # noqa: E731
    close(
        vmap(f, tuple(dims.values()))(*operands.values()), vmap(g, tuple(dims.values()))(*operands.values())
    )


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0), (1, 0)])
def test_vmap_of_dx_and_dw(dims):
    layer = layer_of()
    dys, xs = (torch.randn(4, 4, width, **F64) for width in (27, 37))
    values = torch.randn(4, *layer.values.shape, **F64)
    weight = lambda values: weight_of(values, layer)  # noqa: E731
    dy, x = (t if dim is not None else t[0] for t, dim in zip((dys, xs), dims, strict=True))
    packed = lambda dy, x: grad(lambda v: (dy * (x @ weight(v).t())).sum())(values[0])  # noqa: E731
    close(vmap(lambda dy, x: ops.linear_dw(dy, x, layer.index), dims)(dy, x), vmap(packed, dims)(dy, x))
    values = values if dims[1] is not None else values[0]
    close(
        vmap(lambda dy, v: ops.linear_dx(dy, v, layer.index), dims)(dy, values),
        vmap(lambda dy, v: dy @ weight(v), dims)(dy, values),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_grad_vjp_and_jacobians(activation):
    layer, x = layer_of(activation), x_of(3)
    loss = lambda f: lambda x: f(x).square().sum()  # noqa: E731
    ours, theirs = layer, lambda x: twin(layer, x)
    close(grad(loss(ours))(x), grad(loss(theirs))(x))
    cotangent = torch.randn(3, 27, **F64)
    close(vjp(ours, x)[1](cotangent), vjp(theirs, x)[1](cotangent))
    close(jacrev(ours)(x), jacrev(theirs)(x))
    close(jacfwd(ours)(x), jacfwd(theirs)(x))
    close(jacfwd(jacrev(ours))(x), jacfwd(jacrev(theirs))(x))


@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_hessians_and_hessian_vector_products(activation):
    layer, x, v = layer_of(activation), x_of(3), x_of(3, seed=2)
    f, g = (lambda x: layer(x).pow(3).sum()), (lambda x: twin(layer, x).pow(3).sum())
    close(hessian(f)(x), hessian(g)(x))
    close(jvp(grad(f), (x,), (v,))[1], jvp(grad(g), (x,), (v,))[1])
    close(grad(lambda x: jvp(f, (x,), (v,))[1])(x), grad(lambda x: jvp(g, (x,), (v,))[1])(x))
    close(grad(lambda x: (grad(f)(x) * v).sum())(x), grad(lambda x: (grad(g)(x) * v).sum())(x))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tokens", [(), (3,)])
def test_per_sample_gradients(activation, tokens):
    layer, x = layer_of(activation), x_of(6, *tokens)
    loss = lambda p, x: functional_call(layer, p, (x,)).square().sum()  # noqa: E731
    twins = lambda p, x: twin(layer, x, p["values"], p["bias"]).square().sum()  # noqa: E731
    actual = vmap(grad(loss), (None, 0))(parameters(layer), x)
    expected = vmap(grad(twins), (None, 0))(parameters(layer), x)
    assert actual["values"].shape == (6, *layer.values.shape)
    close(actual, expected)
    for i in range(6):
        close(grad(loss)(parameters(layer), x[i])["values"], actual["values"][i])


def test_per_sample_gradients_of_a_whole_model():
    model = nn.Sequential(
        nn.Linear(37, 37), layer_of("relu"), nn.LayerNorm(27), layer_of(None, n_in=27)
    ).double()
    loss = lambda p, x: functional_call(model, p, (x,)).square().sum()  # noqa: E731
    x = x_of(5)
    actual = vmap(grad(loss), (None, 0))(parameters(model), x)
    for i in range(5):
        model.zero_grad()
        model(x[i]).square().sum().backward()
        for name, parameter in model.named_parameters():
            close(actual[name][i], parameter.grad)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_ensemble_of_stacked_layers_each_with_its_own_pattern(needs_grad):
    layers = [layer_of("gelu", seed=seed).requires_grad_(needs_grad) for seed in range(3)]
    assert not torch.equal(layers[0].col, layers[1].col)
    params, buffers = stack_module_state(layers)
    base, x = copy.deepcopy(layers[0]).to("meta"), x_of(4)
    run = lambda p, b, x: functional_call(base, (p, b), (x,))  # noqa: E731
    close(vmap(run, (0, 0, None))(params, buffers, x), torch.stack([layer(x) for layer in layers]))
    if needs_grad:
        vmap(run, (0, 0, None))(params, buffers, x).square().sum().backward()
        for i, layer in enumerate(layers):
            layer(x).square().sum().backward()
            close(params["values"].grad[i], layer.values.grad)
            close(params["bias"].grad[i], layer.bias.grad)


def test_gradients_of_a_mean_over_vmap():
    layer, x = layer_of("silu"), x_of(4, 3)
    for f in (lambda g, x: vmap(g)(x).square().sum(), lambda g, x: vmap(vmap(g))(x).square().sum()):
        close(grad(lambda x: f(layer, x))(x), grad(lambda x: f(lambda x: twin(layer, x), x))(x))  # noqa: B023
    close(
        jvp(vmap(layer), (x,), (x,))[1],
        jvp(vmap(lambda x: twin(layer, x)), (x,), (x,))[1],
    )
    close(vmap(lambda x, v: jvp(layer, (x,), (v,))[1])(x, x), jvp(lambda x: twin(layer, x), (x,), (x,))[1])


def test_batched_gradients_of_plain_autograd():
    layer, x = layer_of("gelu"), x_of(3).requires_grad_()
    dy = torch.randn(5, 3, 27, **F64)
    leaves = (x, layer.values, layer.bias)
    y = layer(x)
    actual = torch.autograd.grad(y, leaves, dy, is_grads_batched=True)
    for i in range(5):
        for batch, one in zip(actual, torch.autograd.grad(layer(x), leaves, dy[i]), strict=True):
            close(batch[i], one)
    for vectorize in (False, True):
        close(
            torch.autograd.functional.jacobian(layer, x, vectorize=vectorize),
            torch.autograd.functional.jacobian(lambda x: twin(layer, x), x),
        )


def test_linearize_and_the_functional_api():
    layer, x, dx = layer_of("gelu"), x_of(3), x_of(3, seed=2)
    expected = jvp(lambda x: twin(layer, x), (x,), (dx,))
    y, pushforward = linearize(layer, x)
    close(y, expected[0])
    close(pushforward(dx), expected[1])
    close(torch.autograd.functional.jvp(layer, x, dx)[1], expected[1])
    f, g = (lambda x: layer(x).pow(3).sum()), (lambda x: twin(layer, x).pow(3).sum())
    close(torch.autograd.functional.hvp(f, x, dx)[1], torch.autograd.functional.hvp(g, x, dx)[1])


def test_transforms_under_autocast():
    layer, x = layer_of("gelu", dtype=torch.float32), x_of(4).float()
    f = lambda x: layer(x).float().sum()  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        assert vmap(layer)(x).dtype == torch.bfloat16
        close(vmap(layer)(x), layer(x))
        close(grad(f)(x), torch.autograd.grad(f(leaf := x.clone().requires_grad_()), leaf)[0])
        tangents = [jvp(f, (x,), (x,))[1].float() for f in (layer, lambda x: twin(layer, x))]
        close(*tangents, atol=0.05, rtol=0.05)


def test_main_grad_is_refused_under_a_transform():
    layer = layer_of(fuse_wgrad_accumulation=True)
    layer.values.main_grad = torch.zeros(layer.values.shape)
    with pytest.raises(sparseloom.Error, match="leave out fuse_wgrad_accumulation"):
        grad(lambda p: functional_call(layer, p, (x_of(3),)).sum())(dict(layer.named_parameters()))


@pytest.mark.parametrize("wrong", [torch.ones(27, **F64), torch.ones(3, 27)])
@pytest.mark.parametrize("route", ["inference", "training", "vmap", "copied"])
def test_a_residual_is_neither_broadcast_nor_promoted_on_any_route(route, wrong):
    layer, x = layer_of("gelu", dense_copy=route == "copied"), x_of(3)
    with torch.set_grad_enabled(route == "training"), pytest.raises(sparseloom.Error, match="residual"):
        if route == "vmap":
            vmap(lambda x: layer(x, wrong))(x[None])
        else:
            layer(x, wrong)


@pytest.mark.parametrize("kind", ["copied", "quantized"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_of_copied_and_quantized_layers(kind):
    layer, x = copied_or_quantized(kind), x_of(4).float()
    close(vmap(layer)(x), layer(x))


@pytest.mark.parametrize("transform", [
    lambda f, x: jvp(f, (x,), (x,))[1],
    lambda f, x: grad(lambda x: f(x).sum())(x),
    lambda f, x: grad(lambda x: vmap(f)(x).sum())(x),
])  # fmt: skip
def test_a_quantized_layer_refuses_derivatives_instead_of_giving_zeros(transform):
    with pytest.raises(sparseloom.Error, match="a quantized layer has none"):
        transform(copied_or_quantized("quantized"), x_of(4).float())


def test_a_transform_and_other_values_multiply_with_the_blocks():
    layer, x = copied_or_quantized("copied"), x_of(4).float()
    layer(x)
    close(jvp(layer, (x,), (x,))[1], jvp(lambda x: twin(layer, x), (x,), (x,))[1])
    others = {"values": torch.zeros_like(layer.values), "bias": torch.zeros_like(layer.bias)}
    assert not functional_call(layer, others, (x,)).any()
    same = {"values": nn.Parameter(torch.zeros_like(layer.values)), "bias": others["bias"]}
    with torch.no_grad():
        assert not functional_call(layer, same, (x,)).any()
