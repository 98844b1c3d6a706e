"""Misspelt, missing and surplus arguments of everything public, by rule: each gives our Error."""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import nn_kinds
import pytest
import torch

import sparseloom as sl
from sparseloom import layouts
from sparseloom.attention import AttentionPattern, patterns
from sparseloom.errors import Error

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import make_api

#: Public names that give Python's TypeError, and why.
BARE = {
    "a protocol or a base class, which users derive from": (
        "ElementSparsifier", "Form", "Gate", "gradients.Gradient", "sparsify.Learned", "Recipe", "Regrow",
        "Schedule", "Score", "Select", "SparseModule", "Sparsifier",
    ),
    "a result, which the library makes": (
        "Advice", "Chain", "Change", "Context", "Layer", "LayerAdvice", "LayerReport", "ModelReport",
        "Option", "PatternStats", "Patched", "Permuted", "Plan", "Pruned", "Quantized", "QuantizedLayer",
        "Report", "Run", "Skip", "SmallWorld", "SparseTensor", "SparseWeight", "Spread", "Statistics",
        "Totals",
    ),
    "made by a class method, from_dense or from_map": (
        "AttentionPattern", "Bitmap", "Bsr", "Coo", "CooNd", "Csr", "Dense", "Layout", "MaskedDense", "Nm",
        "Nmg", "Semi24Layout", "Tiles",
    ),
    "an operator of the hot path: one more frame would cost every call": (
        "Index", "linear", "linear_dw", "linear_dx", "quantize_rows", "scaled_linear",
    ),
    "the exception itself": ("Error",),
}  # fmt: skip
_REASONS = {name: reason for reason, names in BARE.items() for name in names}


def public():
    for module, names in make_api.MODULES.items():
        room = import_module(module)
        for name in names or room.__all__:
            thing = getattr(room, name)
            if callable(thing) and not inspect.ismodule(thing):
                yield f"{module}.{name}", name, thing


@pytest.mark.parametrize("path, name, thing", [pytest.param(*each, id=each[0]) for each in public()])
def test_an_unknown_argument_of_a_public_name_gives_our_error(path, name, thing):
    room = f"{path.split('.')[-2]}.{name}"
    is_recipe = path.count(".") == 1 and name in (
        "Bitmap",
        "Coo",
        "Csr",
        "Nm",
    )  # layouts have these names too
    if (name in _REASONS or room in _REASONS) and not is_recipe:
        with pytest.raises(TypeError) as refused:
            thing(no_such_argument=1)
        assert not isinstance(refused.value, Error), f"{path}: delete it from BARE"
        return
    with pytest.raises(Error, match=r"no_such_argument|expected an argument") as refused:
        thing(no_such_argument=1)
    assert refused.value.remedy


MAKERS = ("from_dense", "from_torch", "from_torch_bsr", "from_map", "from_lists", "from_index")
MADE = (
    *(sl.BlockSparseLinear, sl.Semi24Linear, sl.SparseTensor, sl.Pattern, AttentionPattern),
    *(layouts.Bsr, layouts.CooNd, layouts.Csr, layouts.Nm, layouts.Tiles),
)


@pytest.mark.parametrize("cls, name", [(cls, name) for cls in MADE for name in MAKERS if hasattr(cls, name)])
def test_class_methods_that_make_things_give_our_error(cls, name):
    with pytest.raises(Error, match=r"no_such_argument|expected an argument"):
        getattr(cls, name)(no_such_argument=1)


@pytest.mark.parametrize("kind", nn_kinds.KINDS)
def test_a_call_of_every_layer_kind_gives_our_error(kind):
    layer = nn_kinds.KINDS[kind]()
    x = torch.randn(nn_kinds.SHAPES.get(kind, [8, 64]))
    first = next(iter(inspect.signature(layer.forward).parameters))
    calls = {
        "no_such": lambda: layer(x, no_such=x),
        first: lambda: layer(),
        r"without a name|expected": lambda: layer(*([x] * 20)),
    }
    for says, call in calls.items():
        with pytest.raises(Error, match=says) as refused:
            call()
        assert isinstance(refused.value, TypeError) and refused.value.op == type(layer).__name__
    handle = layer.register_forward_pre_hook(lambda module, inputs: None)  # torch's way with hooks
    with pytest.raises(Error, match="no_such"):
        layer(x, no_such=x)
    handle.remove()


def test_a_type_error_of_what_a_layer_calls_stays():
    layer = nn_kinds.linear()
    layer.register_forward_hook(lambda module, inputs, y: len(3))
    with pytest.raises(TypeError, match="has no len") as refused:
        layer(torch.randn(8, 64))
    assert not isinstance(refused.value, Error)


Q = torch.randn(1, 2, 64, 16)


@pytest.mark.parametrize("keywords, says", [
    ({"patern": None}, "did you mean pattern="),
    ({"pattern": patterns.full(64), "is_causal": True}, "pass causal="),
    ({"attn_mask": torch.ones(1, 1)}, "pass pattern="),
    ({"block_mask": torch.ones(1, 1)}, "pass pattern="),
    ({"pattern": patterns.full(64), "sm_scale": 0.1}, "pass scale="),
    ({}, "an argument pattern"),
])  # fmt: skip
def test_attention_says_what_an_argument_is_called_here(keywords, says):
    with pytest.raises(Error, match=says):
        sl.attention(Q, Q, Q, **keywords)


@pytest.mark.parametrize("keywords, says", [
    ({"residul": 0}, "did you mean residual="), ({"skip": 0}, "pass residual="),
])  # fmt: skip
def test_a_layer_says_what_an_argument_is_called_here(keywords, says):
    with pytest.raises(Error, match=says):
        nn_kinds.linear()(torch.randn(8, 64), **keywords)
    with pytest.raises(Error, match="pass x="):
        nn_kinds.linear()(input=torch.randn(8, 64))


def test_the_function_attention_has_the_names_of_its_module():
    module = sys.modules["sparseloom.attention"]
    for name in ("AttentionPattern", "merge", "patterns", "plan", "serve", "use_pattern"):
        assert getattr(sl.attention, name) is getattr(module, name)
