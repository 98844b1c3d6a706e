"""torch's deferred initialisation with every kind of layer: meta, to_empty(), then a state dict or a file."""

import copy

import pytest
import torch
from test_option_table import KINDS, LAYOUT_KINDS

import sparseloom
from sparseloom.errors import Error

INDEXED = [*LAYOUT_KINDS, "quantized 2:4"]  # their index is in buffers alone
SIZES = {
    "conv1d": (2, 64, 9), "conv1x1": (2, 64, 3, 3), "conv2d": (2, 64, 6, 6), "conv3d": (2, 64, 4, 4, 4),
    "transposed": (2, 64, 6, 6), "attention over blocks": (2, 64, 64), "lstm": (4, 2, 32), "gru": (4, 2, 32),
    "recurrent weight": (4, 32), "small world": (4, 2, 32),
}  # fmt: skip


def made(kind, seed=0):
    torch.manual_seed(seed)
    layer = KINDS[kind][0]().eval()
    if kind == "quantized":
        layer.kernel = "reference"  # the one that every CPU has
    return layer


def result(kind, layer):
    x = torch.randn(SIZES.get(kind, (3, 64)), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = layer(x, x, x, need_weights=False) if kind == "attention" else layer(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.fixture
def emptied(kind, by):
    if by == "to":
        return made(kind, seed=2).to("meta").to_empty(device="cpu")
    with torch.device("meta"):
        layer = made(kind, seed=2)
    assert any(each.is_meta for each in layer.state_dict().values())
    if kind == "attention over blocks":
        layer.pattern = made(kind).pattern  # no state dict has it
    return layer.to_empty(device="cpu")


def loads(layer, source, tmp_path, way):
    if way == "load_state_dict":
        layer.load_state_dict(source.state_dict())
    elif way == "in place":  # as process groups and torch.distributed.checkpoint do
        for entry, its in zip(layer.state_dict().values(), source.state_dict().values(), strict=True):
            entry.copy_(its)
    else:
        sparseloom.save(source, tmp_path / "layer.safetensors")
        sparseloom.load(tmp_path / "layer.safetensors", layer)


#: Blocks stay where the host knows them, so what is written in place has to be of the same pattern.
WAYS = [(by, way) for by in ("device", "to") for way in ("load_state_dict", "load")] + [("to", "in place")]


@pytest.mark.parametrize("by, way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_behind_to_empty_computes(kind, by, way, emptied, tmp_path):
    source = made(kind, seed=2)
    loads(emptied, source, tmp_path, way)
    torch.testing.assert_close(result(kind, emptied), result(kind, source))
    torch.testing.assert_close(result(kind, copy.deepcopy(emptied)), result(kind, source))


@pytest.mark.parametrize("by", ["device", "to"])
@pytest.mark.parametrize("kind", INDEXED)
def test_a_call_before_anything_is_loaded_says_so(kind, emptied):
    name = type(emptied).__name__
    calls = [lambda: result(kind, emptied), emptied.to_dense, lambda: emptied.double().to_dense()]
    calls += [] if "quantized" in kind else [emptied.reset_parameters]
    for call in calls:
        with pytest.raises(Error, match=rf"\[{name}\] .*to_empty.*uninitialised; load a state dict"):
            call()


def test_a_pattern_of_attention_that_was_made_on_meta_is_refused_in_words():
    with torch.device("meta"):
        layer = made("attention over blocks")
    on_meta = made("attention over blocks").to("meta")
    assert on_meta(torch.empty(2, 64, 64, device="meta")).is_meta
    with pytest.raises(Error, match=r"a pattern with lists, got one that was made on meta"):
        result("attention over blocks", layer.to_empty(device="cpu"))
