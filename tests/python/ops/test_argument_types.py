"""Numbers, paths and tensors of other kinds: numpy's and bytes are taken, what cannot be meant is our
Error."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import SparseTensor, SparsityBuilder, ops, pattern
from sparseloom.layouts import Coo, Csr, Nmg
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear, SparseLinear
from sparseloom.sparsify import ScalarFraction

INTEGERS = [np.int64, np.int32, np.uint8, torch.tensor]


@pytest.mark.parametrize("integer", INTEGERS)
def test_numpy_s_and_torch_s_integers_are_features_sizes_blocks_and_counts(integer):
    n, m, side = integer(64), integer(96), integer(16)
    layer = BlockSparseLinear(n, m, density=np.float32(0.5), block=side)
    assert type(layer.in_features) is type(layer.out_features) is int and layer.block == (16, 16)
    assert all(type(side) is int for side in layer.block) and layer(torch.ones(2, 64)).shape == (2, 96)
    made = pattern.random(m, n, (side, integer(32)), np.float64(0.5), seed=integer(3))
    assert made == pattern.random(96, 64, (16, 32), 0.5, seed=3) and type(made.rows) is int
    full = sparseloom.Pattern(m, n, side, torch.ones(6, 4, dtype=torch.bool))
    assert full == pattern.full(m, n, side) == pattern.full(96, 64, 16)
    assert pattern.banded(m, n, side, integer(1)) == pattern.banded(96, 64, 16, 1)
    assert pattern.block_diagonal(m, n, side, integer(2)) == pattern.block_diagonal(96, 64, 16, 2)
    assert pattern.top_k(m, n, side, torch.rand(6, 4), integer(3)).blocks == 3
    assert sparseloom.Pattern.from_index(*made.index(), m, n, (side, integer(32))) == made
    assert layer.plan(integer(8))["kernel"] == layer.plan(8)["kernel"]
    assert sparseloom.BlockSparse(
        density=np.float32(0.5), block=side, seed=integer(1), select="random"
    ).shape == (16, 16)
    model = nn.Sequential(nn.Linear(64, 96))
    sparseloom.sparsify_(model, {"0": sparseloom.BlockSparse(density=np.float32(0.5), block=side)})
    assert model[0].pattern.blocks == 12


@pytest.mark.parametrize("as_path", [str.encode, str, Path], ids=["bytes", "str", "Path"])
def test_paths_of_every_kind_are_saved_to_and_loaded_from(as_path, tmp_path):
    model, again = (
        nn.Sequential(BlockSparseLinear(64, 96, density=0.5)),
        nn.Sequential(BlockSparseLinear(64, 96, density=0.5)),
    )
    path = as_path(str(tmp_path / "model.safetensors"))
    sparseloom.save(model, path)
    sparseloom.load(path, again)
    assert torch.equal(again[0].values, model[0].values)


LAYER = BlockSparseLinear(64, 64, density=0.5)
INDEX, X, V = LAYER.index, torch.ones(2, 64), LAYER.values.detach()
QUANTIZED = QuantizedBlockSparseLinear.from_sparse(LAYER)
MASK = torch.ones(2, 2, dtype=torch.bool)
CSR = Csr.from_dense(X, density=0.5)
STORED, SPARSE = CSR.pack(X), SparseLinear(64, 64, layout="csr", density=0.5)
BUILDER = SparsityBuilder(nn.Sequential(nn.Linear(4, 4)))
EMPTY = torch.zeros(1, 2, 70, 0)
WRONG = {
    "features as str": lambda: BlockSparseLinear("64", 64, density=0.1),
    "features as float": lambda: BlockSparseLinear(64, 64.0, density=0.1),
    "features as bool": lambda: BlockSparseLinear(True, 64, density=0.1),
    "features below zero": lambda: BlockSparseLinear(np.int64(-1), 64, density=0.1),
    "features as list": lambda: BlockSparseLinear([64], 64, density=0.1),
    "density as str": lambda: BlockSparseLinear(64, 64, density="0.1"),
    "density as list": lambda: BlockSparseLinear(64, 64, density=[0.1]),
    "density nan": lambda: BlockSparseLinear(64, 64, density=float("nan")),
    "block as str": lambda: BlockSparseLinear(64, 64, density=0.1, block="32"),
    "block as float": lambda: BlockSparseLinear(64, 64, density=0.1, block=32.0),
    "block as three": lambda: BlockSparseLinear(64, 64, density=0.1, block=(32, 32, 32)),
    "block of strings": lambda: BlockSparseLinear(64, 64, density=0.1, block=("32", 32)),
    "pattern as list": lambda: BlockSparseLinear(64, 64, pattern=[[1]]),
    "activation as list": lambda: BlockSparseLinear(64, 64, density=0.1, activation=["relu"]),
    "x as list": lambda: LAYER([[1.0, 2.0]]),
    "x as numpy": lambda: LAYER(np.ones((2, 64), dtype=np.float32)),
    "x as None": lambda: LAYER(None),
    "x as scalar": lambda: LAYER(torch.tensor(1.0)),
    "residual as list": lambda: LAYER(X, [[1.0]]),
    "quantized x as list": lambda: QUANTIZED([[1.0, 2.0]]),
    "quantized of a list": lambda: QuantizedBlockSparseLinear([[1]]),
    "quantized x_scale as str": lambda: QuantizedBlockSparseLinear(LAYER.pattern, x_scale="1"),
    "quantized activation": lambda: QuantizedBlockSparseLinear(LAYER.pattern, activation="tanh"),
    "from_dense of a list": lambda: BlockSparseLinear.from_dense([[1.0]], density=0.1),
    "from_dense density as str": lambda: BlockSparseLinear.from_dense(torch.ones(64, 64), density="0.1"),
    "from_dense bias as list": lambda: BlockSparseLinear.from_dense(
        torch.ones(64, 64), density=0.5, bias=[0.0] * 64
    ),
    "BlockSparse density as str": lambda: sparseloom.BlockSparse(density="0.1"),
    "BlockSparse density as list": lambda: sparseloom.BlockSparse(density=[0.1]),
    "BlockSparse block as str": lambda: sparseloom.BlockSparse(density=0.1, block="32"),
    "BlockSparse select as list": lambda: sparseloom.BlockSparse(density=0.1, select=["magnitude"]),
    "BlockSparse seed as str": lambda: sparseloom.BlockSparse(density=0.1, seed="1"),
    "Pattern rows as str": lambda: sparseloom.Pattern("64", 64, 32, MASK),
    "Pattern mask as list": lambda: sparseloom.Pattern(64, 64, 32, [[True]]),
    "Pattern from lists": lambda: sparseloom.Pattern.from_index([0, 1, 1], [0], 64, 64, 32),
    "random density as str": lambda: pattern.random(64, 64, 32, "0.1"),
    "random rows as str": lambda: pattern.random("64", 64, 32, 0.1),
    "random rows as float": lambda: pattern.random(64.5, 64, 32, 0.1),
    "random seed as str": lambda: pattern.random(64, 64, 32, 0.1, seed="1"),
    "balanced density as None": lambda: pattern.balanced(64, 64, 32, None),
    "biregular density as tensor list": lambda: pattern.biregular(64, 64, 32, [torch.tensor(0.5)]),
    "banded bandwidth as str": lambda: pattern.banded(64, 64, 32, "1"),
    "block_diagonal groups as float": lambda: pattern.block_diagonal(64, 64, 32, 1.5),
    "full rows as str": lambda: pattern.full("64", 64, 32),
    "from_mask of a list": lambda: pattern.from_mask(64, 64, 32, [[True]]),
    "top_k of a list": lambda: pattern.top_k(64, 64, 32, [[1.0, 2.0], [3.0, 4.0]], 1),
    "top_k count as str": lambda: pattern.top_k(64, 64, 32, torch.rand(2, 2), "1"),
    "top_k scope as list": lambda: pattern.top_k(64, 64, 32, torch.rand(2, 2), 1, ["row"]),
    "pattern.from_dense of a list": lambda: pattern.from_dense([[1.0]], 32, 0.5),
    "pattern.from_dense of a vector": lambda: pattern.from_dense(torch.ones(64), 32, 0.5),
    "pattern.from_dense density as str": lambda: pattern.from_dense(torch.ones(64, 64), 32, "0.1"),
    "ascii as str": lambda: LAYER.pattern.ascii("64"),
    "svg as str": lambda: LAYER.pattern.svg("64"),
    "make_index of three sides": lambda: ops.make_index(INDEX.crow, INDEX.col, 64, 64, (32, 32, 32)),
    "make_index of None": lambda: ops.make_index(None, INDEX.col, 64, 64, 32),
    "make_index of a text": lambda: ops.make_index(INDEX.crow, INDEX.col, 64, 64, "32"),
    "linear of a list": lambda: ops.linear([[1.0]], V, INDEX),
    "linear values as list": lambda: ops.linear(X, [1.0], INDEX),
    "linear index as tuple": lambda: ops.linear(X, V, tuple(INDEX)),
    "linear index of tensors": lambda: ops.linear(X, V, INDEX._replace(cols=torch.ones(2))),
    "linear x as None": lambda: ops.linear(None, V, INDEX),
    "linear of an index without lists": lambda: ops.linear(X, V, INDEX._replace(packed=None)),
    "Pattern.from_index of None": lambda: sparseloom.Pattern.from_index(None, None, 64, 64, 32),
    "linear values as None": lambda: ops.linear(X, None, INDEX),
    "linear_dx dy as None": lambda: ops.linear_dx(None, V, INDEX),
    "gated_linear index as tuple": lambda: ops.gated_linear(X, V, tuple(INDEX), torch.ones(len(V))),
    "gated_linear gates as None": lambda: ops.gated_linear(X, V, INDEX, None),
    "plan index as tuple": lambda: ops.plan(tuple(INDEX), "forward", torch.float32, 5),
    "coo indices as list": lambda: Coo(64, 64, indices=[[0], [0]]),
    "csr rows as str": lambda: Csr("64", 64, crow=CSR.crow, col=CSR.col),
    "nmg g of zero": lambda: Nmg(64, 64, order=torch.zeros(1, 16, 8, dtype=torch.int16), n=1, m=4, g=0),
    "SparseLinear of integers": lambda: SparseLinear.from_dense(torch.ones(64, 64, dtype=torch.int8), "csr"),
    "attention of heads without elements": lambda: sparseloom.attention(
        EMPTY, EMPTY, EMPTY, sparseloom.AttentionPattern.from_map(torch.ones(1, 1, 2, 2).bool(), 64)
    ),
    "attention blocks beyond 31 bits": lambda: sparseloom.AttentionPattern.from_map(MASK[None, None], 2**40),
    "mixing steps that never end": lambda: pattern.mixing(pattern.full(64, 64, 32), 2**62),
    "linear index as Pattern": lambda: ops.linear(X, V, LAYER.pattern),
    "linear activation": lambda: ops.linear(X, V, INDEX, activation="tanh"),
    "linear activation while training": lambda: ops.linear(
        X, V.clone().requires_grad_(), INDEX, activation="tanh"
    ),
    "linear bias as float": lambda: ops.linear(X, V, INDEX, 1.0),
    "linear_dx of a list": lambda: ops.linear_dx([[1.0]], V, INDEX),
    "linear_dw of a list": lambda: ops.linear_dw(X, [[1.0]], INDEX),
    "make_index of lists": lambda: ops.make_index([0, 1], [0], 32, 32, (32, 32)),
    "move_blocks of a list": lambda: ops.move_blocks([1.0], INDEX.col),
    "plan tokens as str": lambda: LAYER.plan("8"),
    "plan tokens as float": lambda: LAYER.plan(8.5),
    "plan direction as list": lambda: LAYER.plan(8, ["forward"]),
    "plan activation": lambda: ops.plan(INDEX, "forward", torch.float32, 8, activation="tanh"),
    "set_topology_ of a list": lambda: LAYER.set_topology_([[True]]),
    "save to a number": lambda: sparseloom.save(LAYER, 3.5),
    "load from None": lambda: sparseloom.load(None, LAYER),
    "save of a list": lambda: sparseloom.save([LAYER], "x"),
    "sparsify_ of a list": lambda: sparseloom.sparsify_(
        [nn.Linear(4, 4)], {".*": sparseloom.BlockSparse(density=0.5)}
    ),
    "sparsify_ with a density": lambda: sparseloom.sparsify_(nn.Sequential(nn.Linear(64, 64)), {".*": 0.5}),
    "sparsify_ with a list": lambda: sparseloom.sparsify_(nn.Sequential(nn.Linear(64, 64)), [".*"]),
    "densify_ names as list": lambda: sparseloom.densify_(nn.Sequential(LAYER), [".*"]),
    "densify_ a broken regex": lambda: sparseloom.densify_(nn.Sequential(LAYER), "("),
    "quantize_ dtype as str": lambda: sparseloom.quantize_(nn.Sequential(LAYER), "int8"),
    "quantize_ x_scale as str": lambda: sparseloom.quantize_(nn.Sequential(LAYER), x_scale="1"),
    "advise of a list": lambda: sparseloom.advise([LAYER], X),
    "report of a list": lambda: sparseloom.report([LAYER], X),
    "SparseTensor option": lambda: SparseTensor.from_dense(X, "csr", keep=1),
    "SparseTensor option beside a Layout": lambda: SparseTensor.from_dense(X, CSR, density=0.5),
    "SparseTensor registry": lambda: SparseTensor.from_dense(X, "csr", registry=3),
    "SparseTensor of None": lambda: SparseTensor.of(None, STORED),
    "SparseTensor of no values": lambda: SparseTensor.of(CSR, None),
    "SparseTensor of a number as shape": lambda: SparseTensor.of(CSR, STORED, 5),
    "SparseTensor of strings as shape": lambda: SparseTensor.of(CSR, STORED, ("a", "b", "c")),
    "SparseTensor of a registry": lambda: SparseTensor.of(CSR, STORED, None, 3),
    "SparseTensor from None": lambda: SparseTensor(None, STORED),
    "SparseTensor from values as list": lambda: SparseTensor(CSR, [1.0]),
    "SparseTensor of another shape": lambda: SparseTensor(CSR, STORED, (3, 3)),
    "SparseLinear x as None": lambda: SPARSE(None),
    "SparseLinear x as list": lambda: SPARSE([1.0]),
    "SparseLinear from a list": lambda: SparseLinear.from_dense([[1.0]], "csr"),
    "SparseLinear from a vector": lambda: SparseLinear.from_dense(torch.ones(3), "csr"),
    "SparsityBuilder registry": lambda: SparsityBuilder(nn.Sequential(nn.Linear(4, 4)), registry=3),
    "SparsityBuilder initial sparsifier": lambda: BUILDER.set_weight("0.weight", "magnitude"),
    "SparsityBuilder sparsifier as class": lambda: BUILDER.set_weight("0.weight", ScalarFraction),
    "SparsityBuilder external sparsifier": lambda: BUILDER.set_weight("0.weight", external_sparsifier=3),
    "SparsityBuilder gradient's sparsifier": lambda: BUILDER.set_weight_grad("0.weight", None),
    "SparsityBuilder sparsifier as tensor": lambda: BUILDER.set_interm("0", external_sparsifier=X),
    "SparsityBuilder sparsifier as function": lambda: BUILDER.set_interm_grad("0", lambda x: x),
    "SparsityBuilder format": lambda: BUILDER.set_weight("0.weight", out_format=torch.sparse_csr),
    "SparsityBuilder name as bytes": lambda: BUILDER.set_weight(b"0.weight"),
    "SparsityBuilder name as pattern": lambda: BUILDER.set_interm(re.compile("0")),
    "sparsified_op sparsifier": lambda: sparseloom.sparsified_op(torch.add, [(3, "dense", 3, "csr")]),
    "SparsityBuilder statistics": lambda: SparsityBuilder(nn.Sequential(nn.Linear(4, 4))).set_weight(
        "0.weight", input_statistics=3
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_a_wrong_type_are_our_error(name):
    with pytest.raises(sparseloom.Error) as refused:
        WRONG[name]()
    assert refused.value.remedy
