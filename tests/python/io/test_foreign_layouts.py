"""load of weights in sparse layouts of torch, SciPy, Matrix Market, STen and pytorch_block_sparse."""

import warnings

import pytest
import torch
from foreign_files import FOREIGN, dense_of, pytorch_block_sparse_entries
from torch import nn

import sparseloom
from sparseloom import Error, load
from sparseloom.nn import BlockSparseLinear, Semi24Linear


def test_tensors_of_sten_are_unwrapped_where_it_is_installed():
    with pytest.raises(Error, match=r"sten\.pt to hold tensors alone.*pass the state_dict"):
        load(FOREIGN / "sten.pt", nn.Linear(6, 5))

    class Wrapped:  # what unpickling makes with STen: a dummy, and the tensor inside
        def __init__(self, tensor):
            self.wrapped_tensor = tensor.to_sparse_csr()

    layer, weight = nn.Linear(6, 5), torch.randn(5, 6) * (torch.rand(5, 6) < 0.5)
    load({"weight": Wrapped(weight), "bias": torch.ones(5)}, layer)
    assert torch.equal(layer.weight, weight) and torch.equal(layer.bias, torch.ones(5))


def test_a_matrix_market_file_is_one_weight(tmp_path):
    layer = nn.Linear(7, 5)
    bias = layer.bias.detach().clone()
    load(FOREIGN / "weight.mtx", layer)
    assert torch.equal(layer.weight, dense_of("weight")["weight"]) and torch.equal(layer.bias, bias)
    with pytest.raises(Error, match="a matrix of 6 x 7, as the weight, got 5 x 7"):
        load(FOREIGN / "weight.mtx", nn.Linear(7, 6))
    with pytest.raises(Error, match="a linear layer for a Matrix Market file"):
        load(FOREIGN / "weight.mtx", nn.Sequential(layer))


HEADER = "%%MatrixMarket matrix "


