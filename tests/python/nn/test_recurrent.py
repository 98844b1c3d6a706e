"""BlockSparseLSTM and BlockSparseGRU beside torch's layers with the same, masked weights."""

import copy

import pytest
import torch
from recurrent_twins import HIDDEN, INPUTS, OPTIONS, expect_as_torch, inputs, make, packed, run
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparseloom import Error, pattern
from sparseloom.nn import BlockSparseGRU, BlockSparseLSTM
from sparseloom.nn.recurrent.weights import beside_of, stacked

KINDS = ["lstm", "gru"]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_torchs(kind, options):
    layer = make(kind, **OPTIONS[options])
    expect_as_torch(layer, inputs(layer))


@pytest.mark.parametrize("lengths", [(5, 3, 3, 1, 1), (1, 4, 6, 2, 6), (4, 4, 4, 4, 4)])
@pytest.mark.parametrize("options", ["plain", "both ways", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_torchs(kind, options, lengths):
    layer = make(kind, **OPTIONS[options])
    expect_as_torch(layer, inputs(layer), lengths)


@pytest.mark.parametrize("lengths", [None, (1, 4, 6, 2, 6)])
@pytest.mark.parametrize("options", OPTIONS)
def test_gates_that_lie_side_by_side_change_nothing(options, lengths, monkeypatch):
    found = []

    def beside(layer, recurrent, gx, walk):  # without the rule that asks for a GPU
        found.append(beside_of(recurrent, layer.gates, gx.dtype))
        return found[-1]

    monkeypatch.setattr(BlockSparseLSTM, "_beside", beside)
    layer = make("lstm", **OPTIONS[options])
    expect_as_torch(layer, inputs(layer), lengths)
    assert found and all(weight is not None and weight.side == 16 for weight in found)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_results_keep_the_order_of_the_batch(kind):
    layer = make(kind, bidirectional=True)
    x, *_ = inputs(layer)
    mine, theirs = (m(packed(x, layer, (2, 6, 1, 6, 3)))[0] for m in (layer, layer.to_dense()))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("steps", "batch"), [(1, 5), (1, 1), (7, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_short_sequences_and_single_ones(kind, steps, batch):
    layer = make(kind, bidirectional=True)
    expect_as_torch(layer, inputs(layer, steps, batch))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_gradients_of_zero(kind):
    layer = make(kind, num_layers=2)
    leaves = inputs(layer, batch=0)
    results = run(layer, leaves[0], leaves[1:])
    assert [list(y.shape) for y in results] == [[6, 0, HIDDEN], *[[2, 0, HIDDEN]] * (len(results) - 1)]
    sum(y.sum() for y in results).backward()
    assert all(not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_batch_and_without_states(kind):
    layer = make(kind, bidirectional=True, batch_first=True)
    dense, x = layer.to_dense(), torch.randn(6, INPUTS)
    for mine, theirs in zip(run(layer, x, None), run(dense, x, None), strict=True):
        torch.testing.assert_close(mine, theirs)
    states = [torch.randn(2, HIDDEN) for _ in range(2 if kind == "lstm" else 1)]
    for mine, theirs in zip(run(layer, x, states), run(dense, x, states), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_is_torchs(kind):
    layer = make(kind, num_layers=3, dropout=0.5)
    dense, x = layer.to_dense(), torch.randn(6, 5, INPUTS)
    torch.manual_seed(3)
    mine = layer(x)[0]
    torch.manual_seed(3)
    torch.testing.assert_close(mine, dense(x)[0])
    assert not torch.equal(layer(x)[0], mine)
    torch.testing.assert_close(layer.eval()(x)[0], dense.eval()(x)[0])


@pytest.mark.parametrize("options", ["both ways", "projected"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_in_float64_are_those_of_differences(kind, options):
    torch.manual_seed(0)
    more = {} if kind == "gru" else {key: 8 for key in OPTIONS[options] if key == "proj_size"}
    cls = BlockSparseLSTM if kind == "lstm" else BlockSparseGRU
    both = options == "both ways"
    layer = cls(8, 16, density=0.5, block=8, dtype=torch.float64, bidirectional=both, **more)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    states = [
        torch.randn(1 + both, 2, width, dtype=torch.float64, requires_grad=True)
        for width in [more.get("proj_size", 16), 16][: 2 if kind == "lstm" else 1]
    ]

    def call(x, *rest):
        given, parameters = rest[: len(states)], rest[len(states) :]
        hx = tuple(given) if kind == "lstm" else given[0]
        y, final = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, hx))
        return (y, *final) if kind == "lstm" else (y, final)

    assert torch.autograd.gradcheck(call, (x, *states, *parameters), fast_mode=True)
    y = call(x, *states, *parameters)[0]
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_gradients_of_a_packed_sequence_are_those_of_differences():
    torch.manual_seed(0)
    layer = BlockSparseLSTM(8, 16, density=0.5, block=8, dtype=torch.float64, bidirectional=True)
    x = torch.randn(4, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: run(layer, packed(x, layer, (2, 4, 1)), None)[0], x, fast_mode=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_carried_state_continues_the_sequence(kind):
    layer = make(kind, num_layers=2)
    x = torch.randn(8, 5, INPUTS)
    whole, end = layer(x)
    first, state = layer(x[:3])
    second, state = layer(x[3:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    for mine, theirs in zip(
        state if kind == "lstm" else [state], end if kind == "lstm" else [end], strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    # detached, the gradient ends at the second part's beginning
    x.requires_grad_()
    _, state = layer(x[:3])
    cut = tuple(s.detach() for s in state) if kind == "lstm" else state.detach()
    layer(x[3:], cut)[0].sum().backward()
    assert not x.grad[:3].any() and x.grad[3:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_in_16_bits(kind, dtype):
    layer = make(kind, num_layers=2)
    exact = copy.deepcopy(layer).to(dtype).double()
    layer = layer.to(dtype)
    leaves = inputs(layer, dtype=dtype)
    results = run(layer, leaves[0], leaves[1:])
    wanted = run(exact, leaves[0].double(), [s.double() for s in leaves[1:]])
    limit = 2e-2 if dtype is torch.bfloat16 else 3e-3
    for mine, theirs in zip(results, wanted, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, atol=limit, rtol=limit)
    sum(y.float().sum() for y in results).backward()
    sum(y.sum() for y in wanted).backward()
    for mine, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        size = theirs.grad.abs().max()
        assert (mine.grad.double() - theirs.grad).abs().max() < 2 * limit * size


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_16_bits_and_gradients_in_32(kind):
    layer = make(kind, num_layers=2)
    x, *states = inputs(layer)
    with torch.autocast("cpu", torch.bfloat16):
        results = run(layer, x, states)
    wanted = run(layer.to_dense(), x, states)  # torch's own has no bf16 on every CPU
    assert all(y.dtype == torch.bfloat16 for y in results)
    torch.testing.assert_close(results[0].float(), wanted[0], atol=3e-2, rtol=3e-2)
    sum(y.float().sum() for y in results).backward()
    assert all(p.grad.dtype == torch.float32 for p in [x, *states, *layer.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_gives_the_same_gradients(kind):
    layer = make(kind)
    x, *_ = inputs(layer)
    layer(x)[0].square().sum().backward()
    kept = [x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    checkpoint(lambda x: layer(x)[0], x, use_reentrant=False).square().sum().backward()
    for mine, theirs in zip([x, *layer.parameters()], kept, strict=True):
        assert torch.equal(mine.grad, theirs)


@pytest.mark.parametrize("frozen", ["values", "inputs", "bias"])
def test_what_is_frozen_gets_no_gradient(frozen):
    layer = make("lstm")
    x, *_ = inputs(layer)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(not name.endswith(frozen))
    x.requires_grad_(frozen != "inputs")
    layer(x)[0].sum().backward()
    for p in [x, *layer.parameters()]:
        assert (p.grad is not None) == p.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_one_tensor_alone_is_that_among_all(kind):
    layer = make(kind, num_layers=2, bidirectional=True, proj_size=16)
    leaves = inputs(layer)
    loss = sum(y.square().sum() for y in run(layer, leaves[0], leaves[1:]))
    asked = [*leaves, *layer.parameters()]
    wanted = torch.autograd.grad(loss, asked, retain_graph=True)
    for leaf, theirs in zip(asked, wanted, strict=True):
        (mine,) = torch.autograd.grad(loss, [leaf], allow_unused=True, retain_graph=True)
        torch.testing.assert_close(mine, theirs)


def test_all_gates_have_one_pattern_or_one_for_all():
    one = pattern.barabasi_albert(64, 64, 16, 1, seed=0)
    layer = BlockSparseLSTM(24, 64, pattern=one, num_layers=2)
    assert layer.hh_l0.pattern == stacked(one, 4) == layer.hh_l1.pattern and type(layer.ih_l0) is nn.Linear
    assert layer.hh_l0.values.shape[0] == 4 * one.blocks
    whole = pattern.random(256, 64, 16, 0.3, seed=0)
    layer = BlockSparseLSTM(24, 64, pattern=whole, input_pattern=lambda r, c: pattern.full(r, c, 8))
    assert layer.hh_l0.pattern == whole and layer.ih_l0.pattern.block == (8, 8)
    balanced = make("gru").hh_l0.pattern.mask
    assert torch.equal(balanced, balanced[:3].repeat(3, 1))
    ragged = BlockSparseGRU(24, 20, density=0.5, block=8)  # a block at each seam belongs to two gates
    expect_as_torch_of_size(ragged, 24, 20)


def expect_as_torch_of_size(layer, inputs, hidden):
    x = torch.randn(4, 3, inputs)
    torch.testing.assert_close(layer(x)[0], layer.to_dense()(x)[0])


@pytest.mark.parametrize(
    ("make_one", "words"),
    [
        (lambda: BlockSparseLSTM(8, 16), "neither"),
        (lambda: BlockSparseLSTM(8, 16, density=0.5, pattern=pattern.full(16, 16, 8)), "both"),
        (lambda: BlockSparseLSTM(8, 16, pattern=pattern.full(16, 8, 8)), "16 x 16"),
        (lambda: BlockSparseLSTM(8, 16, pattern="random"), "a Pattern, or a function"),
        (lambda: BlockSparseGRU(8, 16, pattern=lambda rows, cols: 0.5), "got 0.5"),
        (lambda: BlockSparseLSTM(8, 20, pattern=pattern.full(20, 20, 8)), "divide"),
        (lambda: BlockSparseLSTM(8, 16, density=0.5, proj_size=16), "proj_size"),
        (lambda: make("lstm")(torch.randn(3, 2, 7)), "40"),
        (lambda: make("lstm")(torch.randn(0, 2, 40)), "length 0"),
        (lambda: make("lstm")(torch.randn(3, 2, 40), torch.randn(1, 2, 48)), "c0"),
        (lambda: make("gru")(torch.randn(3, 2, 40), torch.randn(1, 3, 48)), r"\[1, 2, 48\]"),
        (lambda: make("gru")([1.0]), "list"),
    ],
)
def test_refusals_say_what_to_do(make_one, words):
    with pytest.raises(Error, match=words):
        make_one()
