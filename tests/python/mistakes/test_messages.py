"""Mistakes that users make, over all public functions and layer kinds: none is accepted in silence, and none
gives a bare error of Python or torch. The message says op, expected, actual and remedy."""

import functools
import re
import warnings

import pytest
import torch
from torch import nn

import sparseloom as sl
from sparseloom import attention, layouts, optim, pattern, sparsify
from sparseloom.attention import patterns as attended
from sparseloom.errors import Error
from sparseloom.sparsify import methods, schedules

BLOCKS = sl.BlockSparse(16, 0.5)
X = torch.randn(4, 64)
with warnings.catch_warnings(action="ignore"):  # torch's quantized tensors will go
    QUANTIZED = torch.quantize_per_tensor(torch.zeros(5), 1.0, 0, torch.qint8)


def dense():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))


@functools.cache
def unannounced():
    import logging

    logging.getLogger("sparseloom").addHandler(logging.NullHandler())


def sparse(recipe=BLOCKS, **how):
    model = dense()
    sl.sparsify_(model, {"0": recipe}, **how)
    return model


def done():
    return sl.sparsify_(dense(), {"0": BLOCKS})


def linear(**how):
    return sl.BlockSparseLinear(64, 32, **({"density": 0.5, "block": 16} | how))


def conv(**how):
    return sl.BlockSparseConv2d(32, 32, 3, **({"density": 0.5, "block": 16} | how))


def lstm():
    return sl.BlockSparseLSTM(32, 32, density=0.5, block=16)


def sgd():
    return torch.optim.SGD(dense().parameters(), 0.1)


def reported():
    return sl.report(dense(), X, seconds=0.001)


def seen():
    return pattern.balanced(64, 64, 16, 0.5, 0)


class Callable_:
    pass


