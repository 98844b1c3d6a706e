"""load of damaged checkpoints of other packages: each is refused by its name, and the model stays."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from foreign_files import FOREIGN, net
from torch import nn

from sparseloom import Error, load
from sparseloom.nn import BlockSparseLinear, SparseLinear
from sparseloom.nn.held.pruned_entries import accept_pruned


def damaged(**changes):
    tensors = safetensors.torch.load_file(FOREIGN / "sparse-bitmask" / "model.safetensors")
    for key, change in changes.items():
        name = f"0.{key}"
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    return tensors


def with_bit(mask):
    mask = mask.clone()
    mask[0, 2] |= 0x80  # of 20 columns
    return mask


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"compressed": None}, "expected 0.compressed beside 0.bitmask, got none"),
        ({"shape": lambda t: t * 10**9}, r"expected 0.bitmask \[12000000000, 2500000000\]"),
        ({"shape": lambda t: -t}, "expected 0.shape to be two sizes"),
        ({"shape": lambda t: t.repeat(2)}, "expected 0.shape to be two sizes"),
        ({"shape": lambda t: t.to(torch.complex64)}, "expected 0.shape to be two sizes"),
        ({"bitmask": lambda t: t[:-1]}, r"0.bitmask \[12, 3\] of torch.uint8, got \[11, 3\]"),
        ({"bitmask": lambda t: t.int()}, "got .* of torch.int32"),
        ({"bitmask": with_bit}, "no bit of 0.bitmask beyond 20 columns"),
        ({"bitmask": lambda t: t.to("meta")}, "0.bitmask with values, got one on the meta device"),
        ({"compressed": lambda t: t[:-1]}, "elements, as 0.bitmask has bits"),
        ({"row_offsets": lambda t: t.flip(0)}, "0.row_offsets to add up"),
    ],
)
def test_lying_entries_are_refused_by_name(changes, said):
    model = net()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(Error, match=said):
        load(damaged(**changes), model)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "a.safetensors").write_bytes(b"x")
    index.write_text('{"weight_map": {"0.weight": "../a.safetensors"}}')
    with pytest.raises(Error, match="weight_map of files beside it"):
        load(tmp_path, net())
    index.write_text('{"weight_map": {"0.weight": "a.safetensors"}}')
    with pytest.raises(Error, match=r"a\.safetensors to be complete"):
        load(tmp_path, net())
    (tmp_path / "b.pt").write_bytes((FOREIGN / "supermask" / "model_0.pth").read_bytes()[:900])
    with pytest.raises(Error, match=r"b\.pt to be complete"):
        load(tmp_path / "b.pt", net())


class OfOtherArguments:
    """Pickled as a call that weights_only allows, with what it does not take."""

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (torch.zeros(2), 0)


def test_a_pickle_whose_calls_fail_is_incomplete(tmp_path):
    torch.save({"0.weight": OfOtherArguments()}, tmp_path / "b.pt")
    with pytest.raises(Error, match=r"b\.pt to be complete"):
        load(tmp_path / "b.pt", net())


@pytest.mark.parametrize("ends", [("orig", "mask"), ("v", "g")])
@pytest.mark.parametrize("shape", [(8, 12), (20,), (1, 20), (12, 19)])
def test_masks_and_norms_of_another_shape_are_refused(ends, shape):
    entries = net(torch.float32).state_dict()
    whole, part = (f"0.weight_{end}" for end in ends)
    entries |= {whole: entries.pop("0.weight"), part: torch.ones(shape)}
    if ends[1] == "g" and shape == (1, 20):  # norms of the columns
        return accept_pruned(entries, "0.")
    with pytest.raises(Error, match=rf"{part}.*got \[{shape[0]}"):
        accept_pruned(entries, "0.")


@pytest.mark.package("scipy")
def test_a_wrong_index_of_scipy_is_named_and_duplicates_add_up():
    from scipy import sparse

    def csr(**wrong):
        matrix = sparse.csr_array(([1.0, 2.0, 3.0], [0, 0, 1], [0, 2, 3]), shape=(2, 4))
        for name, (at, value) in wrong.items():
            getattr(matrix, name)[at] = value
        return {"weight": matrix}

    layer = nn.Linear(4, 2, bias=False)
    load(csr(), layer)
    assert layer.weight.tolist() == [[3, 0, 0, 0], [0, 3, 0, 0]]
    for wrong, said in (
        ({"indices": (2, 4)}, r"indices below 4, got indices\[2\] = 4"),
        ({"indices": (0, -1)}, r"indices below 4, got indices\[0\] = -1"),
        ({"indptr": (2, 10**6)}, "indptr to end within 3 indices, got 1000000"),
        ({"indptr": (1, 4)}, "indptr of 3 ascending entries from 0"),
    ):
        with pytest.raises(Error, match=f"weight with {said}"):
            load(csr(**wrong), layer)
    with pytest.raises(Error, match="more elements than one in 1024, got 0 of 100000 x 100000"):
        load({"weight": sparse.csr_array((10**5, 10**5))}, layer)
    with pytest.raises(Error, match="real numbers"):
        load({"weight": sparse.csr_array([[1j, 0, 0, 0]] * 2)}, layer)


def built(layout, damage):
    """A tensor of torch in a sparse layout, whose parts do not fit."""
    weight = torch.ones(32, 64)
    kept = getattr(weight, f"to_{layout}")(*[(16, 16)] if layout in ("sparse_bsr", "sparse_bsc") else [])
    shape = (2**21, 2**21) if damage == "shape" else kept.shape
    if layout == "sparse_coo":
        indices, values = kept._indices().clone(), kept._values()
        if damage in ("index", "values"):
            indices[int(damage == "values"), 0] = 99
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)
    names = ("crow", "col") if layout in ("sparse_csr", "sparse_bsr") else ("ccol", "row")
    along, across = (getattr(kept, f"{name}_indices")().clone() for name in names)
    values = kept.values()[:1] if damage == "values" else kept.values()
    if damage == "index":
        across[0] = 99
    if damage == "twice":
        across[1] = across[0]
    if damage == "dims":
        values = values[..., 0] if values.dim() > 1 else values[:, None]
    if damage == "shape":
        lines = 2**21 // (16 if "bs" in layout else 1)
        along = torch.cat([along, along[-1:].expand(lines + 1 - len(along))])
    kind = getattr(torch, layout)
    return torch.sparse_compressed_tensor(along, across, values, shape, layout=kind, check_invariants=False)


LAYOUTS = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "sparse_coo")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", ["values", "index", "shape"])
def test_torchs_sparse_tensors_with_indices_that_do_not_fit_are_refused(tmp_path, layout, damage):
    torch.save({"0.weight": built(layout, damage)}, tmp_path / "model.pth")
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    before = model[0].weight.clone()
    said = "more elements than one in 1024" if damage == "shape" else "indices fit its values"
    with pytest.raises(Error, match=said):
        load(tmp_path / "model.pth", model)
    assert torch.equal(model[0].weight, before)


WAYS_IN = {
    "linear": lambda weight: BlockSparseLinear(64, 32, False, density=1.0, block=16).load_state_dict(
        {"weight": weight}
    ),
    "csr": lambda weight: SparseLinear.from_dense(torch.ones(32, 64), "csr").load_state_dict(
        {"weight": weight}
    ),
    "from_dense": lambda weight: SparseLinear.from_dense(weight, "csr"),
    "from_torch_bsr": lambda weight: BlockSparseLinear.from_torch_bsr(weight, reblock=16),
    "blocks": lambda weight: BlockSparseLinear.from_torch_bsr(weight),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", ["values", "index", "twice", "dims"])
def test_every_way_in_refuses_them(way, layout, damage):
    if (damage in ("twice", "dims") and layout == "sparse_coo") or (way == "blocks" and "bs" not in layout):
        return
    with pytest.raises(
        (Error, RuntimeError), match=r"indices fit its values|two-dimensional|\[\w+\] expected"
    ):
        WAYS_IN[way](built(layout, damage))


@pytest.mark.package("scipy")
@pytest.mark.parametrize(
    "form, wrong, said",
    [
        ("coo", {"row": [0]}, r"as many rows and columns as values, got \[1\] and \[3\] and \[3\]"),
        ("coo", {"data": [[1.0, 2.0, 3.0]]}, "as many rows and columns as values"),
        ("csr", {"indptr": [0.0, 2.5, 3.0]}, r"whole numbers in one line, got float64 \[3\]"),
        ("csc", {"indices": [[0, 1, 0]]}, r"whole numbers in one line, got int64 \[1, 3\]"),
        ("csr", {"indptr": np.array([0, 200, 3], np.uint8)}, "indptr of 3 ascending entries from 0"),
        ("csr", {"indices": np.array([0, 2**63, 1], np.uint64)}, r"indices below 2\^63"),
        ("csr", {"indices": np.array([0, 2**32, 1])}, r"indices below 4, got indices\[1\] = 4294967296"),
        ("bsr", {"indices": np.array([0, 2**32, 1])}, r"indices below 4, got indices\[1\] = 4294967296"),
        ("bsr", {"data": 1.0}, r"data of blocks, got \[\]"),
    ],
)
def test_parts_of_scipys_matrices_that_do_not_belong_together_are_refused(form, wrong, said):
    from scipy import sparse

    matrix = getattr(sparse, f"{form}_matrix")(np.array([[1.0, 0, 2.0, 0], [0, 3.0, 0, 0]]))
    for name, value in wrong.items():
        setattr(matrix, name, np.array(value))
    with pytest.raises(Error, match=said):
        load({"weight": matrix}, nn.Linear(4, 2, bias=False))


@pytest.mark.parametrize(
    "heads, hidden, gone",
    [
        (4, -16, [1]),
        (-4, 16, [1]),
        (2**40, 1, [1]),
        (3, 16, [1]),
        (True, 16, [0]),
        (4, 2**62, [1]),
        (4, 16, [4]),
    ],
)
def test_heads_of_impossible_numbers_are_refused_before_a_list_of_them_is_made(heads, hidden, gone, tmp_path):
    told = {"num_attention_heads": heads, "hidden_size": hidden, "pruned_heads": {"0": gone}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    entry = "layer.0.attention.self.query.weight"
    safetensors.torch.save_file({entry: torch.ones(12, 16)}, tmp_path / "model.safetensors")
    with pytest.raises(Error, match="check config"):
        load(tmp_path, nn.Linear(16, 16))
