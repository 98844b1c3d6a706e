"""2:4 weights to and from torch's own semi-structured tensors, and models that torch.ao.pruning masked."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.ao.pruning import WeightNormSparsifier
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

from sparseloom import BlockSparse, Error, Semi24, SparseTensor, ops, sparsify_
from sparseloom.nn import Semi24Linear, SparseLinear

warnings.filterwarnings("ignore", "The PyTorch API of SparseSemiStructuredTensor is in prototype")

HALVES = [torch.float16, torch.bfloat16]


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def layer_of(rows: int, cols: int, dtype: torch.dtype) -> Semi24Linear:
    torch.manual_seed(0)
    return Semi24Linear.from_dense(torch.randn(rows, cols).to(dtype), "magnitude")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(32, 64), (64, 128), (96, 320)])
def test_cutlass_tensors_come_and_go_bit_by_bit(shape: tuple[int, int], dtype: torch.dtype):
    layer = layer_of(*shape, dtype)
    with torch.no_grad():  # what a conversion through a dense matrix loses or spreads
        layer.values[0, :4] = torch.tensor([-0.0, float("nan"), 0.0, float("-inf")])
    sparse = layer.to_torch()
    assert type(sparse).__name__ == "SparseSemiStructuredTensorCUTLASS" and sparse.shape == shape
    dense = sparse_semi_structured_to_dense_cutlass(sparse.packed, sparse.meta)
    assert torch.equal(bits(dense), bits(layer.to_dense().weight))
    back = Semi24Linear.from_torch(sparse, torch.ones(shape[0], dtype=dtype), activation="relu")
    assert torch.equal(bits(back.values), bits(layer.values)) and torch.equal(back.positions, layer.positions)
    assert back.activation == "relu" and not back.values.requires_grad
    with torch.no_grad():
        sparse.packed.zero_()
    assert back.values.count_nonzero()  # a copy


@pytest.mark.parametrize("dtype", HALVES)
def test_what_torch_packs_is_what_we_pack(dtype: torch.dtype):
    layer = layer_of(64, 192, dtype)
    values, meta = sparse_semi_structured_from_dense_cutlass(layer.to_dense().weight.detach())
    ours = layer.to_torch()
    assert torch.equal(ours.packed, values) and torch.equal(ours.meta, meta)


@pytest.mark.parametrize(
    "way",
    [
        Semi24Linear.from_dense,
        lambda dense: SparseLinear.from_dense(dense, "semi24"),
        lambda dense: SparseTensor.from_dense(dense.weight.detach(), "semi24"),
        lambda dense: sparsify_(nn.Sequential(dense), {"0": Semi24()}),
        lambda dense: ops.call("semi24_pack", dense.weight.detach()),
    ],
)
def test_a_third_value_of_a_group_is_named_where_torch_drops_it(way):
    dense = layer_of(32, 64, torch.float16).to_dense()
    with torch.no_grad():
        dense.weight[5, 16:20] = torch.tensor([1.0, 2.0, 0.0, 3.0])
    values, meta = sparse_semi_structured_from_dense_cutlass(dense.weight.detach())
    kept = sparse_semi_structured_to_dense_cutlass(values, meta)[5, 16:20]
    assert kept.count_nonzero() == 2  # by place: without a word
    with pytest.raises(Error, match=r"at most two nonzeros .* got 3 in row 5, group 4 \(columns 16 to 19\)"):
        way(dense)


def test_int8_weights_of_cutlass_are_read():
    weight = torch.randint(-127, 128, (32, 128), dtype=torch.int8)
    weight.view(32, 32, 4)[..., 2:] = 0
    packed, meta = sparse_semi_structured_from_dense_cutlass(weight)
    cls = torch.sparse.SparseSemiStructuredTensorCUTLASS
    layer = Semi24Linear.from_torch(layer_of(32, 128, torch.float16).to_torch())
    layout = type(layer.layout)
    from sparseloom.nn.semi24.linear import semi_structured

    found, values = semi_structured.from_torch(cls(weight.shape, packed, meta, None, None, None))
    assert isinstance(found, layout) and torch.equal(found.to_dense(values), weight)


def test_float32_holds_one_of_two_there():
    weight = torch.randn(32, 64)
    weight.view(32, 32, 2)[..., 0] = 0
    layer = Semi24Linear.from_dense(weight)
    back = Semi24Linear.from_torch(layer.to_torch())
    assert torch.equal(back.to_dense().weight, weight)
    with pytest.raises(Error, match="at most one nonzero of two neighbours"):
        layer_of(32, 64, torch.float32).to_torch()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda layer: layer.to_torch("triton"), "a backend of cutlass, cusparselt, got 'triton'"),
        (lambda layer: layer.to_torch("cusparselt"), "a layer on a CUDA device"),
        (lambda layer: layer_of(33, 64, torch.float16).to_torch(), "multiples of 32 and 64, got 33 x 64"),
        (lambda layer: layer.double().to_torch(), "cutlass's dtypes .*float64"),
        (lambda layer: Semi24Linear.from_torch(torch.ones(2, 4)), "a SparseSemiStructuredTensor, got Tensor"),
    ],
)
def test_what_torch_has_not_is_named(call, says: str):
    with pytest.raises(Error, match=says):
        call(layer_of(32, 64, torch.float16))


def test_a_linear_that_already_holds_torchs_tensor_is_taken():
    dense = nn.Linear(64, 32, dtype=torch.float16)
    layer = layer_of(32, 64, torch.float16)
    dense.weight = nn.Parameter(layer.to_torch())
    taken = Semi24Linear.from_dense(dense)
    assert torch.equal(taken.values, layer.values) and torch.equal(taken.bias, dense.bias)
    other = layer_of(32, 64, torch.float16)
    other.load_state_dict({"weight": layer.to_torch()})
    assert torch.equal(other.positions, layer.positions)


def test_a_model_that_torch_has_packed_is_taken_as_it_is():
    """The lecture's last lines put torch's tensors into the model."""
    model, _ = lecture_model()
    for i in (0, 2):
        nn.utils.parametrize.remove_parametrizations(model[i], "weight")
    model.half()
    expected = [Semi24Linear.from_dense(model[i]).values.clone() for i in (0, 2)]
    for i in (0, 2):
        model[i].weight = nn.Parameter(Semi24Linear.from_dense(model[i]).to_torch())
    with pytest.raises(Error, match=r"packed by torch: choose Semi24\(\)"):
        sparsify_(model, {"0": BlockSparse(16, 0.5)})
    sparsify_(model, {"[02]": Semi24()})
    assert all(torch.equal(model[i].values, values) for i, values in zip((0, 2), expected, strict=True))
    assert not vars(model[0].values)


def lecture_model() -> tuple[nn.Sequential, WeightNormSparsifier]:
    """The flow of GPU MODE's lecture 11: a pruner of torch masks every linear layer 2:4."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))
    sparsifier = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    sparsifier.prepare(model, [{"tensor_fqn": f"{name}.weight"} for name in "02"])
    sparsifier.step()
    return model, sparsifier


