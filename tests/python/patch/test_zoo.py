"""Models of transformers, timm, torchvision and torch from end to end: made sparse, equal to their masked
dense twins, trained, compiled, saved, loaded, copied, reported and made dense again."""

import copy

import pytest
import timm
import torch
import torchvision
import transformers
from tiny_models import made, tokens
from torch import nn

import sparseloom
from sparseloom import BlockSparse, densify_, report, sparsify_
from sparseloom.nn import (
    BlockSparseConv1x1,
    BlockSparseConv2d,
    BlockSparseLinear,
    BlockSparseMultiheadAttention,
    BlockSparseTransformersConv1D,
)

SMALL = BlockSparse(8, 0.5)
ATTENTION = r".*(query|key|value|q_proj|k_proj|v_proj|o_proj|out_proj)"


def image(*shape):
    return torch.randn(shape or (2, 3, 16, 16), generator=torch.Generator().manual_seed(2))


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def timm_vit():
    options = {
        "img_size": 16,
        "patch_size": 4,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 10,
    }
    return timm.models.vision_transformer.VisionTransformer(**options)


def timm_convnext():
    return timm.models.convnext.ConvNeXt(num_classes=10, depths=(1, 1, 1, 1), dims=(16, 16, 32, 32))


def torchvision_resnet():
    block = torchvision.models.resnet.Bottleneck
    return torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=10, groups=1, width_per_group=16)


class Translator(nn.Module):
    """nn.Transformer itself takes two sequences of vectors."""

    def __init__(self):
        super().__init__()
        self.body = nn.Transformer(32, 2, 1, 1, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.body(x, x.flip(1))


#: name: (model, which layers, input of a call, how many became sparse, backend)
ZOO = {
    "bert": (
        lambda: made("BertForMaskedLM", "bert"),
        r".*layer.*(dense|query|key|value)",
        tokens,
        12,
        "inductor",
    ),
    "roberta": (
        lambda: made("RobertaForMaskedLM", "roberta"),
        r".*layer.*(dense|query|key|value)",
        tokens,
        12,
        "aot_eager",
    ),
    "gpt2": (lambda: made("GPT2LMHeadModel", "gpt2"), r".*(c_attn|c_proj|c_fc)", tokens, 8, "inductor"),
    "t5": (lambda: made("T5EncoderModel", "t5"), r".*(\.[qkvo]|wi|wo)", tokens, 12, "aot_eager"),
    "t5 decoder": (
        lambda: made("T5ForConditionalGeneration", "t5"),
        r".*(\.[qkvo]|wi|wo)",
        tokens,
        32,
        "aot_eager",
    ),
    "llama": (lambda: made("LlamaForCausalLM", "llama"), r".*(_proj)", tokens, 14, "aot_eager"),
    "mixtral": (lambda: made("MixtralForCausalLM", "mixtral"), ATTENTION, tokens, 8, "aot_eager"),
    "vit": (lambda: made("ViTModel", "vit"), r".*layer.*", image, 12, "aot_eager"),
    "siglip": (
        lambda: made("SiglipVisionModel", "siglip"),
        r".*(proj|fc1|fc2|head\.attention)",
        image,
        16,
        "aot_eager",
    ),
    "resnet": (lambda: made("ResNetModel", "resnet"), r".*convolution", image, 8, "aot_eager"),
    "whisper": (
        lambda: made("WhisperForConditionalGeneration", "whisper"),
        rf"{ATTENTION}|.*fc[12]",
        lambda: image(2, 8, 20),
        16,
        "aot_eager",
    ),
    "timm vit": (lambda: seeded(timm_vit), r".*(qkv|proj|fc1|fc2)", image, 8, "inductor"),
    "timm convnext": (
        lambda: seeded(timm_convnext),
        r".*(fc1|fc2)",
        lambda: image(2, 3, 32, 32),
        8,
        "aot_eager",
    ),
    "torchvision resnet": (
        lambda: seeded(torchvision_resnet),
        r".*(conv[13]|downsample\.0)",
        lambda: image(4, 3, 48, 48),
        12,
        "aot_eager",
    ),
    "nn.Transformer": (
        lambda: seeded(Translator),
        r".*(attn|linear[12])",
        lambda: image(2, 5, 32),
        10,
        "aot_eager",
    ),
}


def arguments(model, x):
    """The model's keywords of a call, or the tensor alone."""
    if not isinstance(model, transformers.PreTrainedModel):
        return x
    return {model.main_input_name: x} | (
        {"decoder_input_ids": tokens()} if model.config.is_encoder_decoder else {}
    )


def call(model, x):
    """One tensor out of whatever the model returns."""
    given = arguments(getattr(model, "_orig_mod", model), x)
    y = model(**given) if isinstance(given, dict) else model(given)
    if isinstance(y, torch.Tensor):
        return y
    pooled = getattr(y, "pooler_output", None)  # which some layers are there for alone
    return y[0] if pooled is None else pooled


def sparse_layers(model):
    kinds = (BlockSparseLinear, BlockSparseConv2d)
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}


