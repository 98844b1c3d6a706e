"""save_pretrained and from_pretrained of models with 2:4 layers, in 8 bits too: nothing is lost."""

import pytest
import safetensors.torch
import torch
import transformers
from bits import same
from tiny_models import made, reloaded, tokens

import sparseloom
from sparseloom import BlockSparse, Semi24, densify_, quantize_, sparsify_
from sparseloom.nn import QuantizedSemi24Linear, Semi24Linear

HALF = BlockSparse(16, 0.5)
MIXED = {
    "BertForMaskedLM": ("bert", {r".*0.*dense": Semi24("magnitude"), r".*1.*dense": HALF}),
    "GPT2LMHeadModel": ("gpt2", {r".*c_(fc|proj)": Semi24("magnitude")}),
    "LlamaForCausalLM": ("llama", {r".*[ov]_proj": Semi24("transposable_exact"), r".*up_proj": HALF}),
    "SiglipVisionModel": ("siglip", {r".*head\.attention": Semi24("magnitude")}),
    "ResNetModel": ("resnet", {r".*convolution": Semi24("magnitude")}),
}


@pytest.mark.parametrize("cls", MIXED)
def test_models_with_2_4_layers_come_back_frozen(cls: str, tmp_path):
    name, patterns = MIXED[cls]
    model = made(cls, name)
    sparsify_(model, patterns)
    again = reloaded(model, tmp_path / "first")
    assert same(model, again) and type(model) is type(again)
    layers = [layer for layer in again.modules() if isinstance(layer, Semi24Linear)]
    assert layers and not any(layer.values.requires_grad for layer in layers)
    assert again.config.quantization_config.version == 3
    densify_(again)
    assert not hasattr(again.config, "quantization_config")
    assert same(again, reloaded(again, tmp_path / "dense"))


def test_a_2_4_file_with_wrong_positions_is_refused(tmp_path):
    model = made("BertModel", "bert")
    sparsify_(model, {r".*0\.output\.dense": Semi24("magnitude")})
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    (positions,) = (name for name in tensors if name.endswith("positions"))
    tensors[positions][2] = 0
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with pytest.raises(sparseloom.Error, match="ascending order"):
        transformers.BertModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("x_scale", [None, 0.05])
def test_quantized_2_4_models_come_back_bitwise(tmp_path, dtype, x_scale):
    model = made("BertForMaskedLM", "bert")
    sparsify_(model, {r".*0.*dense": Semi24("magnitude"), r".*1.*dense": HALF})
    changed = quantize_(model, {r".*0.*dense": dtype}, x_scale=x_scale).changed
    assert {change.layout for change in changed} == {"semi24"}
    again = reloaded(model, tmp_path / "eight")
    layers = [layer for layer in again.modules() if isinstance(layer, QuantizedSemi24Linear)]
    assert len(layers) == len(changed) and {layer.dtype for layer in layers} == {dtype}
    assert all((layer.x_scale is None) is (x_scale is None) for layer in layers)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.uint8), again.state_dict()[name].view(torch.uint8)), name
    with torch.no_grad():
        assert torch.equal(model(tokens()).logits, again(tokens()).logits)


@pytest.mark.parametrize("cls", MIXED)
def test_every_kind_of_2_4_layer_comes_back_quantized(cls: str, tmp_path):
    name, patterns = MIXED[cls]
    model = made(cls, name)
    sparsify_(model, patterns)
    count = sum(isinstance(layer, Semi24Linear) for layer in model.modules())
    quantize_(model, torch.int8)
    again = reloaded(model, tmp_path / "eight")
    kinds = [
        sum(isinstance(layer, QuantizedSemi24Linear) for layer in each.modules()) for each in (model, again)
    ]
    assert same(model, again) and kinds == [count, count]
