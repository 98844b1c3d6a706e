"""Csr, Coo and Bitmap, layouts of single elements: what they store, to and from torch's, what they refuse."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import Error, layouts
from sparseloom.layouts import Bitmap, Coo, Csr
from sparseloom.nn import SparseLinear

NAN = float("nan")
ALL = pytest.mark.parametrize("cls", [Csr, Coo, Bitmap])
Elements = type[Csr] | type[Coo] | type[Bitmap]


def weight_of(rows: int, cols: int, density: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(rows + cols)
    kept = torch.rand(rows, cols, generator=generator) < density
    return torch.where(kept, torch.randn(rows, cols, generator=generator), 0).to(dtype)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_stores_what_is_not_zero(cls: Elements, dtype: torch.dtype):
    weight = weight_of(13, 29, 0.3, dtype)
    weight[4], weight[2, 3], weight[12, 28] = 0, NAN, float("-inf")
    layout = cls.from_dense(weight)
    values = layout.pack(weight)
    assert values.shape == (int((weight != 0).sum()),) and bool(values.isnan().any())
    assert all(
        part.dtype == (torch.uint8 if cls is Bitmap else torch.int32) for part in layout.tensors().values()
    )
    layout.require_consistent("test", values)
    torch.testing.assert_close(layout.to_dense(values), weight, rtol=0, atol=0, equal_nan=True)
    for theirs in (weight.to_sparse_csr(), weight.to_sparse_coo(), layout.to_torch(values)):
        again, same = cls.from_torch(theirs)
        assert torch.equal(same.nan_to_num(), values.nan_to_num())
        assert all(torch.equal(part, again.tensors()[name]) for name, part in layout.tensors().items())


def test_the_index_is_torchs():
    weight = weight_of(7, 5, 0.4)
    theirs, csr, coo = weight.to_sparse_csr(), Csr.from_dense(weight), Coo.from_dense(weight)
    assert torch.equal(csr.crow.long(), theirs.crow_indices().long())
    assert torch.equal(csr.col.long(), theirs.col_indices().long())
    assert torch.equal(coo.indices.long(), weight.to_sparse_coo().indices())
    bits = numpy.packbits(weight.numpy() != 0, axis=1, bitorder="little")
    assert torch.equal(Bitmap.from_dense(weight).bits, torch.from_numpy(bits))
    back = coo.to_csr()
    assert torch.equal(back.crow, csr.crow) and torch.equal(back.col, csr.col)
    values = csr.pack(weight)
    assert csr.to_torch(values).values().data_ptr() == values.data_ptr()
    assert coo.to_torch(values).is_coalesced()


@ALL
def test_a_mask_stores_zeros_and_a_density_the_largest(cls: Elements):
    weight = torch.tensor([[0.0, -3, 1], [2, 2, NAN], [0, 0, 0]])
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 0, 1]]).bool()
    layout = cls.from_dense(weight, mask=mask)
    assert layout.pack(weight).tolist() == [0, 1, 0]
    meta = cls.from_dense(weight.to("meta"), mask=mask)
    assert torch.equal(meta.to_dense(torch.ones(3)), mask.float())
    for density, kept in ((0, []), (1 / 9, [NAN]), (3 / 9, [-3, 2, NAN]), (4 / 9, [-3, 2, 2, NAN])):
        chosen = cls.from_dense(weight, density=density)
        assert str(chosen.pack(weight).tolist()) == str([float(each) for each in kept])
    assert cls.from_dense(weight, density=1).pack(weight).numel() == 9


@ALL
def test_entries_in_any_order_are_sorted_and_summed_once(cls: Elements):
    indices = torch.tensor([[2, 0, 2, 0, 2], [1, 3, 1, 0, 0]])
    values = torch.tensor([1.0, 5, 2**-9, 0, 7], dtype=torch.bfloat16)
    theirs = torch.sparse_coo_tensor(indices, values, (4, 4))
    for layout, summed in (cls.from_entries(4, 4, indices, values), cls.from_torch(theirs)):
        assert torch.stack(layout.places()).tolist() == [[0, 0, 2, 2], [0, 3, 0, 1]]
        assert summed.tolist() == [0, 5, 7, 1]  # 1 + 2^-9 rounds to 1, once
    with pytest.raises(Error, match="places in a weight 2 x 4, got row 2 of element 0"):
        cls.from_entries(2, 4, indices, values)
    with pytest.raises(Error, match="one element for each place"):
        cls.from_entries(4, 4, indices, values[:4])


def test_an_index_out_of_order_is_refused():
    values = torch.ones(2)
    for col in ([1, 1], [2, 0]):
        with pytest.raises(Error, match=r"element 1 at .*from_entries, which sorts and sums"):
            Csr(1, 3, crow=torch.tensor([0, 2]), col=torch.tensor(col)).require_consistent("test", values)
        with pytest.raises(Error, match=r"element 1 at .*from_entries, which sorts and sums"):
            Coo(1, 3, indices=torch.tensor([[0, 0], col])).require_consistent("test", values)
    for crow in ([0, 3], [1, 2], [0, 3, 2], [0, 2, 2]):
        with pytest.raises(Error, match="crow"):
            rows = 2 if len(crow) == 3 and crow[1] == 3 else 1
            Csr(rows, 3, crow=torch.tensor(crow), col=torch.tensor([0, 1])).require_consistent("test", values)
    with pytest.raises(Error, match="column 3 of element 1"):
        Csr(1, 3, crow=torch.tensor([0, 2]), col=torch.tensor([0, 3])).require_consistent("test", values)
    with pytest.raises(Error, match="values"):
        Csr(1, 3, crow=torch.tensor([0, 2]), col=torch.tensor([0, 1])).require_consistent("test", values[:1])


def test_bits_that_are_not_the_values_are_refused():
    layout = Bitmap.from_dense(torch.eye(3))
    layout.require_consistent("test", torch.ones(3))
    for index, at, says in (
        (0, 2, "4 bits and 3 values"),
        (1, 8, "no bit behind column 2, got one in row 1"),
    ):
        bits = layout.bits.clone()
        bits[index] += at if index else 2
        with pytest.raises(Error, match=says):
            layout.with_tensors({"bits": bits}).require_consistent("test", torch.ones(3))
    with pytest.raises(Error, match="bits of uint8"):
        Bitmap(3, 3, bits=layout.bits.int(), stored=3)
    for wrong in (layout.bits.double(), layout.bits[0], layout.bits[:, :, None], layout.bits[:2]):
        with pytest.raises(Error, match=r"bits of uint8|bits \[3, 1\]"):
            layout.of_entries({"bits": wrong})


def test_too_many_elements_are_an_error_without_memory():
    many, meta = 2**31, torch.device("meta")
    index = torch.empty(many, dtype=torch.int64, device=meta)
    says = "at most 2\\^31 - 1 stored elements, got 2147483648"
    with pytest.raises(Error, match=says):
        Csr(2, many - 1, crow=torch.tensor([0, 1, many]), col=index)
    with pytest.raises(Error, match=says):
        Coo(2, many - 1, indices=index.expand(2, many))
    for cls in (Csr, Coo, Bitmap):
        with pytest.raises(Error, match=says):
            cls.from_entries(2, many - 1, index.expand(2, many), index)
        with pytest.raises(Error, match="columns, got 2147483648"):
            cls.from_places(1, many, torch.tensor([0]), torch.tensor([0]))
    theirs = torch.sparse_coo_tensor(index.expand(2, many), torch.empty(many, device=meta), (2, many - 1))
    with pytest.raises(Error, match=says):
        Csr.from_torch(theirs)


@ALL
@pytest.mark.parametrize(
    ("weight", "options", "says"),
    [
        (torch.ones(3), {}, "a strided weight"),
        (torch.ones(2, 2).to_sparse_csr(), {}, "from_torch takes"),
        (torch.ones(2, 2), {"mask": torch.ones(2, 2)}, "a bool mask"),
        (torch.ones(2, 2), {"mask": 0.5}, r"a bool mask \[2, 2\], got 0.5"),
        (torch.ones(2, 2), {"mask": torch.ones(2, 2).bool(), "density": 0.5}, "mask or density"),
        (torch.ones(2, 2), {"density": 1.5}, "density in"),
        (torch.ones(2, 2, device="meta"), {}, "a weight with values"),
    ],
)
def test_what_from_dense_refuses(cls: Elements, weight: Tensor, options: dict, says: str):
    with pytest.raises(Error, match=says):
        cls.from_dense(weight, **options)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, 2), torch.ones(2, 2, 2).to_sparse_coo(), torch.ones(2, 2, 2).to_sparse(2)],
)
def test_other_tensors_of_torch_are_refused(tensor: Tensor):
    with pytest.raises(Error):
        Csr.from_torch(tensor)


@pytest.mark.parametrize("name", ["csr", "coo", "bitmap"])
def test_a_layer_trains_saves_and_loads(name: str, tmp_path: Path):
    torch.manual_seed(0)
    layer = SparseLinear(24, 16, layout=name, density=0.2)
    assert layouts.get(name) in (Csr, Coo, Bitmap) and layer.values.shape == (round(0.2 * 24 * 16),)
    twin, x = layer.to_dense(), torch.randn(5, 24)
    torch.testing.assert_close(layer(x), twin(x))
    layer(x).square().sum().backward()
    twin(x).square().sum().backward()
    torch.testing.assert_close(layer.values.grad, layer.layout.pack(twin.weight.grad))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    net, other = nn.Sequential(layer), nn.Sequential(SparseLinear(24, 16, layout=name, density=0.5))
    sparseloom.save(net, tmp_path / "net.safetensors")
    sparseloom.load(tmp_path / "net.safetensors", other)
    assert torch.equal(other(x), net(x))
    masked = nn.Linear(24, 16)
    with torch.no_grad():
        masked.weight[:, ::2] = 0
    torch.testing.assert_close(SparseLinear.from_dense(masked, name)(x), masked(x))