@pytest.mark.parametrize(
    "text, weight",
    [
        (HEADER + "coordinate pattern general\n% a word\n2 2 2\n1 2\n2 1\n", [[0, 1], [1, 0]]),
        (HEADER + "coordinate integer symmetric\n2 2 2\n1 1 3\n2 1 -4\n", [[3, -4], [-4, 0]]),
        (HEADER + "coordinate real skew-symmetric\n2 2 1\n2 1 1.5\n", [[0, -1.5], [1.5, 0]]),
        (HEADER + "array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
        (HEADER + "array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        (HEADER + "coordinate real general\r\n2 2 2\r\n1 1 1.5D+01\r\n2 1 -2d-1\r\n", [[15, 0], [-0.2, 0]]),
        (HEADER + "coordinate real symmetric\n2 2 3\n1 1 0\n1 2 0\n2 2 3\n", [[0, 0], [0, 3]]),
        (HEADER + "coordinate real symmetric\n2 2 2\n1 2 5\n2 1 5\n", r"got both \(1, 2\) and \(2, 1\)"),
        (HEADER + "coordinate real general\n2 2 1\n3 1 1\n", "whole places inside 2 x 2, got another one"),
        (HEADER + "coordinate real general\n2 2 1\n1.5 1 1\n", "whole places inside 2 x 2, got another one"),
        (
            HEADER + "coordinate real general\n2 2 2\n1 1\n2 2 3 4\n",
            "2 lines of 3 numbers, got 2 lines with 6",
        ),
        (HEADER + "coordinate real general\n2 2 9000000000\n1 1 1\n", "9000000000 lines of 3 numbers"),
        (HEADER + "coordinate real general\n2 2 1\n1 1 x\n", "expected numbers"),
        (HEADER + "coordinate complex general\n2 2 1\n1 1 1 1\n", "got coordinate complex general"),
        ("2 2 1\n1 1 1\n", "a first line %%MatrixMarket"),
    ],
)
def test_each_kind_of_matrix_market_file(text, weight, tmp_path):
    path = tmp_path / "weight.mtx"
    path.write_text(text)
    layer = nn.Linear(2, 2)
    if isinstance(weight, str):
        with pytest.raises(Error, match=weight):
            load(path, layer)
    else:
        load(path, layer)
        assert torch.equal(layer.weight, torch.tensor(weight, dtype=torch.float32))


@pytest.mark.package("scipy")
@pytest.mark.parametrize("kind", ["dense", "coo", "bsr"])
@pytest.mark.parametrize("values", ["float32", "float16", "symmetric", "skew"])
def test_matrix_market_files_of_scipy_are_read_as_they_are_written(kind, values, tmp_path):
    import numpy as np
    from scipy import io, sparse

    weight = 3 * torch.randn(12, 12) * (torch.rand(12, 12) < 0.5)
    if values in ("symmetric", "skew"):
        weight = weight + weight.t() if values == "symmetric" else weight - weight.t()
    matrix = weight.numpy()
    if kind != "dense":
        matrix = sparse.coo_array(matrix) if kind == "coo" else sparse.bsr_array(matrix, blocksize=(4, 1))
    if values == "float16":  # SciPy cuts it to integers, which the file does not tell
        weight = weight.half().trunc().float()
        if kind == "dense":
            matrix = matrix.astype(np.float16)
        else:
            matrix = matrix.tocoo()
            matrix.data = matrix.data.astype(np.float16)
    io.mmwrite(tmp_path / "weight.mtx", matrix, symmetry="general" if values == "float16" else None)
    layer = nn.Linear(12, 12)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load(tmp_path / "weight.mtx", layer)
    assert torch.equal(layer.weight, weight)
    cut = [str(each.message) for each in said if "from float16, it cut the fractions" in str(each.message)]
    assert len(cut) == (values == "float16")


def test_weights_in_layouts_of_torch_bring_their_structure():
    weight = torch.randn(32, 64) * torch.rand(2, 4).lt(0.5).repeat_interleave(16, 0).repeat_interleave(16, 1)
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    load({"0.weight": weight.to_sparse_bsr((16, 16))}, model, sparsify=True)
    assert isinstance(model[0], BlockSparseLinear) and model[0].block == (16, 16)
    assert torch.equal(model[0].to_dense().weight, weight)
    layer = Semi24Linear.from_dense(nn.Linear(64, 64, bias=False).half(), prune="magnitude")
    dense = nn.Sequential(nn.Linear(64, 64, bias=False)).half()
    load({"0.weight": layer.to_torch("cutlass")}, dense, sparsify=True)
    assert isinstance(dense[0], Semi24Linear)
    assert torch.equal(dense[0].to_dense().weight, layer.to_dense().weight)


@pytest.mark.package("scipy")
@pytest.mark.parametrize(
    "form, drifted",  # what operations of BSR leave: at most 4 x 4, one column, or single elements
    [
        *((form, None) for form in ("csr", "csc", "coo", "lil")),
        *(("bsr", b) for b in ((4, 4), (32, 1), (1, 1))),
    ],
)
@pytest.mark.parametrize("bits", [32, 64])
def test_matrices_of_scipy_are_weights_and_bsr_brings_its_blocks(form, drifted, bits):
    import numpy as np
    from scipy import sparse

    made = sparseloom.pattern.random(96, 128, (32, 16), 0.4, 3)
    mask = made.mask.repeat_interleave(32, 0).repeat_interleave(16, 1)
    weight = torch.randn(96, 128) * mask
    matrix = getattr(sparse, f"{form}_array")(weight.numpy())
    if drifted:
        matrix = sparse.bsr_array(weight.numpy(), blocksize=drifted)
    for name in ("indptr", "indices"):
        if form in ("csr", "csc", "bsr"):
            setattr(matrix, name, getattr(matrix, name).astype(np.int32 if bits == 32 else np.int64))
    model = nn.Sequential(nn.Linear(128, 96, bias=False))
    load({"0.weight": matrix}, model, sparsify=True)
    if form == "bsr":
        assert isinstance(model[0], BlockSparseLinear)
        side = model[0].block
        assert side[0] >= 32 and side[1] >= 16 and model[0].pattern.density == made.density
        assert torch.equal(model[0].to_dense().weight, weight)
    else:
        assert torch.equal(model[0].weight, weight)


def test_blocks_of_pytorch_block_sparse_bring_their_pattern():
    from test_loading import masked

    made = sparseloom.pattern.random(96, 128, 32, 0.5, 3)
    weight = masked(torch.randn(96, 128), made)
    entries = {f"0.{key}": tensor for key, tensor in pytorch_block_sparse_entries(weight, made).items()}
    model = nn.Sequential(nn.Linear(128, 96))
    load(dict(entries), model)
    assert torch.equal(model[0].weight, weight) and torch.equal(model[0].bias, torch.arange(96.0))
    load(dict(entries), model, sparsify=True)
    assert model[0].pattern == made and torch.equal(model[0].to_dense().weight, weight)
    long = torch.zeros(2**22, dtype=torch.int32)
    with pytest.raises(Error, match="more blocks than one in 1024"):
        load(entries | {"0.weight.col_start_ends_b": long}, nn.Sequential(nn.Linear(128, 96)))
