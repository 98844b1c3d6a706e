"""Implementations of operators: which one is found, what happens without one, threads, compiled code."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ell import Ell, EllMm
from torch import Tensor, nn
from torch.nn import functional

import sparseloom
from sparseloom import Error, SparseTensor, ops
from sparseloom.layouts import Bsr, Coo, Csr, Dense, Layout, Semi24Layout
from sparseloom.sparsify import KeepAll, RandomFraction
from sparseloom.tensors import dispatch

DENSE = [(KeepAll, Dense)]


def ell(seed: int = 0, registry: ops.Registry | None = None) -> SparseTensor:
    dense = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
    return SparseTensor.from_dense(dense, Ell, registry=registry)


class Scaled:
    """A wrong product, so that one sees that it ran."""

    @staticmethod
    def forward(ctx: Any, w: SparseTensor, x: Tensor) -> Tensor:
        return 100 * (w.to_dense() @ x)


def registry(implementation: Any = EllMm, operator: Any = torch.mm) -> ops.Registry:
    made = ops.Registry()
    made.register(operator, inputs=(Ell, Dense), outputs=DENSE)(implementation)
    return made


@pytest.mark.parametrize(
    "call", [torch.mm, torch.Tensor.mm, torch.matmul, lambda w, x: w @ x, lambda w, x: w.mm(x)]
)
def test_an_implementation_runs_forward_and_backward(call: Any):
    w, x = ell(registry=registry()).requires_grad_(), torch.randn(8, 5, requires_grad=True)
    twin, twin_x = w.detach().to_dense().requires_grad_(), x.detach().clone().requires_grad_()
    dy = torch.randn(6, 5)
    with ops.strict():
        y = call(w, x)
        y.backward(dy)
    want = twin @ twin_x
    want.backward(dy)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(x.grad, twin_x.grad)
    assert w.grad.format is Ell and type(y.grad_fn).__name__ == "EllMmBackward"
    torch.testing.assert_close(w.grad.stored, w.layout_index.pack(twin.grad))


def test_every_layout_brings_linear_and_mm():
    x, bias = torch.randn(2, 3, 8, requires_grad=True), torch.randn(6, requires_grad=True)
    for layout in (Csr, Coo, Ell, Bsr):
        w = SparseTensor.from_dense(ell().to_dense(), layout).requires_grad_()
        twin = w.detach().to_dense().requires_grad_()
        with ops.strict():
            for got, want in (
                (functional.linear(x, w, bias), functional.linear(x, twin, bias)),
                (functional.linear(x, w, bias=None), functional.linear(x, twin)),
                (functional.linear(bias=bias, weight=w, input=x), functional.linear(x, twin, bias)),
                (w @ x[0].t(), twin @ x[0].t()),
            ):
                torch.testing.assert_close(got, want)
                operands = (x, bias) if want.dim() == 3 and want.grad_fn.next_functions else (x,)
                dy = torch.randn_like(want)
                mine = torch.autograd.grad(got, (x, w), dy)
                theirs = torch.autograd.grad(want, (x, twin), dy)
                assert operands and mine[1].format is layout
                torch.testing.assert_close(mine[0], theirs[0])
                torch.testing.assert_close(mine[1].stored, w.layout_index.pack(theirs[1]))


def test_a_missing_one_computes_densely_and_says_so_once():
    mine = ops.Registry()
    w, x = ell(registry=mine), torch.randn(6, 8, requires_grad=True)
    with pytest.warns(
        ops.DenseFallback, match=r"aten.cat has no implementation for \(ell_rows, dense\)"
    ) as told:
        first = torch.cat([w, x])
        first.square().sum().backward()
    assert len(told) == 1 and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cat([w, x])
    assert torch.equal(first[:6], w.to_dense()) and torch.equal(x.grad, 2 * x.detach())
    with pytest.warns(ops.DenseFallback, match=r"aten.cat has no implementation for \(csr, dense\)"):
        torch.cat([SparseTensor.from_dense(w.to_dense(), Csr, registry=mine), x])


def test_strict_forbids_it():
    w, x = ell(), torch.randn(6, 8)
    with (
        ops.strict(),
        pytest.raises(Error, match=r"\[aten.cat\] expected an implementation for \(ell_rows, dense\)"),
    ):
        torch.cat([w, x])
    with pytest.raises(Error, match=r"aten\.cat"):
        torch.cat([ell(registry=ops.Registry(strict=True)), x])
    with pytest.warns(ops.DenseFallback), ops.Registry().active():
        torch.cat([w, x])


def test_what_would_write_into_one_is_refused():
    with pytest.raises(Error, match="writes into dense tensors"):
        ell().cumsum_(0)
    with pytest.raises(Error, match="writes into dense tensors"):
        torch.add(torch.ones(6, 8), 1, out=ell())


def copied_leaf(tensor: SparseTensor) -> SparseTensor:
    return copy.deepcopy(nn.Parameter(tensor))


def converted_leaf(tensor: SparseTensor) -> SparseTensor:
    module = nn.Module()
    module.weight = nn.Parameter(tensor)
    return module.double().weight


def test_gradients_of_what_computed_densely_are_right():
    w, x = ell(registry=ops.Registry()).requires_grad_(), torch.randn(6, 8)
    twin = w.detach().to_dense().requires_grad_()
    with pytest.warns(ops.DenseFallback):
        torch.softmax(w * x, 1).square().sum().backward()
    torch.softmax(twin * x, 1).square().sum().backward()
    torch.testing.assert_close(w.grad.to_dense(), twin.grad.masked_fill(twin == 0, 0))


@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")
@pytest.mark.parametrize("leaf", [lambda t: t.requires_grad_(), nn.Parameter, copied_leaf, converted_leaf])
def test_the_gradient_of_a_leaf_has_its_format(leaf: Callable[[SparseTensor], SparseTensor]):
    """It was dense behind an operator that computes densely, with elements where nothing is stored."""
    w, x = leaf(ell()), torch.randn(6, 8)
    twin = w.detach().to_dense().requires_grad_()
    mask = twin.detach() != 0
    x = x.to(w.dtype)
    for each in (w, twin):
        for _ in range(2):  # accumulated, of operators with and without an implementation
            (torch.softmax(each * x, 1).square().sum() + (each @ x.t()).sin().sum()).backward()
    assert w.grad.format is w.format and w.grad.dtype == w.dtype
    torch.testing.assert_close(w.grad.to_dense(), twin.grad * mask)
    wants = torch.autograd.grad(twin.exp().sum(), twin, create_graph=True)[0].square().sum()
    (got,) = torch.autograd.grad(w.exp().sum(), w, create_graph=True)
    got.square().sum().backward()
    wants.backward()
    torch.testing.assert_close(w.grad.to_dense(), twin.grad * mask)


def test_two_registries_in_one_process():
    x = torch.randn(8, 5)
    right, wrong = ell(registry=registry()), ell(registry=registry(Scaled))
    want = right.to_dense() @ x
    torch.testing.assert_close(right @ x, want)
    torch.testing.assert_close(wrong @ x, 100 * want)
    torch.testing.assert_close(ell() @ x, want)  # the default one
    with registry(Scaled).active():
        torch.testing.assert_close(ell() @ x, 100 * want)
        torch.testing.assert_close(right @ x, want)  # the tensor's own
    assert wrong.detach().registry is wrong.registry is copy.deepcopy(wrong).registry


def test_threads_see_their_own_registry():
    x, found = torch.randn(8, 5), {}
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for _ in range(50):
            with registry(Scaled if number % 2 else EllMm).active():
                found[number] = ell() @ x

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    want = ell().to_dense() @ x
    for number in range(8):
        torch.testing.assert_close(found[number], want * (100 if number % 2 else 1))


def test_register_refuses_what_it_cannot_call():
    mine = ops.Registry()
    for inputs, outputs in (
        ((Ell(1, 1, col=torch.zeros(1, 1)),), DENSE),
        ((Ell,), [KeepAll]),
        ((Ell,), [(KeepAll(), Dense)]),
    ):
        with pytest.raises(Error, match=r"ops.register"):
            mine.register(torch.mm, inputs=inputs, outputs=outputs)
    for inputs, outputs in ((Ell, DENSE), (None, DENSE), ((Ell,), KeepAll)):
        with pytest.raises(Error, match="a tuple or list as"):
            mine.register(torch.mm, inputs=inputs, outputs=outputs)
    with pytest.raises(Error, match=r"sparsify.register.*a function"):
        mine.register_sparsifier(KeepAll, Dense, Ell)(3)
    with pytest.raises(Error, match="forward"):
        mine.register(torch.mm, inputs=(Ell,), outputs=DENSE)(int)
    mine.register(torch.mm, inputs=(Ell, Dense), outputs=DENSE)(EllMm)
    mine.register(torch.mm, inputs=(Ell, Dense), outputs=DENSE)(EllMm)  # a cell of a notebook runs twice
    with pytest.raises(Error, match="no other implementation of mm"):
        mine.register(torch.mm, inputs=(Ell, Dense), outputs=DENSE)(Scaled)
    with pytest.raises(Error, match="write the method backward"):
        (ell(registry=registry(Scaled)).requires_grad_() @ torch.randn(8, 2)).sum().backward()
    w, x = ell(), torch.randn(8, 2)
    torch.testing.assert_close(torch.mm(input=w, mat2=x), w.to_dense() @ x)
    found = registry().operator(torch.mm, [Ell, Dense], None, [])
    assert found is not None
    with pytest.raises(Error, match="arguments of the operator"):
        dispatch.positional(found, (w, x), {"nothing": 3})


def test_layout_takes_any_format_but_dense():
    mine = ops.Registry()

    @mine.register.__get__(mine)(functional.gelu, inputs=(Layout,), outputs=[(KeepAll, Csr)])
    class Gelu:
        @staticmethod
        def forward(ctx: Any, tensor: SparseTensor) -> SparseTensor:
            return SparseTensor(tensor.layout_index, functional.gelu(tensor.stored))

    for layout in (Csr, Ell):
        tensor = SparseTensor.from_dense(ell().to_dense(), layout, registry=mine)
        assert type(functional.gelu(tensor)) is SparseTensor
    assert mine.operator(functional.gelu, [Dense], None, []) is None


def test_implementations_for_sparsifiers_serve_sparsified_op_alone():
    mine = ops.Registry()
    mine.register(torch.mm, inputs=(Ell, Dense), outputs=[(RandomFraction, Csr)])(Scaled)
    x = torch.randn(8, 5)
    tensor = ell(registry=mine)
    torch.testing.assert_close(tensor @ x, tensor.to_dense() @ x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_has_no_break_where_it_is_registered(backend: str):
    own = registry()
    makes = [lambda: ell(registry=own), lambda: SparseTensor.from_dense(ell().to_dense(), Csr)]
    for make in makes[: 1 if backend == "inductor" else 2]:
        torch._dynamo.reset()
        w, x = make().requires_grad_(), torch.randn(8, 5, requires_grad=True)

        def model(w: SparseTensor, x: Tensor) -> Tensor:
            return torch.mm(w * 2.0, mat2=x.relu()).relu()

        dy = torch.randn(6, 5)
        want = torch.autograd.grad(model(w, x), (w, x), dy)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        with ops.strict():
            y = compiled(w, x)
            got = torch.autograd.grad(y, (w, x), dy)
        torch.testing.assert_close(y, model(w, x))
        torch.testing.assert_close(got[0].stored, want[0].stored)
        torch.testing.assert_close(got[1], want[1])


def test_the_public_functions_are_those_of_the_registry_in_use():
    mine = ops.Registry()
    with mine.active():
        sparseloom.ops.register(torch.mm, inputs=(Ell, Dense), outputs=DENSE)(Scaled)
    x = torch.randn(8, 2)
    assert not torch.allclose(ell(registry=mine) @ x, ell() @ x)


@pytest.mark.parametrize("layout", [Csr, Coo, Ell, Bsr, Semi24Layout])
def test_linear_takes_a_sparse_input(layout: Any):
    index = layout.from_dense(torch.randn(6, 8), **({"prune": "magnitude"} if layout is Semi24Layout else {}))
    weight, bias = torch.randn(5, 8, requires_grad=True), torch.randn(5, requires_grad=True)
    for shape in ((6, 8), (2, 3, 8), (3, 2, 2, 4)):
        x = SparseTensor(index, index.pack(torch.randn(6, 8)), shape).requires_grad_()
        twin, w = x.detach().to_dense().requires_grad_(), weight[:, : shape[-1]]
        for extra in ((), (bias,)):
            with ops.strict():
                got = functional.linear(x, w, *extra)
            want, dy = functional.linear(twin, w, *extra), torch.randn(*shape[:-1], 5)
            torch.testing.assert_close(got, want)
            mine = torch.autograd.grad(got, (x, weight, *extra), dy)
            theirs = torch.autograd.grad(want, (twin, weight, *extra), dy)
            at = index.pack(theirs[0].reshape(6, 8))
            stored = (
                mine[0].stored if isinstance(mine[0], SparseTensor) else index.pack(mine[0].reshape(6, 8))
            )
            torch.testing.assert_close(stored, at)
            for one, other in zip(mine[1:], theirs[1:], strict=True):
                torch.testing.assert_close(one, other)


def test_autocast_casts_as_for_dense_operands():
    bias = torch.randn(6, requires_grad=True)
    w = SparseTensor.from_dense(torch.randn(6, 8), Csr, density=0.5).requires_grad_()
    twin, x = w.detach().to_dense().requires_grad_(), torch.randn(3, 8, requires_grad=True)
    other = torch.randn(5, 8, requires_grad=True)
    for call in (
        lambda w, x, other: functional.linear(x, w, bias),
        lambda w, x, other: torch.mm(w, x.t()),
        lambda w, x, other: functional.linear(w, other),
    ):
        with torch.autocast("cpu", torch.bfloat16), ops.strict():
            got, want = call(w, x, other), call(twin, x, other)
        assert got.dtype == want.dtype == torch.bfloat16
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
        dy = torch.randn_like(want)
        mine = torch.autograd.grad(got, (w, x, other), dy, allow_unused=True)
        theirs = torch.autograd.grad(want, (twin, x, other), dy, allow_unused=True)
        assert mine[0].dtype == mine[0].stored.dtype == torch.float32
        torch.testing.assert_close(mine[0].stored, w.layout_index.pack(theirs[0]), rtol=0.05, atol=0.1)
        for one, another in zip(mine[1:], theirs[1:], strict=True):
            assert (one is None) == (another is None)
            if one is not None:
                torch.testing.assert_close(one, another, rtol=0.05, atol=0.1)
