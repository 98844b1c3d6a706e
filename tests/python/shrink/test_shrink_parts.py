"""shrink_ of single parts: constants of activations, convolutions with batch norms, experts."""

import pytest
import timm.layers
import torch
import torchvision
import transformers
from tiny_models import TOKENS, tokens
from torch import nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import shrink_


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


class Gated(nn.Module):
    """A feed-forward part of Llama with an activation that is not 0 at 0, and biases."""

    def __init__(self, act, bias):
        super().__init__()
        config = transformers.LlamaConfig(
            hidden_size=8, intermediate_size=8, num_attention_heads=2, mlp_bias=bias
        )
        self.mlp = transformers.models.llama.modeling_llama.LlamaMLP(config)
        self.mlp.act_fn = act

    def forward(self, x):
        return self.mlp(x)


class Plain(nn.Module):
    def __init__(self, act, bias):
        super().__init__()
        self.mlp = timm.layers.Mlp(8, 8, act_layer=lambda: act, bias=bias)

    def forward(self, x):
        return self.mlp(x)


#: (part, activation, biases, what is zero, units that stay of 8)
CASES = [
    (Plain, nn.GELU(), True, ["fc1:4"], 4),  # gelu(b) moves into the bias behind
    (Plain, nn.Sigmoid(), True, ["fc1:4"], 4),
    (Plain, nn.GELU(), False, ["fc1:4"], 4),  # gelu(0) = 0
    (Plain, nn.Sigmoid(), (True, False), ["fc1:4"], 8),  # no bias behind
    (Plain, nn.Sigmoid(), False, ["fc2:4"], 4),
    (Gated, nn.SiLU(), False, ["up_proj:3"], 5),
    (Gated, nn.SiLU(), False, ["gate_proj:3"], 5),  # silu(0) = 0
    (Gated, nn.Sigmoid(), False, ["gate_proj:3"], 8),  # a factor of .5 is no constant
    (Gated, nn.Sigmoid(), True, ["gate_proj:3", "up_proj:2"], 6),
    (Gated, nn.SiLU(), True, ["up_proj:3"], 8),  # the bias times the gate is left
    (Gated, nn.SiLU(), False, ["down_proj:8"], 1),
]


@pytest.mark.parametrize("part, act, bias, zeros, stay", CASES)
def test_units_go_where_they_are_constant(part, act, bias, zeros, stay):
    model = part(act, bias)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        for name, count in (each.split(":") for each in zeros):
            weight = getattr(model.mlp, name).weight
            (weight.t() if name in ("fc2", "down_proj") else weight)[: int(count)] = 0
    x = torch.randn(5, 8)
    before = model(x)
    result = shrink_(model, multiple_of=1)
    close(model(x), before)
    assert result.widths[0].after == stay
    if stay == 8 and part is Plain:
        assert "no bias to go to in mlp.fc2" in result.widths[0].reason


def test_an_activation_in_place_leaves_the_bias_alone():
    model = Plain(nn.ReLU(inplace=True), True)
    model.mlp.fc1.weight.data[:4] = 0
    model.mlp.fc1.bias.data.fill_(-1)
    x = 3 * torch.randn(5, 8)
    before = model(x)
    assert shrink_(model, multiple_of=8).widths[0].after == 8
    assert bool((model.mlp.fc1.bias == -1).all())
    close(model(x), before)


def test_a_part_with_something_between_its_layers_stays():
    model = nn.Sequential(timm.layers.Mlp(8, 16, norm_layer=nn.LayerNorm))
    model[0].fc1.weight.data[:8] = 0
    result = shrink_(model)
    assert result.widths[0].after == 16 and result.widths[0].reason == "its norm is not known"


def resnet(depth):
    torch.manual_seed(0)
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=4).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return model


@pytest.mark.parametrize("sparse", ["", r"layer[12]\.\d\.conv\d"])
def test_channels_of_a_resnet_go_with_their_batch_norms(sparse):
    model = resnet(50)
    block, wide = model.layer1[0], model.layer2[1]
    with torch.no_grad():
        block.conv2.weight[:16] = 0  # constants that conv3, without padding, takes
        block.conv2.weight[:, :24] = 0
        wide.bn1.weight[:32] = 0
        wide.bn1.bias[:32] = -0.1  # relu makes them 0
    if sparse:
        sparseloom.sparsify_(model, {sparse: sparseloom.BlockSparse(8, select="stored")})
        block.conv1.linear.dense_copy = block.conv2.dense_copy = "auto"
    x = torch.randn(1, 3, 32, 32)
    before = model(x)
    result = shrink_(model)
    close(model(x), before)
    assert [type(block.conv1).__name__ != "Conv2d", block.bn1.num_features] == [bool(sparse), 40]
    if sparse:
        settings = [conv.dense_copy for conv in (block.conv1, block.conv2, block.conv3)]
        assert settings == ["auto", "auto", False]
    dense = [conv.to_dense() if sparse else conv for conv in (block.conv1, block.conv2, block.conv3)]
    assert [(conv.in_channels, conv.out_channels) for conv in dense] == [(64, 40), (40, 48), (48, 256)]
    assert len(block.bn2.running_mean) == 48 and wide.bn1.num_features == 96
    assert result.parameters[1] < result.parameters[0]


