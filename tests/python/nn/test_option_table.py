"""Every option of every kind of layer: it works, or an Error says what to do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
import sparseloom.nn as snn
from sparseloom import BlockSparse, InLayout, layouts, pattern
from sparseloom.attention import patterns
from sparseloom.errors import Error
from sparseloom.nn import GatedBlockSparseLinear, MaskedLinear, Semi24Linear, SparseLinear

BLOCKS = BlockSparse(16, 0.5)


def linear(**how):
    return snn.BlockSparseLinear(64, 64, density=0.5, block=16, **how)


def eight_bit(layer):
    model = nn.Sequential(layer)
    sparseloom.quantize_(model)
    return model[0]


#: Every kind of layer, and the options that it takes.
KINDS = {
    "linear": (linear, "strict fuse dense_copy activation fuse_wgrad_accumulation"),
    "transformers conv1d": (
        lambda: snn.BlockSparseTransformersConv1D(64, 64, density=0.5, block=16),
        "strict fuse dense_copy activation fuse_wgrad_accumulation",
    ),
    "conv1x1": (lambda: snn.BlockSparseConv1x1(linear(), 2, (1, 1)), ""),
    "gated": (lambda: GatedBlockSparseLinear(linear()), ""),
    "attention": (
        lambda: snn.BlockSparseMultiheadAttention(nn.MultiheadAttention(64, 2), None, linear()), "",
    ),
    "attention over blocks": (
        lambda: snn.BlockSparseSelfAttention(64, 2, pattern=patterns.full(64)), "strict pattern",
    ),
    "conv1d": (lambda: snn.BlockSparseConv1d(64, 64, 3, density=0.5), "strict fuse dense_copy activation"),
    "conv2d": (lambda: snn.BlockSparseConv2d(64, 64, 3, density=0.5), "strict fuse dense_copy activation"),
    "conv3d": (lambda: snn.BlockSparseConv3d(64, 64, 3, density=0.5), "strict fuse dense_copy activation"),
    "transposed": (
        lambda: snn.BlockSparseConvTranspose2d(64, 64, 3, density=0.5), "strict fuse dense_copy activation",
    ),
    "lstm": (lambda: snn.BlockSparseLSTM(32, 32, density=0.5, block=16), ""),
    "gru": (lambda: snn.BlockSparseGRU(32, 32, density=0.5, block=16), ""),
    "recurrent weight": (
        lambda: snn.BlockSparseLSTM(32, 32, density=0.5, block=16).hh_l0,
        "strict fuse fuse_wgrad_accumulation",
    ),
    "small world": (
        lambda: snn.SmallWorldLSTM(32, 32, pattern=lambda step: pattern.random(32, 32, 16, 0.5)), "",
    ),
    "csr": (lambda: SparseLinear(64, 64, layout="csr", density=0.1), "strict fuse activation"),
    "coo": (lambda: SparseLinear(64, 64, layout="coo", density=0.1), "strict fuse activation"),
    "bitmap": (lambda: SparseLinear(64, 64, layout="bitmap", density=0.1), "strict fuse activation"),
    "nm": (lambda: SparseLinear(64, 64, layout="nm", n=2, m=8), "strict fuse activation"),
    "nmg": (lambda: SparseLinear(64, 64, layout="nmg", n=1, m=8, g=2), "strict fuse activation"),
    "tiles": (lambda: SparseLinear(64, 64, layout="tiles"), "strict fuse activation"),
    "semi24": (lambda: Semi24Linear(64, 64), "strict fuse dense_copy activation"),
    "quantized": (lambda: eight_bit(linear()), "strict fuse activation kernel use_fast_accum x_scale"),
    "quantized 2:4": (
        lambda: eight_bit(Semi24Linear(64, 64)), "strict fuse activation kernel use_fast_accum x_scale",
    ),
    "masked": (lambda: MaskedLinear(64, 64, block=16), "strict fuse dense_copy multiply layout weight"),
}  # fmt: skip
OPTIONS = {
    "kernel": "reference", "strict": True, "fuse": False, "dense_copy": "auto", "activation": "relu",
    "density": 0.3,
    "weight": nn.Parameter(torch.zeros(64, 64)), "capacity": 0.5, "pattern": pattern.full(64, 64, 16),
    "block": (8, 8), "use_fast_accum": True, "x_scale": 0.1, "fuse_wgrad_accumulation": True,
    "layout": layouts.Coo, "multiply": "dense",
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_option_is_kept_or_refused_in_words(kind, option):
    make, takes = KINDS[kind]
    layer, value = make(), OPTIONS[option]
    if option in takes.split():
        setattr(layer, option, value)
        kept = getattr(layer, option)
        assert kept is value or kept == value or torch.equal(kept, torch.tensor([value]))
        return
    before = list(layer.state_dict())
    # torch's own words for a Parameter's or a child's name in a module that has it
    with pytest.raises((Error, TypeError)) as refused:
        setattr(layer, option, value)
    assert refused.type is Error or option == "multiply"
    assert option in str(refused.value) and list(layer.state_dict()) == before
    assert not hasattr(layer, option) or getattr(layer, option) is not value


@pytest.mark.parametrize("kind", [kind for kind, (_, takes) in KINDS.items() if "activation" in takes])
def test_another_activation_than_there_are_is_refused_where_it_is_set(kind):
    with pytest.raises(Error, match="activation to be one of"):
        KINDS[kind][0]().activation = "tanh"


def test_a_subclass_from_outside_may_have_attributes_of_any_name():
    class Mine(snn.BlockSparseLinear):
        def __init__(self):
            super().__init__(64, 64, density=0.5)
            self.kernel = 3

    assert Mine().kernel == 3


LAYOUT_KINDS = ["csr", "coo", "bitmap", "nm", "nmg", "tiles", "semi24"]


@pytest.mark.parametrize("kind", LAYOUT_KINDS)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("tokens", [1, 7])
def test_activation_and_residual_of_layouts_are_those_of_a_dense_twin(kind, needs_grad, tokens):
    torch.manual_seed(0)
    layer = KINDS[kind][0]()
    dense = layer.to_dense()
    layer.activation = "gelu"
    x, residual = (torch.randn(2, tokens, 64, requires_grad=needs_grad) for _ in range(2))
    y, expected = layer(x, residual), F.gelu(dense(x)) + residual
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    twin = layer.to_dense()
    assert isinstance(twin, nn.Sequential)
    torch.testing.assert_close(layer(x), twin(x), rtol=1e-4, atol=1e-5)
    assert "gelu" in layer.plan(8, residual=True)["text"] or kind in ("nm", "nmg")
    if needs_grad:
        dy = torch.randn_like(y)
        mine, theirs = (torch.autograd.grad(each, [x, residual], dy) for each in (y, expected))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x, residual).dtype is torch.bfloat16
    for wrong in (residual[:1], residual.double()):
        with pytest.raises(Error, match="residual"):
            layer(x, wrong)


def test_csr_fuses_what_needs_no_gradient(monkeypatch):
    layer, x = KINDS["csr"][0](), torch.randn(3, 64)
    layer.activation = "relu"
    monkeypatch.setattr("sparseloom.layouts.products.activate", None)
    with torch.no_grad():
        assert (layer(x) >= 0).all() and layer(x, x).shape == (3, 64)


def test_an_activation_of_a_layout_survives_files_of_transformers_and_densify():
    from sparseloom.patch.described import described, make_described

    model = nn.Sequential(KINDS["csr"][0](), nn.Linear(64, 4))
    model[0].activation = "silu"
    told = described(model)
    again = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
    make_described(again, told, "")
    assert again[0].activation == "silu" and "silu" in repr(again[0])
    sparseloom.densify_(model)
    assert isinstance(model[0], nn.Sequential)


@pytest.mark.parametrize("kind", ["linear", "conv2d", "transposed", "lstm", "small world"])
def test_a_seed_is_taken_as_the_generator(kind):
    makes = {
        "linear": lambda g: snn.BlockSparseLinear(64, 64, density=0.5, seed=g),
        "conv2d": lambda g: snn.BlockSparseConv2d(64, 64, 3, density=0.5, seed=g),
        "transposed": lambda g: snn.BlockSparseConvTranspose2d(64, 64, 3, density=0.5, seed=g),
        "lstm": lambda g: snn.BlockSparseLSTM(32, 32, density=0.5, block=16, seed=g),
        "small world": lambda g: snn.SmallWorldLSTM(
            32, 32, pattern=lambda step: pattern.full(32, 32, 16), seed=g
        ),
    }
    torch.manual_seed(0)
    by_seed = makes[kind](0).state_dict()
    by_generator = makes[kind](torch.Generator().manual_seed(0)).state_dict()
    names = [name for name in by_seed if "values" in name or "crow" in name or "col" in name]
    assert names and all(torch.equal(by_seed[name], by_generator[name]) for name in names)
    with pytest.raises(Error, match="seed"):
        makes[kind]("0")


def test_a_pattern_is_taken_under_both_of_its_names():
    made = pattern.random(64, 64, 16, 0.5, seed=0)
    assert BlockSparse(pattern=made) == BlockSparse(select=made)
    assert model_of_square(BlockSparse(pattern=made))[0].pattern == made
    for cls, dense in (
        (snn.BlockSparseLinear, nn.Linear(64, 64)), (snn.BlockSparseConv2d, nn.Conv2d(64, 64, 3)),
    ):  # fmt: skip
        assert cls.from_dense(dense, select=made).pattern == cls.from_dense(dense, made).pattern == made
        for more in ({"density": 0.5}, {"select": "l2"}, {"scope": "row"}):
            with pytest.raises(Error, match="pattern"):
                cls.from_dense(dense, made, **more)
    for more in ({"density": 0.5}, {"select": made}, {"seed": 1}, {"scope": "row"}):
        with pytest.raises(Error, match="pattern"):
            BlockSparse(pattern=made, **more)
    with pytest.raises(Error, match="pattern"):
        BlockSparse(pattern=[[True]])


def model_of_square(recipe):
    model = nn.Sequential(nn.Linear(64, 64))
    sparseloom.sparsify_(model, {"0": recipe})
    return model


@pytest.mark.parametrize("arguments", [((), {"tokens": 8}), ((8,), {}), ((), {"x_shap": [1, 64, 8, 8]})])
def test_a_convolution_s_plan_of_tokens_says_what_it_takes(arguments):
    for kind in ("conv2d", "transposed"):
        with pytest.raises(Error, match=r"x_shape.*pass layer.plan\(\[1, 64, 32, 32\]\)"):
            KINDS[kind][0]().plan(*arguments[0], **arguments[1])


@pytest.mark.parametrize(
    "recipe", [InLayout("csr"), InLayout("nm", n=2, m=8), InLayout("nmg", n=1, m=8, g=2)]
)
def test_a_dense_copy_of_a_layout_is_refused_before_anything_changes(recipe):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64))
    with pytest.raises(Error, match=r"1: a layer in layout .* keeps none"):
        sparseloom.sparsify_(model, {"0": BLOCKS, "1": recipe}, dense_copy=True)
    assert all(type(each) is nn.Linear for each in model)
    lstm = nn.Sequential(nn.LSTM(32, 32))
    with pytest.raises(Error, match="multiplies with the blocks in every step"):
        sparseloom.sparsify_(lstm, {"0[.]hh_l0": BlockSparse(16, 0.5)}, dense_copy=True)


def test_a_method_that_is_none_is_refused_by_the_layout():
    with pytest.raises(Error, match=r"density=0\.1"):
        InLayout("csr", 0.1)


def test_to_dense_of_variants_keeps_the_activation():
    layer = snn.BlockSparseConv1x1(linear(activation="relu"), 2, (1, 1))
    x = torch.randn(2, 64, 3, 3)
    torch.testing.assert_close(layer.to_dense()(x), layer(x), rtol=1e-4, atol=1e-5)
    attention = KINDS["attention"][0]()
    attention.out_proj.activation = "relu"
    with pytest.raises(Error, match="activation"):
        attention.to_dense()
