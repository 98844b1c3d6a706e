"""torch.func, forward mode, torch.jit.trace and fx on layers that have Functions of their own: recurrent
ones, those of other layouts, 2:4, masks and gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vjp, vmap

from sparseloom import Error, pattern
from sparseloom.nn import (
    BlockSparseGRU,
    BlockSparseLinear,
    BlockSparseLSTM,
    GatedBlockSparseLinear,
    MaskedLinear,
    Semi24Linear,
    SmallWorldLSTM,
    SparseLinear,
)

HALF: dict[str, Any] = {"density": 0.5, "block": 16}


def in_layout(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: SparseLinear(32, 32, layout=name, **options)


def semi24() -> nn.Module:
    layer = Semi24Linear.from_dense(nn.Linear(32, 32), prune="magnitude")
    layer.values.requires_grad_(False)
    return layer


def small_world() -> nn.Module:
    def drawn(step: int) -> Any:
        return pattern.random(32, 32, block=8, density=0.5, seed=step)

    return SmallWorldLSTM(32, 32, steps=3, inputs=16, outputs=16, dropout=0.0, pattern=drawn)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: BlockSparseLSTM(32, 32, **HALF), (4, 2, 32)),
    "lstm both ways, projected": (
        lambda: BlockSparseLSTM(32, 32, 2, bidirectional=True, proj_size=16, **HALF),
        (4, 2, 32),
    ),
    "gru": (lambda: BlockSparseGRU(32, 32, batch_first=True, **HALF), (2, 4, 32)),
    "gru both ways": (lambda: BlockSparseGRU(32, 32, bias=False, bidirectional=True, **HALF), (4, 2, 32)),
    "small world": (small_world, (4, 2, 32)),
    "csr": (in_layout("csr", density=0.3), (3, 32)),
    "nm": (in_layout("nm", n=1, m=4), (3, 32)),
    "nmg": (in_layout("nmg", n=1, m=4, g=4), (3, 32)),
    "blocks": (in_layout("blocks", **HALF), (3, 32)),
    "2:4": (semi24, (3, 32)),
    "masked": (lambda: MaskedLinear(32, 32, block=16, mask=pattern.random(32, 32, 16, 0.5)), (3, 32)),
}
ALL = pytest.mark.parametrize("name", LAYERS)


def made(name: str) -> tuple[nn.Module, Callable[..., Tensor], dict[str, Tensor], Tensor]:
    """Returns a layer, it as a function of (Parameters, x), those that train, and x."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().double()
    trained = {key: each for key, each in layer.named_parameters() if each.requires_grad}

    def call(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        y = functional_call(layer, parameters, (x,))
        return y[0] if isinstance(y, tuple) else y

    return layer, call, trained, torch.randn(shape, dtype=torch.float64)


@ALL
def test_gradients_and_tangents_are_right(name: str):
    """jvp of recurrent layers was wrong without a word; the others raised torch's traces."""
    _, call, trained, x = made(name)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return call(parameters, x).square().sum()

    wants = torch.autograd.grad(loss(trained, x), list(trained.values()))
    torch.testing.assert_close(list(grad(loss)(trained, x).values()), list(wants))
    tangent, eps = torch.randn_like(x), 1e-6
    with torch.no_grad():
        want = (call(trained, x + eps * tangent) - call(trained, x - eps * tangent)) / (2 * eps)
    close: dict[str, float] = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(jvp(lambda x: call(trained, x), (x,), (tangent,))[1], want, **close)
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(call(trained, forward_ad.make_dual(x, tangent)))
    torch.testing.assert_close(y.tangent, want, **close)
    y, back = vjp(lambda x: call(trained, x), x)
    cotangent = torch.randn_like(y)
    torch.testing.assert_close((cotangent * want).sum(), (back(cotangent)[0] * tangent).sum(), **close)


@ALL
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_batches_of_inputs_gradients_and_weights(name: str):
    _, call, trained, x = made(name)
    xs = torch.stack([x, 2 * x, x - 1])
    wants = [call(trained, each) for each in xs]
    torch.testing.assert_close(vmap(lambda x: call(trained, x))(xs), torch.stack(wants))

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return call(parameters, x).square().sum()

    samples = vmap(grad(loss), (None, 0))(trained, xs)
    for i, x_i in enumerate(xs):
        gradients = torch.autograd.grad(loss(trained, x_i), list(trained.values()))
        torch.testing.assert_close([each[i] for each in samples.values()], list(gradients))
    two = {key: torch.stack([each, 2 * each]) for key, each in trained.items()}
    ys = vmap(call, (0, None))(two, x)
    twice = {key: each[1] for key, each in two.items()}
    torch.testing.assert_close(ys, torch.stack([call(trained, x), call(twice, x)]))


@pytest.mark.parametrize("name", ["lstm", "gru", "csr", "2:4", "masked"])
def test_second_derivatives_by_torch_func(name: str):
    layer, call, trained, x = made(name)
    dense = layer.to_dense() if hasattr(layer, "to_dense") else None
    x = x[:2, :1] if x.dim() == 3 else x[:1]

    def energy(x: Tensor) -> Tensor:
        return call(trained, x).sin().sum()

    got = hessian(energy)(x)
    if dense is not None and not isinstance(dense, Tensor):

        def twin(x: Tensor) -> Tensor:
            y = dense(x)
            return (y[0] if isinstance(y, tuple) else y).sin().sum()

        torch.testing.assert_close(got, torch.autograd.functional.hessian(twin, x))
    assert bool(got.isfinite().all()) and bool(got.any())


@pytest.mark.parametrize("of", ["sum", "square"])
@pytest.mark.parametrize("name", ["lstm", "gru", "small world", "masked"])
def test_a_second_backward_is_refused(name: str, of: str):
    """Where a penalty on gradients was one of several terms, or the gradient of a sum, its own gradient was
    missing without a word."""
    _, call, trained, x = made(name)
    x.requires_grad_()
    y = call(trained, x)
    (gradient,) = torch.autograd.grad(getattr(y, of)().sum(), x, create_graph=True)
    penalty = gradient.square().sum()
    with pytest.raises(Error, match="differentiate twice"):
        torch.autograd.grad(penalty + y.sum(), list(trained.values()), retain_graph=True)
    with pytest.raises(Error, match="differentiate twice"):
        penalty.backward()


@pytest.mark.parametrize("name", ["lstm", "gru", "small world"])
def test_batched_gradients_are_refused(name: str):
    _, call, trained, x = made(name)
    x.requires_grad_()
    y = call(trained, x)
    with pytest.raises(Error, match="is_grads_batched"):
        torch.autograd.grad(y, x, torch.randn(3, *y.shape, dtype=y.dtype), is_grads_batched=True)


@ALL
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traces_compute_what_the_layer_does(name: str):
    layer, call, trained, x = made(name)
    want = call(trained, 2 * x)
    traced = torch.jit.trace(layer, x, check_trace=False)(2 * x)
    torch.testing.assert_close(traced[0] if isinstance(traced, tuple) else traced, want)
    recorded = torch.fx.symbolic_trace(nn.Sequential(layer))(2 * x)
    torch.testing.assert_close(recorded[0] if isinstance(recorded, tuple) else recorded, want)


def test_gates_keep_blocks_at_zero_without_a_gradient():
    torch.manual_seed(0)
    layer = GatedBlockSparseLinear(BlockSparseLinear(32, 32, **HALF)).eval()
    x = torch.randn(3, 32)
    trained = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, parameters, (x,)).square().sum()

    wants = torch.autograd.grad(loss(trained, x), list(trained.values()), allow_unused=True)
    got = grad(loss)(trained, x)
    for one, other in zip(got.values(), wants, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)
