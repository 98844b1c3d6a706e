"""Options that reach what they are meant for, arguments at the place of others, and messages that say what is
so."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, BlockSparseModelPatcher, InLayout, Semi24
from sparseloom.errors import Error
from sparseloom.nn import GatedBlockSparseLinear, MaskedLinear, Semi24Linear
from sparseloom.sparsify import methods

#: Layouts that sparsify_ takes, with the products that have kernels of their own for float32 on the CPU.
LAYOUTS = {
    "csr": (InLayout("csr", density=0.1), ("forward", "dx", "dw")),
    "coo": (InLayout("coo", density=0.1), ("forward", "dx", "dw")),
    "bitmap": (InLayout("bitmap", density=0.1), ("forward", "dx")),
    "nm": (InLayout("nm", n=2, m=8), ()),
    "nmg": (InLayout("nmg", n=1, m=8, g=2), ("forward", "dx", "dw")),
    "semi24": (Semi24("magnitude"), ("forward", "dx")),
}
#: Products that have kernels with AVX-512 alone.
WIDE = {("bitmap", "dw")}
BLOCKS = BlockSparse(16, 0.5)
ROOT = Path(__file__).parents[3]


def model_of(recipe, **how):
    model = nn.Sequential(nn.Linear(64, 32))
    sparseloom.sparsify_(model, {"0": recipe}, **how)
    return model


@pytest.mark.parametrize("kind", LAYOUTS)
def test_strict_of_sparsify_reaches_the_plans_and_products_of_every_layout(kind):
    recipe, sparse = LAYOUTS[kind]
    layer, loose = (model_of(recipe, strict=strict)[0] for strict in (True, False))
    assert layer.strict and not loose.strict and layer.layout.strict and "strict" in repr(layer)
    x = torch.randn(8, 64)
    for direction in layer.layout.directions:
        rows = loose.plan(8, direction)["candidates"]
        wide = any(row["kernel"].startswith("avx512") and not row["refusal"] for row in rows)
        if direction in sparse or (wide and (kind, direction) in WIDE):
            plan = layer.plan(8, direction)
            told = {row["kernel"]: row["refusal"] for row in plan["candidates"]}
            assert told["dense"] == "strict forbids going dense"
            assert told["reference"] == "strict forbids the reference kernel"
        else:
            with pytest.raises(Error, match="strict"):
                layer.plan(8, direction)
        assert loose.plan(8, direction)["kernel"]
    if sparse:
        y = layer(x.requires_grad_())
        if "dx" not in sparse:
            with pytest.raises(Error, match="strict"):
                y.sum().backward()
    else:
        with pytest.raises(Error, match="strict"):
            layer(x)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_strict_layer_calls_neither_the_dense_nor_the_reference_kernel(kind):
    """In float64 there is no other kernel."""
    layer = model_of(LAYOUTS[kind][0], strict=True)[0].double()
    x, dy = torch.randn(8, 64).double(), torch.randn(8, 32).double()
    calls = [lambda: layer(x), lambda: layer.layout.dx(dy, layer.values.detach())]
    if "dw" in layer.layout.directions:
        calls.append(lambda: layer.layout.dw(dy, x))
    calls.append(lambda: torch.func.vmap(lambda one: layer(one))(x[:, None]))
    for call in calls:
        with pytest.raises(Error, match="strict"):
            call()
    layer.strict = False
    for call in calls:
        assert call().isfinite().all()


@pytest.mark.parametrize("dense", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_strict_of_sparsify_reaches_convolutions(dense):
    """In float64 torch's convolution alone runs."""
    strict, loose = (nn.Sequential(dense(32, 32, 3)) for _ in range(2))
    sparseloom.sparsify_(strict, {"0": BLOCKS}, strict=True)
    sparseloom.sparsify_(loose, {"0": BLOCKS})
    x = torch.randn(2, 32, *[5] * strict[0].dimensions, dtype=torch.float64)
    assert strict[0].strict and not loose[0].strict and loose.double()(x).isfinite().all()
    with pytest.raises(Error, match="bf16, fp16 or fp32"):
        strict.double()(x)
    with pytest.raises(Error, match="dense"):
        sparseloom.report(loose, x, strict=True, seconds=0.01)


def test_report_strict_names_the_dense_products_of_layouts():
    model, x = model_of(LAYOUTS["nm"][0]), torch.randn(8, 64)
    with pytest.raises(Error, match="forward dense, dx dense, dw dense"):
        sparseloom.report(model, x, strict=True, seconds=0.01)
    assert "dense" in str(sparseloom.report(model, x, seconds=0.01))


def test_strict_and_dense_copy_survive_packing_and_quantizing(monkeypatch):
    method = methods.magnitude(at=2)
    for recipe in (BlockSparse(16, 0.5, method=method), InLayout("csr", density=0.5, method=method)):
        model = model_of(recipe, strict=True)
        assert isinstance(model[0], MaskedLinear)
        sparseloom.pack_(model)
        assert model[0].strict
    model = model_of(BlockSparse(16, 0.5, method=method), dense_copy="auto")
    sparseloom.pack_(model)
    assert model[0].dense_copy == "auto"
    for recipe in (BLOCKS, Semi24("magnitude")):
        model = model_of(recipe, strict=True)
        sparseloom.quantize_(model)
        assert model[0].strict and model[0].dequantized().strict
    gated = GatedBlockSparseLinear(model_of(BLOCKS, strict=True)[0])
    assert gated.pack().strict
    seen = []
    monkeypatch.setattr("sparseloom.ops.gated_linear", lambda *operands: seen.append(operands[-1]))
    gated(torch.randn(8, 64))
    assert seen == [True]