def test_constants_stay_where_zeros_are_padded_behind():
    model = resnet(18)
    block = model.layer1[0]
    with torch.no_grad():
        block.conv1.weight[:16] = 0
        block.bn1.bias[:8], block.bn1.bias[8:16] = 5.0, -5.0
        block.bn1.running_mean[:16] = 0
    x = torch.randn(1, 3, 32, 32)
    before = model(x)
    result = shrink_(model)
    close(model(x), before)
    assert block.conv1.out_channels == 56
    assert result.widths[0].reason == ""


def mixtral():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    config = transformers.MixtralConfig(**TOKENS, **sizes, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config).eval()


def test_empty_experts_go_when_asked(tmp_path):
    model = mixtral()
    for layer, gone in zip(model.model.layers, (1, 2), strict=True):
        layer.mlp.experts.down_proj.data[gone] = 0
    result = shrink_(model)
    assert [w.after for w in result.widths if w.kind == "experts"] == [4, 4]
    assert "experts=True" in str(result)
    for layer, gone in zip(model.model.layers, (1, 2), strict=True):  # what a mask on the router does
        layer.mlp.gate.register_forward_hook(avoiding(gone))
    before = model(tokens()).logits
    for layer in model.model.layers:
        layer.mlp.gate._forward_hooks.clear()
    shrink_(model, experts=True)
    close(model(tokens()).logits, before)
    assert model.config.num_local_experts == 3
    model.save_pretrained(tmp_path)
    close(transformers.MixtralForCausalLM.from_pretrained(tmp_path)(tokens()).logits, before)


def test_units_inside_experts_go():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "head_dim": 8}
    config = transformers.Qwen3MoeConfig(
        **TOKENS,
        **sizes,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
    )
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    experts = model.model.layers[0].mlp.experts
    with torch.no_grad():
        for expert in range(4):
            gone = torch.randperm(24)[: 8 + expert]
            experts.gate_up_proj[expert, gone[:4]] = 0  # silu(0) = 0
            experts.gate_up_proj[expert, 24 + gone[4:6]] = 0
            experts.down_proj[expert][:, gone[6:]] = 0
    before = model(tokens()).logits
    result = shrink_(model)
    close(model(tokens()).logits, before)
    assert result.settings == {"moe_intermediate_size": (24, 16)}
    assert experts.gate_up_proj.shape == (4, 32, 32) and experts.down_proj.shape == (4, 32, 16)


def avoiding(expert):
    def choose(module, arguments, output):
        logits = torch.nn.functional.linear(arguments[0].reshape(-1, module.hidden_dim), module.weight)
        logits[:, expert] = -torch.inf
        values, places = logits.softmax(-1).topk(module.top_k, -1)
        return logits, values / values.sum(-1, keepdim=True), places

    return choose


def test_layers_that_cannot_be_narrowed_are_told_with_what_to_do():
    model = nn.Sequential(*(timm.layers.Mlp(32, 64) for _ in range(3)))
    for mlp in model:
        mlp.fc1.weight.data[:32] = 0
    sparseloom.sparsify_(model, {r"0\.fc1": sparseloom.BlockSparse(16, 0.5)})
    sparseloom.quantize_(model.eval(), torch.int8)
    prune.identity(model[1].fc1, "weight")
    model.append(timm.layers.Mlp(32, 64))
    model[3].fc1 = model[2].fc1
    model.append(timm.layers.Mlp(32, 64))
    model[4].fc1.forward = lambda x: x
    reasons = [width.reason for width in shrink_(model).widths]
    assert "0.fc1 is 8-bit: shrink first" in reasons[0] and "torch.nn.utils.prune.remove" in reasons[1]
    assert reasons[2:] == [
        "2.fc1 is shared with another part",
        "3.fc1 is shared with another part",
        "4.fc1 has a forward of its own",
    ]
