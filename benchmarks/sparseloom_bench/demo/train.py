"""Trains one model: settings, optimizer, schedule, one step, scoring. The result is deterministic for its
settings and threads."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom import pattern as patterns
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.linears import sparse_linears

from .data import DemoError, Text, even_offsets, windows
from .model import ByteTransformer, LinearFactory, Shape
from .presets import PRESETS

KINDS = ("dense", "sparse")
# The experiment tries these three rates for both models (bench/results/*/demo_quality.json); the demo uses
# each one's best.
LEARNING_RATES = (1e-3, 2e-3, 3e-3)
BEST_RATE = {"dense": 1e-3, "sparse": 2e-3}
# The rate of the embeddings and the head, which are dense in both models. Seldom-touched rows need larger
# steps: at the dense model's layer rate of 2e-3, this rate for the head is worth 0.1 bits per byte.
EMBEDDING_RATE = 4e-3
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
CLIP_NORM = 1.0
# The warm-up takes a fifth: a tenth costs the dense model 0.07 bits per byte at a layer rate of 2e-3, and
# gains 0.02 at 1e-3.
WARMUP_SHARE = 0.2
SCORE_BATCH = 16


@dataclass(frozen=True)
class Settings:
    """The settings that decide a run's outcome bit for bit, beside the text, the machine and torch's
    version."""

    steps: int = 640  # with the build, a fresh clone shows its table within 6 minutes on two cores
    seed: int = 0
    density: float = 0.25
    block: int = 32
    width: int = 256
    layers: int = 4
    context: int = 128
    batch: int = 4
    lr: dict[str, float] = field(default_factory=lambda: dict(BEST_RATE))
    validation_bytes: int = 8 << 10
    held_out_bytes: int = 64 << 10
    threads: int = 2
    preset: str = "cpu"

    @property
    def device(self) -> str:
        return PRESETS[self.preset].device

    @property
    def amp(self) -> bool:
        return PRESETS[self.preset].amp

    @property
    def compiled(self) -> bool:
        return PRESETS[self.preset].compiled

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the layers' products compute; parameters and their gradients are float32."""
        return torch.bfloat16 if self.amp else torch.float32

    @property
    def shape(self) -> Shape:
        heads = self.width // 64 if self.width % 64 == 0 else 1
        return Shape(self.width, self.layers, heads, self.context)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.context

    @property
    def validate_every(self) -> int:
        return max(1, self.steps // 8)

    def with_rate(self, lr: float) -> Settings:
        return replace(self, lr=dict.fromkeys(KINDS, lr))


def build_model(kind: str, settings: Settings) -> ByteTransformer:
    """Builds the model of a kind, "dense" or "sparse", initialised from the seed, the same on every device.

    Raises sparseloom.Error on an unusable block or density.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    factory = _dense_factory(generator) if kind == "dense" else _sparse_factory(generator, settings)
    model = ByteTransformer(settings.shape, factory, generator).to(settings.device)
    for layer in sparse_layers(model).values():
        # Sparse kernels are required where they can run. A dense product inside the sparse model would not
        # show what the demo is about. And whether the plan falls back to dense may depend on rates measured
        # anew in every process: a resumed run would no longer be bitwise the same.
        candidates = layer.plan(settings.tokens_per_step, dtype=settings.dtype)["candidates"]
        layer.strict = any(not entry["refusal"] for entry in candidates if entry["kernel"] not in _FALLBACKS)
    return model


def sparse_layers(model: nn.Module) -> dict[str, BlockSparseLinear]:
    """Returns the sparse layers by name, in order."""
    return dict(sparse_linears(model))


def inference_model(model: ByteTransformer, settings: Settings) -> ByteTransformer:
    """Returns what would be deployed: the model itself, or its copy with bf16 weights where training casts
    them."""
    return copy.deepcopy(model).to(settings.dtype) if settings.amp else model


def _dense_factory(generator: torch.Generator) -> LinearFactory:
    def linear(in_features: int, out_features: int) -> nn.Module:
        layer = nn.Linear(in_features, out_features, bias=False)
        with torch.no_grad():
            layer.weight.uniform_(-1, 1, generator=generator).mul_(in_features**-0.5)
        return layer

    return linear


def _sparse_factory(generator: torch.Generator, settings: Settings) -> LinearFactory:
    def linear(in_features: int, out_features: int) -> nn.Module:
        # The pattern is even over columns too, so that no input feature is dropped or favoured by chance.
        pattern = patterns.biregular(out_features, in_features, settings.block, settings.density, generator)
        if pattern.blocks == 0:
            raise DemoError(
                f"--density {settings.density} keeps no block of a "
                f"{out_features} x {in_features} layer: raise it"
            )
        return BlockSparseLinear(in_features, out_features, bias=False, pattern=pattern, seed=generator)

    return linear


_FALLBACKS = ("dense", "reference")


def fan_in(layer: nn.Module) -> float:
    """Returns the mean number of inputs that an output of the layer really has."""
    for _, sparse in sparse_linears(layer):
        return sparse.in_features * sparse.density
    return float(layer.in_features)  # type: ignore[arg-type]


def make_optimizer(model: ByteTransformer, lr: float) -> torch.optim.Optimizer:
    """Returns AdamW with a rate for each layer that goes with 1 / sqrt(true fan-in), relative to 256 inputs.

    Sparser layers bear larger steps. With these rates the two models' best `lr` lie a factor of two apart;
    with one rate for all layers it is a factor of four, and 0.2 bits per byte are lost.
    """
    groups: list[dict[str, Any]] = []

    def add(parameters: list[nn.Parameter], rate: float, decay: float) -> None:
        groups.append({"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay})

    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, nn.LayerNorm):
            add(own, lr, 0.0)
        elif isinstance(layer, nn.Embedding) or layer is model.head:
            add(own, EMBEDDING_RATE, WEIGHT_DECAY)
        elif own:
            add(own, lr * (256 / fan_in(layer)) ** 0.5, WEIGHT_DECAY)
    return torch.optim.AdamW(groups, betas=BETAS, fused=True)


def schedule(step: int, steps: int) -> float:
    """Returns the share of the peak rate: linear warm-up, then half a cosine to zero."""
    warmup = max(1, round(WARMUP_SHARE * steps))
    return (
        min(1.0, (step + 1) / warmup)
        * 0.5
        * (1 + math.cos(math.pi * max(0, step - warmup) / max(1, steps - warmup)))
    )


class Trainer:
    """Trains one model and keeps its losses, scores and times."""

    def __init__(self, kind: str, settings: Settings) -> None:
        self.kind, self.settings = kind, settings
        self.model = build_model(kind, settings)
        # Whole models are compiled, not layers: each sparse layer's pattern is a constant of its graph. With
        # one shape nothing is compiled twice.
        self._call = (
            torch.compile(self.model, fullgraph=True, dynamic=False) if settings.compiled else self.model
        )
        self.optimizer = make_optimizer(self.model, settings.lr[kind])
        self.losses: list[float] = []  # bits per byte of each step's batch
        self.validation: list[tuple[int, float]] = []  # (steps done, bits per byte)
        self.seconds: list[float] = []  # of each step

    @property
    def done(self) -> int:
        return len(self.losses)

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Makes one update from int64 [batch, context] each, on the CPU.

        Raises DemoError when the loss is no longer finite.
        """
        start = time.perf_counter()
        device = self.settings.device
        inputs, targets = inputs.to(device), targets.to(device)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * schedule(self.done, self.settings.steps)
        with torch.autocast(device, torch.bfloat16, enabled=self.settings.amp):
            loss = F.cross_entropy(self._call(inputs).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        bits = loss.item() / math.log(2)
        if not math.isfinite(bits):
            raise DemoError(f"the {self.kind} model diverged at step {self.done}: lower --lr")
        self.losses.append(bits)
        self.seconds.append(time.perf_counter() - start)

    def validate(self, text: Text) -> float:
        bits = score(self.model, text.validation, self.settings.validation_bytes, self.settings.amp)
        self.validation.append((self.done, bits))
        return bits


@torch.no_grad()
def score(model: ByteTransformer, part: Tensor, size: int, amp: bool = False) -> float:
    """Returns bits per byte on about `size` bytes of a part.

    They are read in windows of the model's context, spread evenly over the part. amp: with bf16 autocast.
    """
    context, device = model.shape.context, model.cos.device
    offsets = even_offsets(part, max(1, size // context), context)
    total, count = 0.0, 0
    for some in offsets.split(SCORE_BATCH):
        inputs, targets = (side.to(device) for side in windows(part, some, context))
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            total += F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        count += targets.numel()
    return total / count / math.log(2)
