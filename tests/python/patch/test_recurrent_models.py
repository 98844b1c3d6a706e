"""Models with recurrent layers: sparsify_ and back, files, reports, plans, quantize_, torch.compile, two
ranks."""

import copy

import pytest
import torch
from recurrent_twins import HIDDEN, INPUTS, LAYERS, inputs, make, run
from test_distributed import ranks_of
from torch import nn

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, densify_, pattern, quantize_, sparsify_
from sparseloom.nn import BlockSparseGRU, BlockSparseLSTM
from sparseloom.nn.recurrent.weights import stacked

KINDS = ["lstm", "gru"]


class Net(nn.Module):
    def __init__(self, kind="lstm", **options):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = (nn.LSTM if kind == "lstm" else nn.GRU)(32, 64, **options)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


ALL, X = BlockSparse(16, 1.0), torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
def test_sparsify_and_back(kind):
    net = Net(kind, num_layers=2)
    dense = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    net(X).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    dense.load_state_dict(net.state_dict())
    result = sparsify_(net, {"rnn": ALL}, optimizer=optimizer)
    assert isinstance(net.rnn, LAYERS[kind]) and len(result.changed) == 4
    assert {change.names[0] for change in result.changed} == {
        f"rnn.{of}_l{layer}" for of in ("ih", "hh") for layer in (0, 1)
    }
    torch.testing.assert_close(net(X), dense(X))
    net(X).square().mean().backward()
    optimizer.step()
    net.rnn.load_state_dict(dense.rnn.state_dict())  # a dense checkpoint is packed
    net.head.load_state_dict(dense.head.state_dict())
    torch.testing.assert_close(net(X), dense(X))
    densify_(net, optimizer=optimizer)
    assert type(net.rnn) is type(dense.rnn)
    torch.testing.assert_close(net(X), dense(X))
    assert all(torch.equal(a, b) for a, b in zip(net.rnn.parameters(), dense.rnn.parameters(), strict=True))
    net(X).square().mean().backward()
    optimizer.step()


def test_a_regex_takes_single_weights():
    net = Net("lstm", proj_size=16)
    net.head = nn.Linear(16, 10)
    one = pattern.watts_strogatz(64, 64, 16, 2, 0.5, seed=0)
    net.rnn = nn.LSTM(32, 64)
    net.head = nn.Linear(64, 10)
    sparsify_(net, {r"rnn\.hh_.*": BlockSparse(select=stacked(one, 4))})
    assert type(net.rnn.ih_l0) is nn.Linear and net.rnn.hh_l0.pattern == stacked(one, 4)
    bias = net.rnn.ih_l0.bias
    net(X).sum().backward()
    assert bias.grad is not None and list(net.rnn.sparse_weights()) == ["hh_l0.values"]
    with pytest.raises(Error, match="2:4"):
        sparsify_(Net(), {"rnn": Semi24(prune="magnitude")})


@pytest.mark.parametrize("kind", KINDS)
def test_files_come_back(kind, tmp_path):
    net = Net(kind, bidirectional=False)
    sparsify_(net, {"rnn": BlockSparse(16, 0.5)})
    sparseloom.save(net, tmp_path / "net.safetensors")
    again = Net(kind)
    sparseloom.load(tmp_path / "net.safetensors", again, sparsify=True)
    assert torch.equal(again(X), net(X)) and again.rnn.hh_l0.pattern == net.rnn.hh_l0.pattern
    third = copy.deepcopy(net)
    with torch.no_grad():
        for p in third.parameters():
            p.zero_()
    third.load_state_dict(net.state_dict())
    assert torch.equal(third(X), net(X))


def test_report_plan_and_repr():
    net = Net()
    sparsify_(net, {"rnn": BlockSparse(16, 0.5)})
    found = sparseloom.report(net, X, seconds=0.01)
    layers = {layer.name: layer for layer in found.layers}
    assert layers["rnn.ih_l0"].tokens == 15 and layers["rnn.hh_l0"].tokens == 3
    plans = net.rnn.plan(3, 5)
    assert set(plans) == {"ih_l0", "hh_l0"} and all(plan["text"] for plan in plans.values())
    assert net.rnn.plan(3, 5, "dw")["hh_l0"]["text"]
    assert "32, 64" in repr(net.rnn)


def test_quantize_refuses_by_name():
    net = nn.ModuleDict(
        {"rnn": make("lstm"), "head": sparseloom.nn.BlockSparseLinear(48, 32, density=0.5, block=16)}
    )
    told = str(quantize_(net))
    assert "rnn.hh_l0" in told and "recurrent" in told
    with pytest.raises(Error, match=r"rnn\.hh_l0: a recurrent layer"):
        quantize_(nn.ModuleDict({"rnn": make("lstm")}))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_compile_needs_no_break(kind, options):
    layer = make(kind, **options)
    leaves = inputs(layer)
    results = run(layer, leaves[0], leaves[1:])
    sum(y.square().sum() for y in results).backward()
    kept = [leaf.grad.clone() for leaf in [*leaves, *layer.parameters()]]
    for leaf in [*leaves, *layer.parameters()]:
        leaf.grad = None
    compiled = torch.compile(lambda x, states: run(layer, x, states), fullgraph=True, backend="aot_eager")
    found = compiled(leaves[0], leaves[1:])
    sum(y.square().sum() for y in found).backward()
    for mine, theirs in zip(found, results, strict=True):
        torch.testing.assert_close(mine, theirs)
    for leaf, theirs in zip([*leaves, *layer.parameters()], kept, strict=True):
        torch.testing.assert_close(leaf.grad, theirs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(leaves[0], leaves[1:])[0], results[0])


@pytest.mark.parametrize("kind", [BlockSparseLSTM, BlockSparseGRU])
def test_compiled_code_serves_any_number_of_steps(kind):
    """Each number of steps was a graph of its own, until torch's limit of recompiled graphs was reached."""
    torch._dynamo.reset()
    layer = kind(8, 16, density=0.5, block=8, bidirectional=True)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for steps in (4, *range(2, 14)):
        x = torch.randn(steps, 3 + steps, 8, requires_grad=True)
        results = compiled(x)[0], layer(x)[0]
        torch.testing.assert_close(*results)
        gradients = [torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()]) for y in results]
        torch.testing.assert_close(*gradients)
    assert counter.frame_count <= 2  # the first sizes may have something in common that the others have not


def test_copies_pickles_and_a_changing_topology():
    layer = make("lstm")
    twin = copy.deepcopy(layer)
    x = torch.randn(4, 3, INPUTS)
    assert torch.equal(twin(x)[0], layer(x)[0])
    mask = layer.hh_l0.pattern.mask.roll(1, 1)
    layer.hh_l0.set_topology_(mask)
    y, _ = layer(x)
    y.sum().backward()
    layer.hh_l0.fix_topology_()
    torch.testing.assert_close(y, layer.to_dense()(x)[0])


def test_what_the_loop_cannot_use_is_refused():
    layer = BlockSparseLSTM(INPUTS, HIDDEN, density=0.5, block=16)
    layer.hh_l0.fuse_wgrad_accumulation = True
    with pytest.raises(Error, match="fuse_wgrad_accumulation"):
        layer(torch.randn(2, 2, INPUTS))


def test_two_ranks_train_as_one(tmp_path):
    checks = ["an LSTM under ddp equals one rank", "a GRU under ddp equals one rank"]
    assert [out.splitlines() for out, _ in ranks_of("two_ranks_recurrent.py", tmp_path)] == [checks, checks]
