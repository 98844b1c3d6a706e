"""Lists the models: the packages' own definitions with random weights, random data, and the layers that
become sparse."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sparseloom import InLayout
from sparseloom.errors import Error
from sparseloom.patch import BlockSparse
from sparseloom.sparsify import methods


@dataclass(frozen=True)
class Spec:
    """One model of the suite. ``build`` gets the package and the sizes, ``inputs`` the sizes and a
    generator."""

    name: str
    package: str  # imported only when the model is measured
    build: Callable[[ModuleType, Mapping[str, Any]], nn.Module]
    inputs: Callable[[Mapping[str, Any], torch.Generator], Tensor]
    classes: int
    patterns: Mapping[str, BlockSparse | InLayout]
    batches: tuple[int, ...]  # the last one is used for training; the report has all
    sizes: Mapping[str, Any] = field(default_factory=dict)  # what differs from the defaults
    smallest: Mapping[str, Any] = field(default_factory=dict)  # what differs in the smallest call's input
    calls: tuple[str, ...] = ("inference", "inference, smallest", "step")  # of ways.in_each_way
    #: Whether only layers that gain become sparse there, as advise times them, and whether inference has its
    #: batch norms folded, of dense too.
    chosen: bool = False
    #: Calls that are worth their time in some of the ways alone.
    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def batch(self) -> int:
        return self.batches[-1]

    def require(self) -> None:
        """Raises Error when the package is not installed."""
        if importlib.util.find_spec(self.package) is None:
            remedy = f"pip install {self.package}, or choose another model with --only"
            raise Error(
                "bench", f"the package {self.package} for {self.name}", "an environment without it", remedy
            )

    def described(self) -> dict[str, dict[str, Any]]:
        """Returns the patterns as plain data."""
        return {
            regex: {"block": list(each.shape), "density": each.density}
            if isinstance(each, BlockSparse)
            else {"layout": each.layout.name}
            for regex, each in self.patterns.items()
        }

    def version(self) -> str:
        return f"{self.package} {importlib.metadata.version(self.package)}"

    def make(self, seed: int, device: torch.device) -> nn.Module:
        """Returns the dense model with random weights, in training mode."""
        self.require()
        torch.manual_seed(seed)
        return self.build(importlib.import_module(self.package), self.sizes).to(device).train()

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns one random batch and its random classes."""
        generator = torch.Generator().manual_seed(0)
        x = self.inputs(dict(self.sizes) | {"batch": self.batch}, generator)
        target = torch.randint(self.classes, (self.batch,), generator=generator)
        return x.to(device), target.to(device)

    def single(self, device: torch.device) -> Tensor:
        """Returns the input of the smallest call that users make: one image, one text, one token."""
        sizes = dict(self.sizes) | {"batch": 1} | dict(self.smallest)
        return self.inputs(sizes, torch.Generator().manual_seed(0)).to(device)


def _vit(name: str) -> Callable[[ModuleType, Mapping[str, Any]], nn.Module]:
    """Returns what builds one of timm's."""

    def build(timm: ModuleType, sizes: Mapping[str, Any]) -> nn.Module:
        model: nn.Module = timm.create_model(name, pretrained=False, **sizes)
        return model

    return build


def _feed_forward(torch: ModuleType, sizes: Mapping[str, Any]) -> nn.Module:
    """The feed-forward half of a transformer's block, whose outputs are the logits."""
    features, hidden = sizes["features"], sizes["hidden"]
    model: nn.Module = torch.nn.Sequential(
        torch.nn.Linear(features, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, features)
    )
    return model


def _tokens(sizes: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    return torch.randn(sizes["batch"], sizes["features"], generator=generator)


def _images(sizes: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    side = sizes.get("img_size", 224)
    return torch.randn(sizes["batch"], 3, side, side, generator=generator)


def _bert(transformers: ModuleType, sizes: Mapping[str, Any]) -> nn.Module:
    options = {key: value for key, value in sizes.items() if key != "tokens"}
    # torch's own attention multiplies in fp32 once Inductor takes it apart, as it does beside a mask: dense
    # takes 10.3 ms a step by a graph for 9.6 with this one, and 2.7 for 2.1 ms in inference (H200, torch
    # 2.11).
    model: nn.Module = transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=BERT_CLASSES, attn_implementation="eager", **options)
    )
    return model


class Pooled(nn.Module):
    """Blocks of a decoder with a classifier of the mean token, so that all models train in the same way."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.classifier = body, nn.Linear(features, TEXT_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [batch, tokens] to logits [batch, classes]."""
        hidden: Tensor = self.body(x, use_cache=False).last_hidden_state
        logits: Tensor = self.classifier(hidden.mean(1))
        return logits


def _decoder(family: str, **defaults: Any) -> Callable[[ModuleType, Mapping[str, Any]], nn.Module]:
    """Returns what builds some blocks of a family of transformers'."""

    def build(transformers: ModuleType, sizes: Mapping[str, Any]) -> nn.Module:
        options = defaults | {key: value for key, value in sizes.items() if key != "tokens"}
        config = getattr(transformers, f"{family}Config")(**options)
        return Pooled(getattr(transformers, f"{family}Model")(config), config.hidden_size)

    return build


