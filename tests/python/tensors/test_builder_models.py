"""SparsityBuilder: compiled models, threads, statistics, errors, files and the layouts of layers."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_nets import inputs, masked, net, run
from ell import Ell
from torch import Tensor, nn
from torch.nn import functional

import sparseloom as sl
from sparseloom import Error, SparsityBuilder, ops
from sparseloom import layouts as L
from sparseloom import sparsify as S

HALF = S.ScalarFraction(0.5)
pytestmark = pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")


@pytest.mark.parametrize("into", [L.Dense, L.Csr])
def test_what_is_compiled_is_what_was_built(into: Any):
    """Only where a SparseTensor is made of a dense tensor the graph breaks."""
    torch._dynamo.reset()
    builder = SparsityBuilder(net().eval())
    builder.set_weight("layer.up.weight", HALF)
    builder.set_weight("conv.weight", HALF, out_format=into)
    builder.set_interm("layer.gelu", external_sparsifier=HALF, out_format=into)
    made = builder.get_sparse_model()
    compiled = torch.compile(made, fullgraph=into is L.Dense, backend="aot_eager")
    got = run(compiled, inputs())
    grads = [each.grad.clone() for each in made.parameters()]
    made.zero_grad()
    for one, other in zip(got, run(made, inputs()), strict=True):
        torch.testing.assert_close(one, other)
    for one, parameter in zip(grads, made.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


@pytest.mark.parametrize("into", [L.Dense, L.Csr, L.Coo])
def test_what_is_exported_is_what_was_built(into: Any):
    builder = SparsityBuilder(nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 6)).eval())
    builder.set_weight("0.weight", HALF, out_format=into)
    builder.set_interm("1", external_sparsifier=HALF, out_format=into)
    made, x = builder.get_sparse_model(), torch.randn(5, 12)
    exported = torch.export.export(made, (x,), strict=False).module()
    for each in (x, -x):
        torch.testing.assert_close(exported(each), made(each))


def test_a_node_of_the_models_own_forward_needs_a_copy():
    mlp = net().layer
    builder = SparsityBuilder(mlp)
    builder.set_interm("gelu", external_sparsifier=HALF)
    made, x = builder.get_sparse_model(), torch.randn(5, 8)
    want = x + mlp.down(HALF.sparsified(functional.gelu(mlp.up(x))))
    torch.testing.assert_close(made(x), want)
    with pytest.raises(Error, match="get_sparse_model"):
        builder.sparsify_model_inplace()


def test_two_models_with_different_implementations_in_threads():
    models, found, x = [], {}, inputs()
    for factor in (1.0, 100.0):
        mine = ops.Registry()
        mine.register(functional.conv1d, [L.Dense, Ell, L.Dense], [(S.KeepAll, L.Dense)])(convolution(factor))
        with mine.active():
            S.register(S.ScalarFraction, source=L.Dense, target=Ell)(
                lambda sparsifier, context: Ell.from_dense(context.weight, width=5)
            )
        builder = SparsityBuilder(nn.Sequential(nn.Conv1d(4, 6, 3, padding=1)), registry=mine)
        torch.manual_seed(2)
        builder.model[0].reset_parameters()  # type: ignore[index,operator]
        builder.set_weight("0.weight", HALF, out_format=Ell)
        models.append(builder.get_sparse_model())

    def work(number: int) -> None:
        for _ in range(20):
            found[number] = models[number % 2](x)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    conv: Any = models[0][0]  # type: ignore[index]
    want = functional.conv1d(x, conv.weight.detach().to_dense(), conv.bias, padding=1)
    assert conv.weight.stored.shape == (6, 5)
    for number in range(4):
        torch.testing.assert_close(found[number], want * (100 if number % 2 else 1))


def convolution(factor: float) -> type:
    class Convolution:
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Any, bias: Tensor, *how: Any) -> Tensor:
            return factor * functional.conv1d(x, weight.to_dense(), bias, *how)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            raise NotImplementedError

    return Convolution


def test_input_statistics_and_gradients_reach_a_weights_sparsifier():
    class Wanda(S.Learned):
        def scores(self, context: S.Context) -> Tensor:
            assert context.step == 0
            return context.weight.abs() * context.need("input_statistics").sqrt() + context.need("gradient")

    model = net()
    statistics = torch.rand(8)
    model.layer.up.weight.grad = torch.rand(16, 8)
    builder = SparsityBuilder(model)
    builder.set_weight("layer.up.weight", Wanda(0.75), input_statistics=statistics)
    made: Any = builder.get_sparse_model()
    scores = model.layer.up.weight.abs() * statistics.sqrt() + model.layer.up.weight.grad
    want = set(scores.flatten().topk(32).indices.tolist())
    assert set(made.layer.up.to_dense().weight.flatten().nonzero().flatten().tolist()) == want


def test_dense_and_any_module():
    model = nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    before = [each.detach().clone() for each in model.parameters()]
    builder = SparsityBuilder(model)
    builder.set_weight("0.weight", HALF, out_format=L.Csr)
    builder.set_weight("1.weight", S.KeepAll(), out_format=L.Coo)
    builder.set_weight("2.weight", HALF, out_format=L.Dense)
    made: Any = builder.get_sparse_model()
    tokens = torch.arange(10)
    x = functional.embedding(tokens, HALF.sparsified(before[0]))
    want = functional.linear(
        functional.layer_norm(x, (8,), before[1], before[2]), HALF.sparsified(before[3]), before[4]
    )
    torch.testing.assert_close(made(tokens), want)
    assert type(made[2].weight) is nn.Parameter and made[1].weight.stored.numel() == 8


def test_names_and_formats_are_checked_before_anything_changes():
    def built(**asked: Any) -> nn.Module:
        model = net()
        builder = SparsityBuilder(model)
        builder.set_weight("layer.up.weight", HALF)
        for what, (name, arguments) in asked.items():
            getattr(builder, what)(name, **arguments)
        try:
            builder.sparsify_model_inplace()
        except Error:
            assert type(model.layer.up) is nn.Linear and not hasattr(model.conv, "parametrizations")
            raise
        return model

    for asked, says in (
        ({"set_weight": ("conv.wight", {})}, r"a weight for 'conv.wight', got none; .*conv.weight"),
        ({"set_weight_grad": ("nothing", {})}, "a weight for 'nothing'"),
        ({"set_interm": ("layer.relu", {})}, "a module or a traced node for 'layer.relu'"),
        (
            {"set_weight": ("conv.weight", {"initial_sparsifier": HALF, "out_format": L.Semi24Layout})},
            "semi24",
        ),
        ({"set_interm": ("(", {})}, "a name or a regular expression"),
        ({"set_interm": ("norm", {"out_format": "nothing"})}, "one of"),
    ):
        with pytest.raises(Error, match=says):
            built(**asked)
    model = net()
    model.head.weight = model.layer.down.weight = nn.Parameter(torch.randn(8, 16))
    builder = SparsityBuilder(model)
    builder.set_weight("layer.down.weight", HALF)
    with pytest.raises(Error, match=r"tied to"):
        builder.get_sparse_model()
    shared = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 3))
    shared[1].weight = shared[0].weight
    builder = SparsityBuilder(shared)
    builder.set_weight("0.weight", HALF)
    with pytest.raises(Error, match="Conv1d, Conv1d that share it"):
        builder.get_sparse_model()
    model = net()
    model.head.weight.requires_grad_(False)
    builder = SparsityBuilder(model)
    builder.set_weight_grad("head.weight", external_sparsifier=HALF)
    with pytest.raises(Error, match="a frozen weight"):
        builder.get_sparse_model()
    model.layer.register_forward_hook(lambda *given: None)
    builder = SparsityBuilder(model)
    builder.set_interm("layer.gelu", external_sparsifier=HALF)
    with pytest.raises(Error, match="without hooks"):
        builder.get_sparse_model()
    builder = SparsityBuilder(nn.Sequential(nn.LSTM(4, 4)))
    builder.set_interm("0", external_sparsifier=HALF)
    with pytest.raises(Error, match="one tensor as the output of 0, got tuple"):
        builder.get_sparse_model()(torch.randn(2, 3, 4))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_torch_train_and_are_copied(kind: Any):
    """The LSTM's gradient raised torch's own trace, and a copy after a forward pass our Error."""
    torch.manual_seed(0)
    model, x = nn.Sequential(kind(8, 16, bidirectional=True)), torch.randn(4, 3, 8)
    builder = SparsityBuilder(model)
    builder.set_weight("0.weight_hh_l0", HALF)
    made: Any = builder.get_sparse_model()
    with torch.no_grad():
        mask = made[0].weight_hh_l0.to_dense() != 0
        model[0].weight_hh_l0.mul_(mask)
    y = made(x)[0]
    torch.testing.assert_close(y, model(x)[0])
    for each in (made, model):
        each(x)[0].square().sum().backward()
    held = made[0].parametrizations.weight_hh_l0
    torch.testing.assert_close(
        held[0].layout_index.to_dense(held.original.grad), model[0].weight_hh_l0.grad * mask
    )
    torch.testing.assert_close(made[0].weight_ih_l0.grad, model[0].weight_ih_l0.grad)
    copied = copy.deepcopy(made)
    torch.testing.assert_close(copied(x)[0], y)
    with torch.no_grad():
        copied[0].parametrizations.weight_hh_l0.original.zero_()
        copied[0].weight_ih_l0.zero_()
    assert not torch.equal(copied(x)[0], y) and torch.equal(made(x)[0], y)


def test_formats_of_outputs_pickle():
    builder = SparsityBuilder(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    builder.set_interm("1", external_sparsifier=S.ScalarThreshold(0), out_format=L.Csr)
    made, x = builder.get_sparse_model(), torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = pickle.loads(pickle.dumps(made))(x)
    assert y.format is L.Csr and torch.equal(y.to_dense(), made[0](x).relu())  # type: ignore[index]
    assert sl.SparsityBuilder is SparsityBuilder


@pytest.mark.parametrize("into", [L.Csr, L.MaskedDense, L.Bsr])
def test_a_module_with_a_sparse_weight_is_pickled(into: Any):
    """torch itself refuses to pickle what is parametrized."""
    torch.manual_seed(0)
    nets = (nn.Conv1d(4, 4, 3), "weight", (3, 4, 8)), (nn.LSTM(8, 8), "weight_hh_l0", (3, 2, 8))
    for module, weight, shape in nets:
        builder = SparsityBuilder(nn.Sequential(module))
        builder.set_weight(f"0.{weight}", HALF, out_format=into)
        made, x = builder.get_sparse_model(), torch.randn(shape)
        made(x)
        buffer = io.BytesIO()
        torch.save(made, buffer)
        buffer.seek(0)
        for again in (torch.load(buffer, weights_only=False), pickle.loads(pickle.dumps(made))):
            again = copy.deepcopy(again)
            got, want = again(x), made(x)
            assert torch.equal(got[0], want[0]) and getattr(again[0], weight).format is into
            assert list(again.state_dict()) == list(made.state_dict())
            again.load_state_dict(made.state_dict())
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(nn.utils.parametrizations.weight_norm(made[0], "weight_ih_l0"))


def test_blocks_become_block_sparse_layers():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32)), torch.randn(5, 64)
    blocks = S.BlockwiseFraction(0.5, 16)
    twin = copy.deepcopy(model)
    builder = SparsityBuilder(model)
    builder.set_weight("0.weight", blocks, out_format=L.Bsr)
    builder.set_weight(
        "2.weight", S.ScalarFraction(0.99), out_format=L.Bsr
    )  # blocks of 32 that are mostly zero
    builder.set_weight_grad("0.weight", external_sparsifier=HALF)
    builder.set_interm("1", external_sparsifier=S.BlockwiseFraction(0.5, 8), out_format=L.Bsr)
    made: Any = builder.get_sparse_model()
    assert (
        type(made[0]) is sl.nn.BlockSparseLinear and made[0].block == (16, 16) and made[0].pattern.blocks == 6
    )
    mask = masked(twin[0].weight, blocks)  # type: ignore[arg-type]
    keep = S.ScalarFraction(0.99).select_mask(twin[2].weight)  # type: ignore[arg-type]
    with torch.no_grad():
        twin[2].weight.mul_(keep)  # type: ignore[operator,union-attr]
    gelu = twin[1](twin[0](x))
    gelu = gelu * S.BlockwiseFraction(0.5, 8).select_mask(gelu)
    assert made[:2](x).format is L.Bsr
    want = twin[2](gelu)
    torch.testing.assert_close(made(x), want)
    made(x).square().sum().backward()
    want.square().sum().backward()
    grad = HALF.sparsified(twin[0].weight.grad * mask)  # type: ignore[operator,arg-type]
    torch.testing.assert_close(made[0].sparse_weights()["values"].unpacked(made[0].values.grad), grad)


def test_files_hold_what_is_in_any_module(tmp_path: Path):
    builder = SparsityBuilder(net().eval())
    builder.set_weight("(conv|head).weight", HALF)
    one, two = builder.get_sparse_model(), builder.get_sparse_model()
    with torch.no_grad():
        for each in two.parameters():
            each.zero_()
    sl.save(one, tmp_path / "net.safetensors")
    sl.load(tmp_path / "net.safetensors", two)
    assert torch.equal(one(inputs()), two(inputs()))


@pytest.mark.parametrize("layout", [L.Nm, L.Nmg])
def test_groups_become_layers_of_their_layout(layout: Any):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 64)), torch.randn(5, 32)
    builder = SparsityBuilder(model)
    builder.set_weight("0.weight", S.PerBlockNM(1, 4), out_format=layout)
    made: Any = builder.get_sparse_model()
    weight = made[0].to_dense().weight.detach()
    assert made[0].layout.name == layout.name
    assert torch.equal(weight.view(64, 8, 4).count_nonzero(-1), torch.ones(64, 8, dtype=torch.int64))
    assert torch.equal(weight, model[0].weight.masked_fill(weight == 0, 0))  # type: ignore[operator]
    torch.testing.assert_close(made(x), functional.linear(x, weight, model[0].bias))  # type: ignore[arg-type]
    with ops.strict():
        tensor = sl.SparseTensor(made[0].layout, made[0].values)
        torch.testing.assert_close(functional.linear(x, tensor), functional.linear(x, weight))


def small_convolution(into: Any, seed: int = 0, fraction: float = 0.5) -> nn.Module:
    torch.manual_seed(seed)
    builder = SparsityBuilder(nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.GELU()))
    builder.set_weight("0.weight", S.ScalarFraction(fraction), out_format=into)
    return builder.get_sparse_model()


Y = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(7))


def traced(model: nn.Module) -> Tensor:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, (Y + 1,)), buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)(Y)


WAYS: dict[str, Any] = {
    "export": lambda model: torch.export.export(model, (Y + 1,), strict=False).module()(Y),
    "strict export": lambda model: torch.export.export(model, (Y + 1,), strict=True).module()(Y),
    "jit.trace": traced,
    "vmap": lambda model: torch.vmap(model)(Y),
    "jvp": lambda model: torch.func.jvp(model, (Y,), (Y,))[0],
    "vjp": lambda model: torch.func.vjp(model, Y)[0],
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("into", [L.MaskedDense, L.Csr, L.Coo])
def test_a_weight_of_any_module_is_exported_traced_and_transformed(into: Any, way: str):
    model = small_convolution(into)
    torch.testing.assert_close(WAYS[way](model), model(Y))


def test_torch_func_gives_the_gradient_of_what_is_stored():
    model = small_convolution(L.Csr)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (Y,)).square().sum()

    got = torch.func.grad(loss)(dict(model.named_parameters()))
    model(Y).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["set_interm", "set_interm_grad"])
def test_sparsifiers_of_results_refuse_torch_func_and_jit(what: str):
    """A gradient under vmap was left as it was, without a word."""
    builder = SparsityBuilder(nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.GELU()))
    getattr(builder, what)("0", external_sparsifier=HALF, out_format=L.Dense)
    model = builder.get_sparse_model()
    for way in ("jit.trace", "vmap", "vjp"):
        with pytest.raises(Error, match=r"outside of torch\.func and torch\.jit"):
            WAYS[way](model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torch_jit_script_is_refused_in_words():
    linear = SparsityBuilder(nn.Sequential(nn.Linear(8, 8)))
    linear.set_weight("0.weight", HALF)
    hooked, noded = SparsityBuilder(nn.Sequential(nn.GELU())), SparsityBuilder(net())
    hooked.set_interm("0", external_sparsifier=HALF)
    noded.set_interm("layer.gelu", external_sparsifier=HALF)
    models = [small_convolution(L.Csr), *(each.get_sparse_model() for each in (linear, hooked, noded))]
    for model in models:
        with pytest.raises(Error, match=r"torch\.jit\.script"):
            torch.jit.script(model)


def test_a_checkpoints_index_is_taken_with_its_values_or_refused():
    """Values without their index, and an index that is none, were taken without a word."""
    saved, other = small_convolution(L.Csr), small_convolution(L.Csr, 1)
    state = copy.deepcopy(saved.state_dict())
    other.load_state_dict(state)  # as many elements elsewhere
    torch.testing.assert_close(other(Y), saved(Y))
    before, prefix = other(Y), "0.parametrizations.weight."
    col = state[prefix + "0.col"]
    fewer = small_convolution(L.Csr, 1, 0.75).state_dict()
    for wrong, what in (
        ({prefix + "original": state[prefix + "original"]}, "alone"),
        ({prefix + "0.col": col}, "alone"),
        ({**state, prefix + "0.col": col + 100}, "load_state_dict"),
        ({**state, prefix + "0.col": col.flip(0)}, "load_state_dict"),
        ({**fewer, "0.bias": state["0.bias"]}, "sizes"),
    ):
        with pytest.raises(Error, match=what):
            other.load_state_dict(wrong, strict=False)
        torch.testing.assert_close(other(Y), before)
    other.load_state_dict({"0.bias": state["0.bias"]}, strict=False)
    again = copy.deepcopy(other)
    with pytest.raises(Error, match="alone"):
        again.load_state_dict({prefix + "0.col": col}, strict=False)


def test_blocks_of_a_checkpoint_are_those_of_its_index():
    def blocks(which: int) -> nn.Module:
        layer = nn.Conv1d(16, 16, 1)
        with torch.no_grad():
            layer.weight[:8, 8 * which : 8 * which + 8] = 0
            layer.weight[8:, 8 - 8 * which : 16 - 8 * which] = 0
        S.register(Stay, source=L.Dense, target=L.Bsr)(stay_blocks)
        builder = SparsityBuilder(nn.Sequential(layer))
        builder.set_weight("0.weight", Stay(), out_format=L.Bsr)
        return builder.get_sparse_model()

    saved, other = blocks(0), blocks(1)
    other.load_state_dict(saved.state_dict())
    indices = [each[0].parametrizations.weight[0].layout_index for each in (saved, other)]
    assert indices[0].digest == indices[1].digest
    x = torch.randn(2, 16, 4)
    torch.testing.assert_close(other(x), saved(x))


class Stay:
    """What is not zero stays."""


def stay_blocks(sparsifier: Stay, context: Any) -> L.Bsr:
    return L.Bsr.from_dense(context.weight, 8)