def masked_twin(model):
    """The same weights in dense layers of the original kinds."""
    twin = copy.deepcopy(model)
    densify_(twin)
    return twin


def close(one, other):
    torch.testing.assert_close(one, other, atol=2e-4 * other.abs().max().item() + 1e-6, rtol=1e-3)


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, tmp_path):
    make, regex, sample, count, backend = ZOO[name]
    model, x = make(), sample()
    dense_kinds = {n: type(m) for n, m in model.named_modules()}
    result = sparsify_(model, {regex: SMALL})
    assert len(result.changed) == count, str(result)

    # equal to the masked twin, whose zeros are where no block is
    twin = masked_twin(model)
    with torch.no_grad():
        expected = call(twin, x)
        close(call(model, x), expected)
    assert (
        not sparse_layers(twin)
        and {n: type(m) for n, m in twin.named_modules() if n in dense_kinds} == dense_kinds
    )

    # a few steps: the loss falls, every sparse layer moves, and the first gradient of the input's side is the
    # twin's
    grads = []
    for each in (model, twin):
        each.train()
        for module in each.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        each.zero_grad()
        torch.manual_seed(5)
        call(each, x).square().mean().backward()
        grads.append({n: p.grad for n, p in each.named_parameters() if p.grad is not None})
    shared = grads[0].keys() & grads[1].keys()
    whole = torch.stack([grads[1][parameter].norm() for parameter in shared]).norm()
    for parameter in shared:  # by norms: a ReLU's input that is nearly zero may fall on either side
        one, other = grads[0][parameter], grads[1][parameter]
        assert (one - other).norm() <= 1e-3 * other.norm() + 1e-6 * whole, parameter
    before = {n: layer.values.detach().clone() for n, layer in sparse_layers(model).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = call(model, x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not any(
        torch.equal(before[n], m.values) for n, m in sparse_layers(model).items()
    )
    model.eval()
    with torch.no_grad():
        trained = call(model, x)

    # saved and loaded, copied
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(tmp_path)
        again, found = type(model).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(found.values()), found
    else:
        sparseloom.save(model, tmp_path / "model.safetensors")
        again = make()
        sparsify_(again, {regex: SMALL})
        sparseloom.load(tmp_path / "model.safetensors", again)
    for other in (again, copy.deepcopy(model)):
        with torch.no_grad():
            assert torch.equal(call(other.eval(), x), trained)
    call(again.train(), x).square().mean().backward()  # its derived indices are whole too
    assert all(layer.values.grad is not None for layer in sparse_layers(again).values())

    # compiled
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        close(call(compiled, x), trained)
    torch._dynamo.reset()

    # reported, and dense again
    told = report(model, arguments(model, x), seconds=0.002)
    assert sum(layer.times is not None for layer in told.layers) == len(before) and told.model is not None
    densify_(model)
    kinds = (
        BlockSparseLinear,
        BlockSparseTransformersConv1D,
        BlockSparseConv1x1,
        BlockSparseConv2d,
        BlockSparseMultiheadAttention,
    )
    assert not any(isinstance(module, kinds) for module in model.modules())
    with torch.no_grad():
        close(call(model, x), trained)


def test_the_zoo_has_every_kind_of_layer():
    kinds = set()
    for name in ("gpt2", "torchvision resnet", "nn.Transformer", "bert"):
        make, regex, *_ = ZOO[name]
        model = make()
        sparsify_(model, {regex: SMALL})
        kinds |= {type(module) for module in model.modules()}
    assert kinds >= {
        BlockSparseLinear,
        BlockSparseTransformersConv1D,
        BlockSparseConv1x1,
        BlockSparseMultiheadAttention,
    }