def _texts(sizes: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    # Tokens start at 1: token 0 is padding, and the model would warn that no mask was given.
    return torch.randint(
        1, sizes.get("vocab_size", 30522), (sizes["batch"], sizes.get("tokens", 128)), generator=generator
    )


def _resnet(torchvision: ModuleType, sizes: Mapping[str, Any]) -> nn.Module:
    """torchvision's resnet50 by its parts, in channels-last memory, which is cuDNN's best and the sparse
    kernels' own."""
    parts = importlib.import_module(f"{torchvision.__name__}.models.resnet")
    options = {key: value for key, value in sizes.items() if key not in ("layers", "img_size")}
    made: Any = parts.ResNet(parts.Bottleneck, sizes.get("layers", [3, 4, 6, 3]), **options)
    model: nn.Module = made.to(memory_format=torch.channels_last)
    return model


def _photos(sizes: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    return _images(sizes, generator).contiguous(memory_format=torch.channels_last)


BERT_CLASSES = TEXT_CLASSES = 16
#: The wide layers of the MLP keep a quarter of their blocks. The projections of attention, which suffer
#: first, keep 30 %.
MLP, ATTENTION = BlockSparse(block=64, density=0.25), BlockSparse(block=64, density=0.3)
VIT_PATTERNS = {r".*\.mlp\.fc[12]": MLP, r".*\.attn\.(qkv|proj)": ATTENTION}
BERT_PATTERNS = {
    r".*\.layer\.\d+\.(intermediate|output)\.dense": MLP,
    r".*\.attention\.(self\.(query|key|value)|output\.dense)": ATTENTION,
}
#: All 3 x 3 and 1 x 1 convolutions, but not the first one, of 7 x 7 and three channels. Every block
#: row gets its share, as far as it has four blocks or more: random weights have none that matter less.
RESNET_PATTERNS = {r"layer\d.*\.(conv\d|downsample\.0)": BlockSparse(block=32, density=0.25, scope="row")}
GPT2_PATTERNS = {r".*\.mlp\.c_(fc|proj)": MLP, r".*\.attn\.c_(attn|proj)": ATTENTION}
LLAMA_PATTERNS = {r".*\.mlp\..*_proj": MLP, r".*\.self_attn\..*_proj": ATTENTION}
#: Four blocks of Llama 3 8B, and of Qwen2 1.5B: a quarter or a sixth as many heads for keys and values.
LLAMA = _decoder(
    "Llama", vocab_size=1000, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
    num_key_value_heads=8, num_hidden_layers=4,
)  # fmt: skip
QWEN = _decoder(
    "Qwen2", vocab_size=1000, hidden_size=1536, intermediate_size=8960, num_attention_heads=12,
    num_key_value_heads=2, num_hidden_layers=4,
)  # fmt: skip
#: Training with a dense master and one transposable 2:4 mask, chosen and packed in each step.
MASTER = InLayout("semi24", method=methods.semi24("ste"))
LONG, TOKEN = {"vocab_size": 1000, "tokens": 1024}, {"tokens": 1}
#: ViT-B/16 on 64 images of 224 x 224; BERT-base on 32 texts of 128 tokens; ResNet-50 on 64 images; GPT-2 and
#: the blocks on eight texts of 1024 tokens.
SPECS = (
    Spec(
        "vit_base_patch16_224", "timm", _vit("vit_base_patch16_224"), _images, 1000, VIT_PATTERNS, (1, 8, 64)
    ),
    Spec("bert_base", "transformers", _bert, _texts, BERT_CLASSES, BERT_PATTERNS, (1, 8, 32)),
    Spec("resnet50", "torchvision", _resnet, _photos, 1000, RESNET_PATTERNS, (1, 8, 64), chosen=True),
    Spec("gpt2", "transformers", _decoder("GPT2"), _texts, TEXT_CLASSES, GPT2_PATTERNS, (1, 8), LONG, TOKEN),
    Spec("llama_blocks", "transformers", LLAMA, _texts, TEXT_CLASSES, LLAMA_PATTERNS, (1, 8), LONG, TOKEN),
    Spec("qwen_blocks", "transformers", QWEN, _texts, TEXT_CLASSES, LLAMA_PATTERNS, (1, 8), LONG, TOKEN),
)
#: Steps alone, by --way: 2:4 training of ViT-L/16 on 64 images, and of a feed-forward block on 8192 tokens.
TRAINED = (
    Spec(
        "semi24_vit_large", "timm", _vit("vit_large_patch16_224"), _images, 1000,
        dict.fromkeys(VIT_PATTERNS, MASTER), (64,), calls=("step",),
    ),
    Spec(
        "semi24_feed_forward", "torch", _feed_forward, _tokens, 4096, {"[02]": MASTER}, (8192,),
        {"features": 4096, "hidden": 16384}, calls=("step",),
    ),
)  # fmt: skip
#: superblock's table: inference of ViT-B/16 on 256 images and on one, 90 % of the blocks of each MLP away.
SUPERBLOCK = tuple(
    Spec(
        f"vit_b16_mlp90_block{side}", "timm", _vit("vit_base_patch16_224"), _images, 1000,
        {r".*\.mlp\.fc[12]": BlockSparse(block=side, density=0.1)}, (256,),
        calls=("inference in fp32", "inference", "inference in fp32, smallest", "inference, smallest"),
        ways={
            "inference in fp32": ("eager", "compiled"), "inference": ("eager", "compiled"),
            "inference in fp32, smallest": ("graph",), "inference, smallest": ("graph",),
        },
    )
    for side in (16, 32, 64)
)  # fmt: skip


def select(only: list[str], in_ways: bool = False) -> list[Spec]:
    """Returns the models whose names contain every text of ``only``; with ``in_ways`` those of ``TRAINED``
    and ``SUPERBLOCK``, too. Raises Error when there is none."""
    specs = SPECS + TRAINED + SUPERBLOCK if in_ways else SPECS
    found = [spec for spec in specs if all(text in spec.name for text in only)]
    if not found:
        expected = f"a model of {', '.join(map(str, specs))}"
        if not in_ways:
            expected += f", or with --way of {', '.join(map(str, TRAINED + SUPERBLOCK))}"
        raise Error("bench", expected, " ".join(only), "`--list` prints the names")
    return found
