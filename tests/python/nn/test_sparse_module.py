"""A user's own module with the three methods of SparseModule is treated as the library's are."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom.nn import BlockSparseLinear, SparseModule, SparseWeight
from sparseloom.nn.held.indexed import IndexedModule
from sparseloom.nn.held.sparse_weight import is_sparse, sparse_layers, sparse_modules
from sparseloom.report import layers


class Scaled(nn.Module):
    """Multiplies the result of a block-sparse product with a learned factor, and speaks for the product."""

    def __init__(self, product: BlockSparseLinear) -> None:
        super().__init__()
        self.product, self.factor = product, nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) * self.factor

    def sparse_weights(self) -> dict[str, SparseWeight]:
        return {"product.values": SparseWeight(self.product, dense="0.weight", part="kernel")}

    def to_dense(self) -> nn.Module:
        return nn.Sequential(self.product.to_dense(), Factor(self.factor))

    def describe(self) -> dict[str, dict[str, Any]]:
        return {"product.values": self.product.describe()["values"]}


class Factor(nn.Module):
    def __init__(self, factor: nn.Parameter) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Transposed(IndexedModule):
    """Owns values and index, but is no BlockSparseLinear: y = x W."""

    bias = None

    def __init__(self, pattern: sparseloom.Pattern, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.block = pattern.cols, pattern.rows, pattern.block
        self.strict, self._digest, self._index, self._writes = False, 0, None, 0
        self._set_index(pattern, torch.device("cpu"))
        self.values = nn.Parameter(torch.randn(pattern.blocks, *pattern.block))

    def forward(self, x: Tensor) -> Tensor:
        return x @ SparseWeight(self).to_dense()

    def sparse_weights(self) -> dict[str, SparseWeight]:
        return {"values": SparseWeight(self)}

    def to_dense(self) -> nn.Module:
        return nn.Embedding.from_pretrained(SparseWeight(self).to_dense(), freeze=False)  # of no Form's kind

    def describe(self) -> dict[str, dict[str, Any]]:
        return {"values": {"block": list(self.block), "blocks": self.pattern.blocks}}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def net(seed: int = 0) -> nn.Sequential:
    made = [BlockSparseLinear(64, 48, density=0.5, block=16, seed=seeded(seed + i)) for i in range(2)]
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), Scaled(made[0]), nn.Linear(48, 64), made[1])


def test_the_walk_ends_at_the_module_that_speaks() -> None:
    model = net()
    model.append(model[1])
    assert [name for name, _ in sparse_modules(model)] == ["1", "3", "4"]
    found = list(sparse_layers(model))
    assert [(layer.name, layer.matched, layer.dense) for layer in found] == [
        ("1.product", "1.kernel", "1.0.weight"), ("3", "3", "3.weight"),
        ("4.product", "4.kernel", "4.0.weight"),
    ]  # fmt: skip
    assert found[0].weight.owner is model[1].product  # type: ignore[union-attr]
    attention = nn.MultiheadAttention(32, 2)
    holder = nn.ModuleDict({"a": attention, "c": nn.Conv2d(32, 32, 1)})
    sparseloom.sparsify_(holder, {r"a\.in_proj|c": sparseloom.BlockSparse(16, 0.5)})
    assert [(layer.name, layer.matched, layer.dense) for layer in sparse_layers(holder)] == [
        ("a.in_proj", "a.in_proj", "a.in_proj_weight"), ("c.linear", "c", "c.weight")
    ]  # fmt: skip


def test_what_wraps_a_sparse_module_is_none() -> None:
    layer = BlockSparseLinear(32, 32, density=0.5, block=16)
    assert is_sparse(layer) and isinstance(layer, SparseModule)
    assert not is_sparse(torch.compile(layer)) and not is_sparse(nn.Linear(2, 2))
    assert [name for name, _ in sparse_modules(nn.Sequential(torch.compile(layer)))] == ["0._orig_mod"]


def test_a_weight_sees_what_becomes_of_its_module() -> None:
    layer = BlockSparseLinear(64, 48, density=0.5, block=16, seed=seeded(0))
    weight = layer.sparse_weights()["values"]
    before = weight.content_hash
    assert weight.shape == (48, 64) and weight.block == (16, 16) and weight.layout == "bsr"
    assert weight.digest == layer.index.digest and weight.values is layer.values
    dense = layer.to_dense()
    assert isinstance(dense, nn.Linear) and torch.equal(weight.to_dense(), dense.weight)
    other = BlockSparseLinear(64, 48, density=0.25, block=16, seed=seeded(1))
    layer.load_state_dict(other.state_dict())
    assert weight.pattern == other.pattern and before != weight.content_hash
    with pytest.raises(AttributeError):
        weight.layout = "csr"  # type: ignore[misc]


def test_an_own_module_is_saved_and_loaded(tmp_path: Any) -> None:
    model, other, x = net(), net(5), torch.randn(4, 32, generator=seeded(2))
    assert not torch.equal(model(x), other(x))
    sparseloom.save(model, tmp_path / "own.safetensors")
    sparseloom.load(tmp_path / "own.safetensors", other)
    assert torch.equal(model(x), other(x))
    assert other[1].product.pattern == model[1].product.pattern  # type: ignore[union-attr]
    alone, again = (
        nn.Sequential(Transposed(sparseloom.pattern.balanced(48, 64, 16, 0.5, seed))) for seed in (1, 2)
    )
    sparseloom.save(alone, tmp_path / "alone.safetensors")
    sparseloom.load(tmp_path / "alone.safetensors", again)
    x = torch.randn(4, 48, generator=seeded(2))
    assert torch.equal(alone(x), again(x))


def test_an_own_module_becomes_dense_with_its_optimizer() -> None:
    model, x = net(), torch.randn(4, 32, generator=seeded(2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.AdamW(twin.parameters(), 1e-2)
    for each, its in ((model, optimizer), (twin, twin_optimizer)):
        each(x).square().sum().backward()
        its.step()
        its.zero_grad()
    result = sparseloom.densify_(model, optimizer=optimizer)
    assert [change.names for change in result.changed] == [("1.kernel",), ("3",)]
    torch.testing.assert_close(model(x), twin(x))
    mask = model[1][0].weight != 0  # type: ignore[index,union-attr]
    for each, its in ((model, optimizer), (twin, twin_optimizer)):
        each(x).square().sum().backward()
        its.step()
    values = twin[1].sparse_weights()["product.values"].to_dense()  # type: ignore[operator]
    torch.testing.assert_close(model[1][0].weight * mask, values)  # type: ignore[index,union-attr]


def test_what_an_own_module_becomes_need_not_be_of_a_kind_that_sparsify_takes() -> None:
    own = Transposed(sparseloom.pattern.balanced(48, 64, 16, 0.5, 1))
    model = nn.ModuleDict({"own": own})
    values = own.values
    optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
    (change,) = sparseloom.densify_(model, optimizer=optimizer).changed
    assert change.kind == "Embedding" and change.shape == (48, 64)
    (held,) = optimizer.param_groups[0]["params"]
    assert held is model["own"].weight and held is not values


def test_an_own_module_is_reported() -> None:
    model = nn.Sequential(nn.Linear(32, 48), Transposed(sparseloom.pattern.balanced(48, 64, 16, 0.5, 1)))
    model.append(Scaled(BlockSparseLinear(64, 48, density=0.5, block=16, seed=seeded(0))))
    report = sparseloom.report(model, torch.randn(4, 32), seconds=0.01)
    _, own, factor, inner = report.layers
    assert (own.kind, own.shape, own.block, own.note) == ("Transposed", (48, 64), (16, 16), "not timed alone")
    assert own.density == 0.5 and own.pattern == model[1].pattern and own.dense_bytes == 48 * 64 * 4
    assert inner.name == "2.product" and inner.times and factor.kind == "Scaled"
    assert report.totals.parameters < report.totals.dense_parameters


def test_an_own_module_is_quantized_where_it_holds_a_layer_of_the_library() -> None:
    model = nn.Sequential(net(), Transposed(sparseloom.pattern.balanced(64, 64, 16, 0.5, 1)))
    result = sparseloom.quantize_(model)
    assert [layer.names for layer in result.changed] == [("0.1.product",), ("0.3",)]
    assert {skip.name: skip.reason for skip in result.skipped} == {
        "0.0": "it is not block-sparse", "0.2": "it is not block-sparse", "1": "it is of a class of its own"
    }  # fmt: skip


def test_an_own_module_is_compared_between_ranks() -> None:
    model = sparseloom.prepare_ddp(net())
    assert "1.product.packed_index" in model._ddp_params_and_buffers_to_ignore  # type: ignore[operator]


def test_an_8_bit_layer_is_listed_stays_and_has_a_dense_form() -> None:
    model = nn.Sequential(*(BlockSparseLinear(64, 64, density=0.5, block=16) for _ in range(2)))
    sparseloom.quantize_(model, {"0": torch.int8})
    eight, dense = model[0], model[0].to_dense()  # type: ignore[operator]
    torch.testing.assert_close(dense.weight, eight.dequantized().to_dense().weight)  # type: ignore[operator]
    assert [layer.weight.scaled for layer in sparse_layers(model)] == [True, False]
    result = sparseloom.densify_(model)
    assert model[0] is eight and result.skipped[0].reason.startswith("it is quantized")
    # no kernel of this machine may take 8 bits, and the model is not called to be listed
    (found,) = sparse_layers(model)
    listed = layers.listed(found.name, found.weight.owner, found.weight)
    assert listed.note == "not timed alone" and listed.dtype == "int8" and listed.block == (16, 16)
