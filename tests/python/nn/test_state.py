"""state_dict, pickle, deepcopy, .to(), meta: the sparsity survives all of them, and nothing invalid is
taken."""

import copy
import io
import pickle

import pytest
import torch
from bits import same
from torch import nn

import sparseloom
from sparseloom import pattern
from sparseloom.nn import BlockSparseLinear


def make(density=0.5, seed=0, **options):
    torch.manual_seed(seed)
    return BlockSparseLinear(100, 70, density=density, block=16, **options)


def same_layers(a, b):
    """Pattern, bits and products of two layers on one device."""
    x = torch.randn(5, a.in_features, dtype=a.values.dtype).to(a.values.device)
    assert a.pattern == b.pattern and torch.equal(a(x), b(x))
    assert same(a, b) and a.packed_index.device == b.packed_index.device
    assert torch.equal(a.packed_index, b.packed_index)


def roundtrips(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    filled, assigned = make(seed=5), make(seed=6, device="meta")
    filled.load_state_dict(layer.state_dict())
    assigned.load_state_dict(layer.state_dict(), assign=True)
    emptied = make(seed=7, device="meta").to_empty(device="cpu")
    emptied.load_state_dict(layer.state_dict())
    return {
        "pickle": pickle.loads(pickle.dumps(layer)),
        "deepcopy": copy.deepcopy(layer),
        "torch.save": torch.load(buffer, weights_only=False),
        "state_dict": filled,
        "state_dict assign": assigned,
        "meta, to_empty, load": emptied,
        "to and back": copy.deepcopy(layer).to(torch.float64).to(torch.float32),
    }


@pytest.mark.parametrize("way", list(roundtrips(make())))
def test_b29_sparsity_survives(way):
    layer = make()
    again = roundtrips(layer)[way]
    same_layers(layer, again)
    again(torch.randn(3, 100)).sum().backward()  # it still trains
    assert again.values.grad.shape == layer.values.shape


def test_b29_sparsity_survives_training_and_inplace_updates():
    layer = make()
    dense_zeros = layer.to_dense().weight == 0
    optimizer = torch.optim.AdamW(layer.parameters(), 0.1, weight_decay=0.5)
    for _ in range(5):
        layer(torch.randn(8, 100)).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        layer.values.add_(layer.values.clone())  # a merge
    assert (layer.to_dense().weight[dense_zeros] == 0).all()


def test_b29_a_low_rank_update_merged_into_a_dense_checkpoint_keeps_the_pattern():
    """What a merge of adapters writes is dense everywhere; loaded, it is packed by the layer's pattern
    again."""
    layer = make()
    made, absent = layer.pattern, layer.to_dense().weight == 0
    merged = layer.to_dense().weight.detach() + 0.1 * torch.randn(70, 4) @ torch.randn(4, 100)
    assert (merged[absent] != 0).all()
    layer.load_state_dict({"weight": merged, "bias": layer.bias.detach()})
    weight = layer.to_dense().weight
    assert (
        layer.pattern == made
        and (weight[absent] == 0).all()
        and torch.equal(weight[~absent], merged[~absent])
    )


def test_meta_layer_knows_its_pattern_and_gets_its_index_back():
    layer = make(device="meta")
    assert layer.values.is_meta and layer.crow.is_meta and layer.pattern.blocks == 18
    assert layer(torch.randn(3, 100, device="meta")).shape == (3, 70)
    real = layer.to_empty(device="cpu")
    assert torch.equal(real.crow, real.pattern.index()[0]) and torch.equal(real.col, real.pattern.index()[1])
    real.reset_parameters()
    assert real(torch.randn(3, 100)).isfinite().all()
    with torch.device("meta"):
        assert make().values.is_meta
    skipped = nn.utils.skip_init(BlockSparseLinear, 100, 70, density=0.5, block=16)
    assert skipped.values.device.type == "cpu" and torch.equal(skipped.crow, skipped.pattern.index()[0])


def test_index_stays_int32_whatever_the_cast():
    layer = make()
    for cast in (
        lambda: layer.type(torch.float64),
        layer.half,
        layer.float,
        lambda: layer.to(torch.bfloat16),
        layer.float,
    ):
        cast()
        assert layer.crow.dtype == layer.packed_index.dtype == torch.int32
    same_layers(layer, copy.deepcopy(layer))


def test_loading_another_pattern_takes_it_and_keeps_the_optimizer_s_parameter():
    layer, other = make(0.5), make(0.25, seed=1)
    parameter, optimizer = layer.values, torch.optim.AdamW(layer.parameters())
    layer(torch.randn(3, 100)).sum().backward()
    layer.load_state_dict(other.state_dict())
    same_layers(layer, other)
    assert layer.values is parameter and layer.values.grad is None and layer.values.shape[0] == 9
    layer(torch.randn(3, 100)).sum().backward()
    before = layer.values.detach().clone()
    optimizer.step()
    assert not torch.equal(layer.values, before)


def test_int64_indices_are_converted_and_dtypes_are_cast_as_torch_does():
    layer, state = make(seed=3), make(seed=1).state_dict()
    state["crow"], state["col"] = state["crow"].long(), state["col"].long()
    layer.load_state_dict(state, assign=True)
    assert layer.crow.dtype == layer.col.dtype == torch.int32
    same_layers(layer, make(seed=1))
    half = make(seed=3).half()
    half.load_state_dict(make(seed=1).state_dict())  # a fresh one: torch remembers assign=True in the old
    assert half.values.dtype == torch.float16


def broken(change):
    state = {name: tensor.clone() for name, tensor in make(seed=1).state_dict().items()}
    change(state)
    return state


BROKEN = {
    "column out of bounds": (lambda s: s["col"].__setitem__(3, 99), "col"),
    "negative column": (lambda s: s["col"].__setitem__(3, -1), "col"),
    "duplicate column": (lambda s: s["col"].__setitem__(1, int(s["col"][0])), "col"),
    "descending crow": (lambda s: s["crow"].__setitem__(2, 0), "crow"),
    "crow not from 0": (lambda s: s["crow"].__setitem__(0, 1), "crow"),
    "crow beyond the blocks": (lambda s: s["crow"].__setitem__(-1, 99), "crow"),
    "crow too short": (lambda s: s.__setitem__("crow", s["crow"][:-1]), "crow"),
    "float indices": (lambda s: s.__setitem__("crow", s["crow"].float()), "int32 or int64"),
    "int64 overflow": (lambda s: s.__setitem__("col", s["col"].long() + 2**31), "within"),
    "matrix of indices": (lambda s: s.__setitem__("col", s["col"][None]), "vector"),
    "another block shape": (
        lambda s: s.__setitem__("values", s["values"].reshape(-1, 8, 32)),
        "values [18, 16, 16]",
    ),
    "fewer values": (lambda s: s.__setitem__("values", s["values"][:-1]), "values [18, 16, 16]"),
    "values alone": (lambda s: (s.pop("crow"), s.pop("col")), "no crow, col"),
    "no values": (lambda s: s.pop("values"), "no values"),
    "NaN in the padding": (lambda s: s["values"].fill_(torch.nan), "zero padding"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("strict", [True, False])
def test_b23_malformed_states_are_refused_and_change_nothing(name, strict):
    change, said = BROKEN[name]
    layer = nn.Sequential(make(seed=4))
    before, indices = copy.deepcopy(layer.state_dict()), layer[0].index
    with pytest.raises(RuntimeError) as caught:
        layer.load_state_dict(
            {f"0.{key}": value for key, value in broken(change).items() if key != "bias"}, strict=strict
        )
    assert said in str(caught.value) and "0: [" in str(caught.value), str(caught.value)
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())
    assert layer[0].index == indices


def test_nothing_of_the_layer_in_the_state_is_strict_s_own_question():
    layer = make()
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({})
    assert layer.load_state_dict({}, strict=False).missing_keys == ["values", "bias", "crow", "col"]


@pytest.mark.parametrize("side", ["rows", "cols", "both"])
def test_zero_sized_layers_load_and_copy(side):
    sizes = {"rows": (0, 70), "cols": (100, 0), "both": (0, 0)}[side]
    layer = BlockSparseLinear(*sizes, pattern=pattern.full(sizes[1], sizes[0], 16))
    other = copy.deepcopy(layer)
    other.load_state_dict(layer.state_dict())
    assert other(torch.randn(3, sizes[0])).shape == (3, sizes[1])
    assert torch.equal(other(torch.zeros(3, sizes[0])), other.bias.expand(3, -1))


def test_share_memory_and_requires_grad_in_bulk():
    layer = make().share_memory().requires_grad_(False)
    assert layer.values.is_shared() and not layer.values.requires_grad
    assert not layer(torch.randn(2, 100)).requires_grad


def test_pattern_errors_name_the_first_bad_entry():
    with pytest.raises(sparseloom.Error) as caught:
        sparseloom.Pattern.from_index(
            torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([1, 1, 7], dtype=torch.int32), 32, 32, 16
        )
    assert "col" in str(caught.value) and "1" in caught.value.actual