@pytest.mark.parametrize("squashed", [True, False])
def test_the_lectures_flow_a_masked_model_is_taken_as_it_is(squashed: bool):
    model, sparsifier = lecture_model()
    x = torch.randn(5, 64)
    want, weight = model(x), model[0].weight.detach().clone()
    if squashed:
        sparsifier.squash_mask()
        assert torch.equal(model[0].weight, weight)
    elsewhere = Semi24Linear.from_dense(model[0])
    result = sparsify_(model, {"[02]": Semi24()})
    assert [change.density for change in result.changed] == [0.5, 0.5]
    assert type(model[0]) is Semi24Linear and torch.equal(model[0].to_dense().weight, weight)
    assert torch.equal(elsewhere.values, model[0].values)
    torch.testing.assert_close(model(x), want)


def test_an_optimizer_of_a_masked_model_is_repointed():
    model, _ = lecture_model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model(torch.randn(5, 64)).square().sum().backward()
    optimizer.step()
    x = torch.randn(5, 64)
    want, original = model(x), model[0].parametrizations.weight.original
    momentum = optimizer.state[original]["exp_avg"].clone()
    sparsify_(model, {"0": Semi24(), "2": BlockSparse(16, 1.0)}, optimizer=optimizer)
    torch.testing.assert_close(model(x), want)
    assert torch.equal(optimizer.state[model[0].values]["exp_avg"], model[0].layout.pack(momentum))
    frozen = model[0].values.clone()
    model(x).sum().backward()
    optimizer.step()
    assert torch.equal(model[0].values, frozen)


def test_other_parametrizations_stay_refused():
    model, _ = lecture_model()
    nn.utils.parametrizations.weight_norm(model[2])
    other = copy.deepcopy(model)
    with pytest.raises(Error, match="2: it is parametrized"):
        sparsify_(other, {"2": Semi24("magnitude")})
