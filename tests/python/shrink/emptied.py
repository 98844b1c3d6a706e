"""Models in which pruning has left zeros: a quarter of the units and a quarter of the heads of each layer,
those of least magnitude."""

from __future__ import annotations

import tiny_models
import torch
import transformers

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
DECODER = tiny_models.TOKENS | SIZES | {"num_key_value_heads": 4}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**tiny_models.TOKENS, **SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        **tiny_models.TOKENS, n_embd=32, n_head=4, n_layer=2, n_inner=64, n_positions=32
    ),
    # its config asks for a hidden_size that the heads divide, before and after
    "llama": lambda: transformers.LlamaConfig(**DECODER | {"hidden_size": 48}),
    "qwen2": lambda: transformers.Qwen2Config(**DECODER),
    # wider heads than hidden_size / heads, norms of q and k, and two queries for each KV head
    "qwen3": lambda: transformers.Qwen3Config(**DECODER | {"num_attention_heads": 8}, head_dim=16),
    "vit": lambda: transformers.ViTConfig(**SIZES, image_size=16, patch_size=4, qkv_bias=True),
}
CLASSES = {
    "bert": "BertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "vit": "ViTForImageClassification",
}
#: Name of the first layer of a feed-forward part -> that of the last; of the values -> that of the output.
FEED = {"intermediate.dense": "output.dense", "c_fc": "c_proj", "up_proj": "down_proj", "fc1": "fc2"}
HEADS = {"self.value": "output.dense", "c_attn": "c_proj", "v_proj": "o_proj"}


def made(family, **changes):
    torch.manual_seed(0)
    config = CONFIGS[family]()
    config = type(config)(**config.to_dict() | changes)
    model = getattr(transformers, CLASSES[family])(config).eval()
    with torch.no_grad():  # biases and norms are all 0 and 1 in a new model
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def emptied(model, units=0.25, heads=0.25):
    """Zeroes the rows of the first layer's weakest units, with biases that stay; of heads the columns that
    read them, by whole KV heads."""
    with torch.no_grad():
        for name, module in list(model.named_modules()):
            for first, last in FEED.items():
                if name.endswith(f".{first}") and "attention" not in name:
                    weights = {"up": module, "down": model.get_submodule(name.removesuffix(first) + last)}
                    empty_units(matrix(weights["up"]), matrix(weights["down"]), units)
            for value, output in HEADS.items():
                if name.endswith(f".{value}"):
                    empty_heads(model, module, model.get_submodule(name.removesuffix(value) + output), heads)
    return model


def matrix(layer):
    return layer.weight.t() if type(layer).__name__ == "Conv1D" else layer.weight


def empty_units(up, down, share):
    """The first half of them by rows, the others by columns."""
    weakest = (up.norm(dim=1) * down.norm(dim=0)).argsort()[: round(share * len(up))]
    middle = len(weakest) // 2
    up[weakest[:middle]] = 0
    down[:, weakest[middle:]] = 0


def empty_heads(model, value, output, share):
    config, out = model.config, matrix(output)
    rows = len(matrix(value)) // (3 if type(value).__name__ == "Conv1D" else 1)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = rows // size
    columns = out.unflatten(1, (groups, -1))
    weakest = columns.norm(dim=(0, 2)).argsort()[: round(share * groups)]
    columns[:, weakest] = 0


def batch(family):
    if family == "vit":
        return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return tiny_models.tokens()