#: What was done wrong: the call, and what its message has to say.
MISTAKES = {
    # --- sparsify_ and its recipes
    "sparsify_ without patterns": (lambda: sl.sparsify_(dense()), "patterns"),
    "sparsify_ without anything": (lambda: sl.sparsify_(), r"sparsify_\(model, patterns\)"),
    "sparsify_ pattern=": (lambda: sl.sparsify_(dense(), pattern={"0": BLOCKS}), "did you mean patterns"),
    "sparsify_ config=": (lambda: sl.sparsify_(dense(), config={"0": BLOCKS}), "patterns"),
    "sparsify_ stric=": (lambda: sl.sparsify_(dense(), {"0": BLOCKS}, stric=True), "did you mean strict"),
    "sparsify_ foreign argument": (lambda: sl.sparsify_(dense(), {"0": BLOCKS}, amount=0.5), "leave it out"),
    "sparsify_ optimizer third": (
        lambda: sl.sparsify_(dense(), {"0": BLOCKS}, sgd()),
        "optimizer= by name|pass strict=",
    ),
    "sparsify_ of a string": (lambda: sl.sparsify_("model", {"0": BLOCKS}), "nn.Module"),
    "sparsify_ swapped": (lambda: sl.sparsify_({"0": BLOCKS}, dense()), "nn.Module"),
    "sparsify_ a list": (lambda: sl.sparsify_(dense(), ["0"]), "recipe alone"),
    "sparsify_ a density": (lambda: sl.sparsify_(dense(), 0.5), "BlockSparse"),
    "sparsify_ an empty dict": (lambda: sl.sparsify_(dense(), {}), "BlockSparse"),
    "sparsify_ a density for a name": (lambda: sl.sparsify_(dense(), {"0": 0.5}), "Csr"),
    "sparsify_ a recipe's class": (lambda: sl.sparsify_(dense(), {"0": sl.BlockSparse}), "BlockSparse"),
    "sparsify_ a layout's class": (lambda: sl.sparsify_(dense(), {"0": layouts.Csr}), "Csr"),
    "sparsify_ a misspelt name": (lambda: sl.sparsify_(dense(), {"00": BLOCKS}), "linear layers are 0"),
    "sparsify_ an invalid regex": (lambda: sl.sparsify_(dense(), {"*": BLOCKS}), "escape"),
    "sparsify_ a number as key": (lambda: sl.sparsify_(dense(), {0: BLOCKS}), "names, regular"),
    "sparsify_ a class without layers": (lambda: sl.sparsify_(dense(), {nn.Conv2d: BLOCKS}), "Conv2d"),
    "sparsify_ no module's class": (lambda: sl.sparsify_(dense(), {int: BLOCKS}), "classes of modules"),
    "sparsify_ a ReLU": (lambda: sl.sparsify_(dense(), {"1": BLOCKS}), "ReLU"),
    "sparsify_ twice": (lambda: sl.sparsify_(sparse(), {"0": BLOCKS}), "sparse already"),
    "sparsify_ too large blocks": (
        lambda: sl.sparsify_(dense(), {"2": sl.BlockSparse(128, 0.5)}),
        "too small",
    ),
    "sparsify_ of one layer": (lambda: sl.sparsify_(nn.Linear(64, 32), BLOCKS), "from_dense"),
    "sparsify_ strict a string": (lambda: sl.sparsify_(dense(), BLOCKS, strict="yes"), "strict to be a bool"),
    "sparsify_ dense_copy a string": (lambda: sl.sparsify_(dense(), BLOCKS, dense_copy="yes"), "dense_copy"),
    "sparsify_ an optimizer's class": (
        lambda: sl.sparsify_(dense(), BLOCKS, optimizer=torch.optim.SGD),
        "optimizer",
    ),
    "sparsify without underscore": (lambda: sl.sparsify(dense(), {"0": BLOCKS}), "sparsify_"),
    "the result called": (lambda: done()(X), "in place: call model"),
    "the result's parameters": (lambda: done().parameters_().x, None),
    "the result's train": (lambda: done().train(), "in place"),
    "the result's state_dict": (lambda: done().state_dict(), "in place"),
    "no method": (lambda: done().method, "method="),
    "BlockSparse densty=": (lambda: sl.BlockSparse(16, densty=0.5), "did you mean density"),
    "BlockSparse sparsity=": (lambda: sl.BlockSparse(16, sparsity=0.75), "density=, the share that stays"),
    "BlockSparse block_size=": (lambda: sl.BlockSparse(block_size=16, density=0.5), "pass block="),
    "BlockSparse blocks=": (lambda: sl.BlockSparse(blocks=16, density=0.5), "block"),
    "BlockSparse without density": (lambda: sl.BlockSparse(16), "density"),
    "BlockSparse density 50": (lambda: sl.BlockSparse(16, 50), r"density in \[0, 1\]"),
    "BlockSparse density text": (lambda: sl.BlockSparse(16, "0.5"), "number"),
    "BlockSparse density NaN": (lambda: sl.BlockSparse(16, float("nan")), "density"),
    "BlockSparse block 12": (lambda: sl.BlockSparse(12, 0.5), "8, 16, 32"),
    "BlockSparse block of three": (lambda: sl.BlockSparse((16, 16, 16), 0.5), "pair"),
    "BlockSparse block text": (lambda: sl.BlockSparse("16x16", 0.5), "pair"),
    "BlockSparse select misspelt": (lambda: sl.BlockSparse(16, 0.5, "magnitud"), "magnitude"),
    "BlockSparse scope misspelt": (lambda: sl.BlockSparse(16, 0.5, scope="rows"), "row"),
    "BlockSparse seed text": (lambda: sl.BlockSparse(16, 0.5, "random", seed="0"), "seed"),
    "BlockSparse method misspelt": (lambda: sl.BlockSparse(16, 0.5, method="riggl"), "did you mean 'rigl'"),
    "BlockSparse method without defaults": (lambda: sl.BlockSparse(16, method="l0"), r"methods.l0\("),
    "BlockSparse method a schedule": (lambda: sl.BlockSparse(16, 0.5, method=schedules.Constant()), "rigl"),
    "BlockSparse six arguments": (
        lambda: sl.BlockSparse(16, 0.5, "l2", 0, "layer", None, 0.5, None, None, 3),
        "without a name",
    ),
    "BlockSparse twice": (lambda: sl.BlockSparse(16, 0.5, density=0.5), "pass it once"),
    "Semi24 of a density": (lambda: sl.Semi24(density=0.25), "0.5"),
    "Semi24 misspelt": (lambda: sl.Semi24("magnitud"), "magnitude"),
    "Semi24 prune and select": (lambda: sl.Semi24("magnitude", select="magnitude"), "leave one"),
    "Semi24 foreign": (lambda: sl.Semi24(pattern="2:4"), "arguments of"),
    "Semi24 of a dense weight": (lambda: sl.sparsify_(dense(), {"0": sl.Semi24()}), "prune"),
    "Csr densty=": (lambda: sl.Csr(densty=0.1), "did you mean density"),
    "Csr of 10 percent": (lambda: sl.Csr(10), r"density in \[0, 1\]"),
    "Coo sparsity=": (lambda: sl.Coo(sparsity=0.9), "density="),
    "Nm without m": (lambda: sl.Nm(2), "m"),
    "Nm upside down": (lambda: sl.Nm(4, 2), "n <= m"),
    "Nm of text": (lambda: sl.Nm(2, "4"), "m to be an int"),
    "InLayout misspelt": (lambda: sl.InLayout("crs"), "csr"),
    "InLayout a number": (lambda: sl.InLayout(3), "name or its class"),
    "InLayout densty=": (lambda: sl.InLayout("csr", densty=0.1), "did you mean density"),
    "InLayout nm without n": (lambda: sl.InLayout("nm"), "n, m"),
    "InLayout method a number": (lambda: sl.InLayout("csr", 0.1), "density=0.1"),
    "InLayout method of stored blocks": (lambda: sl.InLayout("csr", "rigl", density=0.1), "dense weight"),
    # --- the other verbs
    "densify_ without a model": (lambda: sl.densify_(), r"densify_\(model"),
    "densify_ of a dense model": (lambda: sl.densify_(dense()), "without any"),
    "densify_ misspelt name": (lambda: sl.densify_(sparse(), "fc"), "name one of these"),
    "densify_ name=": (lambda: sl.densify_(sparse(), name="0"), "did you mean names"),
    "densify without underscore": (lambda: sl.densify(sparse()), "densify_"),
    "pack without underscore": (lambda: sl.pack(sparse()), "pack_"),
    "pack_ of a string": (lambda: sl.pack_("model"), "nn.Module"),
    "pack_ a name": (lambda: sl.pack_(sparse(), "0"), "optimizer"),
    "unpack_ of a dense model": (lambda: sl.unpack_(dense()), "sparse|none"),
    "unpack_ optimiser=": (lambda: sl.unpack_(sparse(), optimiser=sgd()), "did you mean optimizer"),
    "quantize_ of a dense model": (lambda: sl.quantize_(dense()), "sparsify_ first"),
    "quantize_ to int4": (lambda: sl.quantize_(sparse(), torch.int32), "int8"),
    "quantize_ dtype=": (lambda: sl.quantize_(sparse(), dtype=torch.int8), "leave it out|did you mean"),
    "quantize_ text": (lambda: sl.quantize_(sparse(), "int8"), "int8"),
    "quantize_ a misspelt name": (lambda: sl.quantize_(sparse(), {"zero": torch.int8}), "they are 0"),
    "quantize_ scale 0": (lambda: sl.quantize_(sparse(), x_scale=0.0), "factors > 0"),
    "quantize without underscore": (lambda: sl.quantize(sparse()), "quantize_"),
    "fold_batchnorm_ of a number": (lambda: sl.fold_batchnorm_(3), "nn.Module"),
    "fold_batchnorm_ unknown names": (lambda: sl.fold_batchnorm_(sparse(), [("a", "b")]), "no a"),
    "fold_batchnorm_ pair=": (lambda: sl.fold_batchnorm_(sparse(), pair=[]), "did you mean pairs"),
    "permute_channels_ without an input": (lambda: sl.permute_channels_(dense()), "example_input"),
    "permute_channels_ no such layer": (lambda: sl.permute_channels_(dense(), X, "fc"), "chain"),
    "permute_channels_ rounds text": (lambda: sl.permute_channels_(dense(), X, rounds="3"), "rounds"),
    "permute_channels_ input=": (lambda: sl.permute_channels_(dense(), inputs=X), "example_input"),
    "prune_ without data": (lambda: sl.prune_(dense(), BLOCKS), "data"),
    "prune_ dataset=": (lambda: sl.prune_(dense(), BLOCKS, dataset=[X]), "pass data="),
    "prune_ misspelt method": (lambda: sl.prune_(dense(), BLOCKS, method="sparsgpt", data=[X]), "sparsegpt"),
    "prune_ a density": (lambda: sl.prune_(dense(), 0.5, data=[X]), "recipe"),
    "prune_ a density for a name": (lambda: sl.prune_(dense(), {"0": 0.5}, data=[X]), "BlockSparse"),
    "prune_ an empty list": (lambda: sl.prune_(dense(), {"0": BLOCKS}, data=[]), "data|batch"),
    "prune_ progress a number": (
        lambda: sl.prune_(dense(), BLOCKS, data=[X], progress=3),
        "bool or a function",
    ),
    "prune without underscore": (lambda: sl.prune(dense(), BLOCKS), "prune_"),
    "shrink_ without anything": (lambda: sl.shrink_(), "model"),
    "shrink_ of text": (lambda: sl.shrink_("model"), "nn.Module|argument"),
    "shrink without underscore": (lambda: sl.shrink(dense()), "shrink_"),
    "recover without data": (lambda: sl.recover(sparse()), "argument"),
    "recover teacher misspelt": (lambda: sl.recover(sparse(), teacer=dense()), "teacher|arguments of"),
    "Distillation without a teacher": (lambda: sl.Distillation(), "teacher"),
    "Distillation temperatur=": (
        lambda: sl.Distillation(dense(), temperatur=2.0),
        "did you mean temperature",
    ),
    "prepare_ddp of text": (lambda: sl.prepare_ddp("model"), "nn.Module|initialized|process"),
    "load without a model": (lambda: sl.load("model.safetensors"), r"load\(path, model\)"),
    "load of two paths": (lambda: sl.load("a", "b"), "nn.Module"),
    "load of a missing file": (lambda: sl.load("there/is/none.safetensors", dense()), "none.safetensors"),
    "load strict=": (lambda: sl.load("a.safetensors", dense(), strict=False), "arguments of"),
    "save without a path": (lambda: sl.save(dense()), r"save\(model, path\)"),
    "save swapped": (lambda: sl.save("a", dense()), "swap"),
    "save to no folder": (lambda: sl.save(dense(), "there/is/none/a.safetensors"), "none"),
    "save file=": (lambda: sl.save(dense(), file="a.safetensors"), "pass path="),
    "save another format": (lambda: sl.save(dense(), "a.safetensors", format="gguf"), "dense"),
    # --- report and advise
    "report without an input": (lambda: sl.report(dense()), r"report\(model, example_input\)"),
    "report inputs=": (lambda: sl.report(dense(), inputs=X), "example_input"),
    "report of text": (lambda: sl.report("model", X), "nn.Module"),
    "report another way": (lambda: sl.report(dense(), X, ways=["fast"]), "compiled"),
    "report a graph on the CPU": (lambda: sl.report(dense(), X, ways=["graph"]), "GPU"),
    "report batch size 0": (lambda: sl.report(dense(), X, batch_sizes=[0]), "batch_sizes"),
    "report evaluate a number": (lambda: sl.report(dense(), X, evaluate=0.9), "a function of the model"),
    "report quality a number": (lambda: sl.report(dense(), X, quality=0.9), "quality as"),
    "report of an input that does not fit": (lambda: sl.report(dense(), X[:, :3]), "a model that runs on"),
    "report shown to a path": (lambda: reported().show("a.txt"), "a stream"),
    "report saved to a number": (lambda: reported().save(3), "a path"),
    "report title a number": (lambda: reported().to_html(3), "title"),
    "report of a scripted model": (lambda: sl.report(torch.jit.script(dense()), X), "torch.jit"),
    "sparsify_ of a scripted model": (lambda: sl.sparsify_(torch.jit.script(dense()), BLOCKS), "torch.jit"),
    "advise of an input that does not fit": (lambda: sl.advise(dense(), X[:, :3]), "RuntimeError: mat1"),
    "advise of no input": (lambda: sl.advise(dense(), None), r"call advise\(model, x\)"),
    "advice, the least in words": (lambda: sl.Advice([], {}, ()).best("half"), "least"),
    "advice, the least of 25 percent": (lambda: sl.Advice([], {}, ()).best(25), r"least in \[0, 1\]"),
    "permute_channels_ of an input that does not fit": (
        lambda: sl.permute_channels_(dense(), X[:, :3]),
        "a model that runs on example_input",
    ),
    "prune_ data that does not fit": (
        lambda: sl.prune_(dense(), BLOCKS, data=[X[:, :3]]),
        "a model that runs on a batch",
    ),
    "Distillation weight text": (lambda: sl.Distillation(dense(), logits="1"), "logits"),
    "Distillation temperature text": (lambda: sl.Distillation(dense(), logits=1, temperature="2"), "temper"),
    "AdamW learning rate words": (lambda: optim.AdamW([nn.Parameter(X)], lr="1e-3"), "lr"),
    "report seconds text": (lambda: sl.report(sparse(), X, seconds="1"), "seconds"),
    "report seconds below 0": (lambda: sl.report(sparse(), X, seconds=-1), "seconds"),
    "report tokens as lists": (lambda: sl.report(dense(), {"input_ids": [[1, 2]]}), "return_tensors"),
    "advise without an input": (lambda: sl.advise(dense()), "example_input"),
    "advise density 25": (lambda: sl.advise(dense(), X, densities=[25]), "densities"),
    "advise density=": (lambda: sl.advise(dense(), X, density=0.25), "did you mean densities"),
    "advise densities text": (lambda: sl.advise(dense(), X, densities="0.25"), "densities"),
    "advise one density": (lambda: sl.advise(dense(), X, densities=0.25), "densities"),
    "advise block 12": (lambda: sl.advise(dense(), X, blocks=[12]), "8, 16, 32"),
    "advise blocks a number": (lambda: sl.advise(dense(), X, blocks=32), "blocks"),
    "advise 2:4 in training": (lambda: sl.advise(dense(), X, semi24=True, training=True), "semi24"),
    # --- layers
    "linear without density": (lambda: sl.BlockSparseLinear(64, 32), "density"),
    "linear with both": (lambda: linear(pattern=seen()), "both"),
    "linear densty=": (lambda: sl.BlockSparseLinear(64, 32, densty=0.5), "did you mean density"),
    "linear sparsity=": (lambda: sl.BlockSparseLinear(64, 32, sparsity=0.5), "density="),
    "linear without features": (lambda: sl.BlockSparseLinear(64, density=0.5), "out_features"),
    "linear features text": (lambda: sl.BlockSparseLinear("64", 32, density=0.5), "in_features"),
    "linear negative": (lambda: sl.BlockSparseLinear(-64, 32, density=0.5), "in_features"),
    "linear activation": (lambda: linear(activation="tanh"), "relu"),
    "linear another pattern": (lambda: sl.BlockSparseLinear(64, 32, pattern=seen()), "64 x 64"),
    "linear a mask as pattern": (lambda: sl.BlockSparseLinear(64, 32, pattern=torch.ones(2, 2)), "Pattern"),
    "linear on mars": (lambda: linear(device="mps"), "device"),
    "linear of integers": (lambda: linear(dtype=torch.int8), "dtype|float"),
    "linear of a list": (lambda: linear()([1.0] * 64), "tensor"),
    "linear of other features": (lambda: linear()(torch.randn(4, 63)), r"\[..., 64\]"),
    "linear of another dtype": (lambda: linear()(X.double()), "float32"),
    "linear of a residual too small": (lambda: linear()(X, torch.randn(4, 31)), "residual"),
    "linear plan without tokens": (lambda: linear().plan(), "tokens or shape"),
    "linear plan token=": (lambda: linear().plan(token=8), "did you mean tokens"),
    "linear plan of both": (lambda: linear().plan(8, shape=[8, 64]), "both"),
    "linear plan of another shape": (lambda: linear().plan(shape=[8, 63]), "64"),
    "linear plan direction": (lambda: linear().plan(8, "backward"), "forward"),
    "linear kernel set": (lambda: setattr(linear(), "kernel", "reference"), "8-bit"),
    "linear density set": (lambda: setattr(linear(), "density", 0.1), "density"),
    "linear from text": (lambda: sl.BlockSparseLinear.from_dense("fc", density=0.5), "nn.Linear"),
    "linear from_dense densty=": (
        lambda: sl.BlockSparseLinear.from_dense(nn.Linear(64, 32), densty=0.5),
        "density",
    ),
    "linear from_dense alone": (lambda: sl.BlockSparseLinear.from_dense(nn.Linear(64, 32)), "density"),
    "conv groups": (lambda: sl.BlockSparseConv2d(32, 32, 3, groups=2, density=0.5), "block-diagonal"),
    "conv without a kernel": (lambda: sl.BlockSparseConv2d(32, 32, density=0.5), "kernel_size"),
    "conv kernel=": (lambda: sl.BlockSparseConv2d(32, 32, kernel=3, density=0.5), "did you mean kernel_size"),
    "conv plan of tokens": (lambda: conv().plan(tokens=8), "x_shape"),
    "conv of 3 channels": (lambda: conv()(torch.randn(1, 3, 8, 8)), "32"),
    "conv from a linear": (lambda: sl.BlockSparseConv2d.from_dense(nn.Linear(4, 4), density=0.5), "Conv2d"),
    "transposed densty=": (lambda: sl.BlockSparseConvTranspose2d(32, 32, 3, densty=0.5), "density"),
    "lstm without density": (lambda: sl.BlockSparseLSTM(32, 32), "density"),
    "lstm hidden=": (lambda: sl.BlockSparseLSTM(32, hidden=32, density=0.5), "did you mean hidden_size"),
    "lstm plan without a batch": (lambda: lstm().plan(), "batch, tokens or shape"),
    "lstm plan of another shape": (lambda: lstm().plan(shape=[4, 2, 31]), "32"),
    "lstm of other features": (lambda: lstm()(torch.randn(4, 2, 31)), "32|input"),
    "gru of no size": (lambda: sl.BlockSparseGRU(density=0.5), "input_size|argument"),
    "small world without a pattern": (lambda: sl.SmallWorldLSTM(32, 32), "pattern"),
    "csr layer without density or layout": (lambda: sl.SparseLinear(64, 32), "layout"),
    "csr layer densty=": (lambda: sl.SparseLinear(64, 32, layout="csr", densty=0.1), "density"),
    "csr layer misspelt": (lambda: sl.SparseLinear(64, 32, layout="crs", density=0.1), "csr"),
    "csr plan without tokens": (
        lambda: sl.SparseLinear(64, 32, layout="csr", density=0.1).plan(),
        "tokens or shape",
    ),
    "2:4 layer density=": (lambda: sl.Semi24Linear(64, 32, density=0.5), "arguments of"),
    "2:4 of other features": (lambda: sl.Semi24Linear(64, 32)(torch.randn(4, 63)), "64"),
    "2:4 from a dense weight": (lambda: sl.Semi24Linear.from_dense(nn.Linear(64, 32)), "prune"),
    "2:4 training misspelt": (lambda: sl.Semi24Training(64, 32, prune="greedy"), "transposable_greedy"),
    "masked density=": (lambda: sl.MaskedLinear(64, 32, density=0.5), "arguments of"),
    "masked of a mask too small": (
        lambda: sl.MaskedLinear(64, 32, block=16, mask=torch.ones(1, 1).bool()),
        "mask",
    ),
    "masked plan": (lambda: sl.MaskedLinear(64, 32, block=16).plan(8), "pack_"),
    "gated of a dense layer": (lambda: sl.GatedBlockSparseLinear(nn.Linear(64, 32)), "BlockSparseLinear"),
    "8 bits of 4": (lambda: sl.QuantizedBlockSparseLinear.from_sparse(linear(), torch.int32), "int8"),
    "8 bits of a dense layer": (
        lambda: sl.QuantizedBlockSparseLinear.from_sparse(nn.Linear(4, 4), torch.int8),
        "BlockSparseLinear",
    ),
    "attention heads": (lambda: sl.BlockSparseSelfAttention(64, 7, pattern=attended.full(64)), "divide"),
    "attention without a pattern": (lambda: sl.BlockSparseSelfAttention(64, 4), "pattern"),
    "attention layer plan": (
        lambda: sl.BlockSparseSelfAttention(64, 4, pattern=attended.full(64)).plan(tokens=8),
        "x_shape",
    ),
    "mha of a linear": (
        lambda: sl.BlockSparseMultiheadAttention(nn.Linear(4, 4), None, None),
        "MultiheadAttention",
    ),
    # --- patterns, schedules, methods, layouts, tensors
    "pattern block=12": (lambda: pattern.random(64, 64, 12, 0.5), "8, 16, 32"),
    "pattern densty=": (lambda: pattern.random(64, 64, 16, densty=0.5), "did you mean density"),
    "pattern without density": (lambda: pattern.balanced(64, 64, 16), "density"),
    "pattern density 2": (lambda: pattern.random(64, 64, 16, 2.0), "density"),
    "pattern k too large": (lambda: pattern.watts_strogatz(64, 64, 16, 99, 0.1), "k"),
    "pattern seed text": (lambda: pattern.random(64, 64, 16, 0.5, "0"), "seed"),
    "pattern set": (lambda: setattr(seen(), "density", 0.1), "immutable"),
    "pattern of floats": (lambda: sl.Pattern(64, 64, 16, torch.rand(4, 4)), "bool"),
    "pattern of qint8 lists": (lambda: sl.Pattern.from_index(QUANTIZED, QUANTIZED, 64, 64, 16), "dequant"),
    "patterns of two sizes": (lambda: seen() | pattern.full(32, 32, 16), "one shape"),
    "top_k without scores": (lambda: pattern.top_k(64, 64, 16), "scores"),
    "schedule upside down": (lambda: schedules.Cubic(start=20, end=10), "start <= end"),
    "schedule every 0": (lambda: schedules.Constant(every=0), "every"),
    "schedule interval=": (lambda: schedules.Constant(interval=10), "pass every="),
    "schedule in words": (lambda: schedules.Cubic("0", 10), "start <= end"),
    "rigl share 30": (lambda: methods.rigl(100, share=30), "share"),
    "rigl end_steps=": (lambda: methods.rigl(end_steps=100), "did you mean"),
    "method semi24 misspelt": (lambda: methods.semi24("srste"), "sr_ste"),
    "method norm": (lambda: methods.magnitude(10, norm="l3"), "norm"),
    "method by parts misspelt": (
        lambda: sparsify.Method(scedule=schedules.Constant()),
        "did you mean schedule",
    ),
    "AdamW without parameters": (lambda: optim.AdamW(), "params"),
    "AdamW learning rate text": (lambda: optim.AdamW([nn.Parameter(X)], lr=-1.0), "lr"),
    "layout misspelt": (lambda: layouts.get("crs"), "csr"),
    "layout of 3 dimensions": (lambda: layouts.Csr.from_dense(torch.randn(2, 2, 2)), "strided"),
    "tensor of a recipe": (lambda: sl.SparseTensor.from_dense(X, sl.Csr(0.1)), "layout"),
    "tensor of a list": (lambda: sl.SparseTensor.from_dense([1.0], layouts.Csr), "tensor"),
    "attention of two patterns": (
        lambda: attention(
            torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16), "full"
        ),
        "pattern",
    ),
    "window text": (lambda: attended.sliding_window(64, "8"), "window|int"),
    "info of something": (lambda: sl.info("cuda"), "arguments"),
    "a name that is none": (lambda: sl.BlockSparseLinar, "did you mean sparseloom.BlockSparseLinear"),
    "a verb that is none": (lambda: sl.permute_channels(dense(), X), "permute_channels_"),
}
MISTAKES.pop("the result's parameters")
#: Words of Python's and torch's own errors.
BARE = r"positional argument|unexpected keyword|object has no attribute|not callable|NoneType|unhashable"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_our_error(mistake):
    unannounced()
    call, says = MISTAKES[mistake]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Error) as refused:
            call()
    error = refused.value
    for part in (error.op, error.expected, error.actual, error.remedy):
        assert isinstance(part, str) and part.strip(), (mistake, vars(error))
    assert re.search(says, str(error)), str(error)
    assert not re.search(BARE, str(error)), str(error)


def test_the_list_is_as_long_as_the_one_that_found_them():
    assert len(MISTAKES) >= 130