MODEL, X = nn.Sequential(nn.Linear(64, 32)), torch.randn(8, 64)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), 0.1)
PATCHER = BlockSparseModelPatcher()
PATCHER.add_pattern("0", {"density": 0.5, "block": 16})
#: Calls with an argument at the place, or under the name, of another.
MISPLACED = {
    "sparsify_ third": lambda: sparseloom.sparsify_(MODEL, {"0": BLOCKS}, OPTIMIZER),
    "sparsify_ strict": lambda: sparseloom.sparsify_(MODEL, {"0": BLOCKS}, strict=OPTIMIZER),
    "sparsify_ optimizer": lambda: sparseloom.sparsify_(MODEL, {"0": BLOCKS}, optimizer=True),
    "patch_model second": lambda: PATCHER.patch_model(MODEL, OPTIMIZER),
    "patch_model strict": lambda: PATCHER.patch_model(MODEL, strict=OPTIMIZER),
    "densify_ second": lambda: sparseloom.densify_(model_of(BLOCKS), OPTIMIZER),
    "densify_ third": lambda: sparseloom.densify_(model_of(BLOCKS), "0", OPTIMIZER),
    "pack_ second": lambda: sparseloom.pack_(MODEL, "0"),
    "quantize_ second": lambda: sparseloom.quantize_(model_of(BLOCKS), OPTIMIZER),
    "quantize_ use_fast_accum": lambda: sparseloom.quantize_(model_of(BLOCKS), use_fast_accum="int8"),
    "quantize_ model": lambda: sparseloom.quantize_(X),
    "report third": lambda: sparseloom.report(MODEL, X, True),
    "report strict": lambda: sparseloom.report(MODEL, X, strict=OPTIMIZER),
    "advise strict": lambda: sparseloom.advise(MODEL, X, strict="yes"),
    "advise csr": lambda: sparseloom.advise(MODEL, X, csr=[0.1]),
    "load sparsify": lambda: sparseloom.load("none.safetensors", MODEL, sparsify=OPTIMIZER),
    "permute_channels_ third": lambda: sparseloom.permute_channels_(MODEL, X, OPTIMIZER),
}


@pytest.mark.parametrize("call", MISPLACED)
def test_an_argument_at_the_place_of_another_is_refused(call):
    before = list(MODEL.parameters())
    with pytest.raises((Error, TypeError)) as refused:
        MISPLACED[call]()
    assert issubclass(refused.type, Error) or "positional argument" in str(refused.value)
    assert all(mine is theirs for mine, theirs in zip(MODEL.parameters(), before, strict=True))


def quantized():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    sparseloom.sparsify_(model, {"0": BLOCKS})
    sparseloom.quantize_(model)
    return model


def dense():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU())


#: Call, what its message says, and what it must not say.
MESSAGES = {
    "quantize_ twice": (lambda: sparseloom.quantize_(quantized()), "it is quantized already", "none"),
    "quantize_ a dense layer beside quantized ones": (
        lambda: sparseloom.quantize_(quantized(), {"2": torch.int8}), "2, which have no 8-bit layer", "none",
    ),
    "quantize_ a dense model": (
        lambda: sparseloom.quantize_(dense()), "the model has none: sparsify_ first", "already",
    ),
    "densify_ after quantize_": (
        lambda: sparseloom.densify_(quantized()), r"0 .it is quantized, and rounding cannot", "they are",
    ),
    "densify_ a dense model": (lambda: sparseloom.densify_(dense()), "a model without any", r"\[\]"),
    "densify_ another name": (
        lambda: sparseloom.densify_(model_of(BLOCKS), "fc"), "only 0 .*name one of these$", r"\[\]",
    ),
    "sparsify_ twice": (
        lambda: sparseloom.sparsify_(model_of(BLOCKS), {"0": BLOCKS}), r"0 \(\w+, sparse already\)", "inside",
    ),
    "a lone ReLU": (
        lambda: sparseloom.sparsify_(nn.ReLU(), {".*": BLOCKS}), "a model without dense ones", "names are",
    ),
    "a ReLU among linears": (
        lambda: sparseloom.sparsify_(dense(), {"1": BLOCKS}), r"1 \(ReLU\); linear layers are 0", "inside",
    ),
    "a lone linear": (
        lambda: sparseloom.sparsify_(nn.Linear(64, 32), {".*": BLOCKS}), "the model: it is the mod", "got :",
    ),
    "save swapped": (lambda: sparseloom.save("m", dense()), r"swap .* save\(model, path\)", "state"),
    "load swapped": (lambda: sparseloom.load(dense(), "m"), "to read m, got No such file", "swap"),
    "save of a state dict": (lambda: sparseloom.save({}, "m.safetensors"), "not its state_dict", "swap"),
    "load of no path": (lambda: sparseloom.load(3, dense()), r"call load\(path, model\)", "swap"),
    "another class's activation": (lambda: Semi24Linear(8, 8, activation="tanh"), "^.Semi24Linear.", "Block"),
}  # fmt: skip


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_says_what_is_so(case):
    call, says, denies = MESSAGES[case]
    with pytest.raises(Error) as refused:
        call()
    text = str(refused.value)
    assert re.search(says, text) and not re.search(denies, text), text


def test_the_examples_are_numbered_without_a_gap():
    numbers = sorted(int(path.name[:2]) for path in (ROOT / "examples").glob("[0-9][0-9]_*.py"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_page_of_support_does_not_deny_its_own_table():
    page = (ROOT / "docs" / "support.md").read_text()
    assert "| conv | forward |" in page
    assert not re.search(r"[Nn]ot supported[^.|]*convolution", page)
