"""What `sparseloom experiment lm-prune` does: trains a byte-level GPT, prunes it by every method, and lets it
recover."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, InLayout, Semi24
from sparseloom.errors import Error
from sparseloom.layouts import Tiles
from sparseloom.sparsify import densities, distillation_loss

from . import reviews
from .lm_model import Gpt, Size
from .steps import rate

#: What is pruned: all linear layers of the blocks.
LAYERS = r"blocks\.\d+\.(qkv|proj|up|down)"
#: target -> its recipe
TARGETS: dict[str, Callable[[], Any]] = {
    "elements-50": lambda: InLayout("csr", density=0.5),
    "2:4": Semi24,
    "tiles-60": lambda: InLayout("tiles", density=0.6),
    "blocks32-75": lambda: BlockSparse(32, density=0.75),
    "blocks32-50": lambda: BlockSparse(32, density=0.5),
}
#: method -> the arguments of prune_
METHODS: dict[str, dict[str, Any]] = {
    "magnitude": {"method": "magnitude"},
    "wanda": {"method": "wanda"},
    "magnitude+bias": {"method": "magnitude", "compensate_bias": True},
    "wanda+bias": {"method": "wanda", "compensate_bias": True},
    "sparsegpt": {"method": "sparsegpt"},
    "sparsegpt+bias": {"method": "sparsegpt", "compensate_bias": True},
    "sparsegpt+swaps": {"method": "sparsegpt", "swaps": 50},
    "sparsegpt+swaps+refit+reconstruction": {
        "method": "sparsegpt",
        "swaps": 50,
        "refit": 30,
        "reconstruct": 100,
    },
    # Densities by a scan of the layers.
    "magnitude+scan": {"method": "magnitude"},
    "sparsegpt+scan": {"method": "sparsegpt"},
}
#: What is scanned, and at which densities: tiles that are all 2:4 have .5625.
SCANNED, DENSITIES = "tiles-60", (0.8, 0.6875, 0.5625, 0.45, 0.35)
#: Blocks and tiles have no swaps: they are exchanged for elements alone.
WITHOUT_SWAPS = ("blocks32-75", "blocks32-50", "tiles-60")


@dataclass(frozen=True)
class Setting:
    """What all arms of a record share."""

    data: str  # SHA-256 of the file; "" for invented texts
    size: Size = field(default_factory=Size)
    batch: int = 64
    minutes: float = 4.0  # of the dense training
    lr: float = 1e-3
    calibration: int = 128  # texts of ``size.context`` bytes
    scanned: int = 64  # of them
    tested: int = 256  # texts to judge by
    recovery_lr: float = 3e-4


class Texts:
    """The bytes to learn from and to judge by, parted by review."""

    def __init__(self, path: Path | None, device: torch.device) -> None:
        parts = reviews.invented(600) if path is None else reviews.imdb(path)
        self.train, self.test = (_joined(texts).to(device) for texts in (parts.train, parts.val))

    def drawn(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """Returns bytes [count, length] from anywhere in the training texts."""
        starts = torch.randint(len(self.train) - length, (count,), generator=generator)
        return _rows(self.train, starts, length)

    def judged(self, count: int, length: int) -> Tensor:
        """Returns bytes [count, length] of the test texts, at equal distances."""
        last = len(self.test) - length
        return _rows(self.test, torch.linspace(0, last, min(count, max(1, last))).long(), length)


def _joined(texts: list[reviews.Text]) -> Tensor:
    content = b"\n".join(text.content for text in reviews.shuffled(texts))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _rows(text: Tensor, starts: Tensor, length: int) -> Tensor:
    places = starts[:, None] + torch.arange(length)
    return text[places.to(text.device)].long()


def bits(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the mean bits per byte of logits [batch, tokens, 256] that predict the next of the tokens."""
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    return loss / math.log(2)


class Experiment:
    """A dense model and what its pruned copies reach."""

    def __init__(self, setting: Setting, texts: Texts, device: torch.device) -> None:
        self.setting, self.texts, self.device = setting, texts, device
        self.model = Gpt(setting.size).to(device)
        self._test = texts.judged(setting.tested, setting.size.context)

    @torch.no_grad()
    def judged(self, model: nn.Module) -> float:
        """Returns the bits per byte of the test texts, in bf16 on a GPU."""
        model.eval()
        parts = []
        for tokens in self._test.split(16):
            with self._autocast():
                parts.append(bits(model(tokens), tokens) * len(tokens))
        return float(torch.stack(parts).sum()) / len(self._test)

    def train(self, say: Callable[[str], None]) -> dict[str, float]:
        """Trains the dense model for its minutes, with a rate that falls to zero by time."""
        setting, generator = self.setting, torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        fused = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(
            self.model.parameters(), setting.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=fused
        )
        run = torch.compile(self.model) if fused else self.model
        steps, begin, said = 0, None, 0.0
        self.model.train()
        while True:
            seconds = 0.0 if begin is None else time.monotonic() - begin
            progress = seconds / (60 * setting.minutes)
            if progress >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = setting.lr * max(1e-3, rate(progress, 0.05))
            tokens = self.texts.drawn(setting.batch, setting.size.context, generator)
            with self._autocast():
                loss = bits(run(tokens), tokens)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if seconds - said >= 20:
                said = seconds
                say(f"{seconds:4.0f} s, step {steps}: {loss.item():.3f} bits a byte of training text")
            if begin is None:  # compiled now
                begin = time.monotonic()
        return {"steps": steps, "bits": self.judged(self.model)}

    def pruned(self, target: str, method: str, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        """Returns a pruned copy and its outcome; the seed draws the texts of the calibration."""
        begin = time.monotonic()
        model = copy.deepcopy(self.model).eval()
        batches = self._calibration(seed)
        how = METHODS[method]
        if method.endswith("+scan"):
            how = how | {"budget": self._budget(model, batches)}
        sparseloom.prune_(model, {LAYERS: TARGETS[target]()}, data=batches, **how)
        seconds = time.monotonic() - begin
        outcome = {"target": target, "method": method, "seed": seed, "bits": self.judged(model)}
        return model, outcome | {"seconds": round(seconds, 2)}

    def recovered(self, model: nn.Module, minutes: float, seed: int) -> dict[str, Any]:
        """Lets a pruned copy learn from the dense model and from the texts, and returns what it reached: in a
        minute of an H200 that closed 1.40 of what 2:4 had left, and the dense model's logits alone .13."""
        setting, teacher = self.setting, self.model.eval()

        def loss(student: nn.Module, tokens: Tensor) -> Tensor:
            with torch.no_grad():
                expected = teacher(tokens)
            logits = student(tokens)
            distilled = distillation_loss(logits.float(), expected.float(), temperature=1.0)
            return 0.5 * distilled + 0.5 * math.log(2) * bits(logits, tokens)

        done = sparseloom.recover(
            model, loss, _Endless(self, seed), minutes=minutes, lr=setting.recovery_lr,
            dtype=torch.bfloat16 if self.device.type == "cuda" else None,
        )  # fmt: skip
        return {"bits": self.judged(model), "steps": done.steps, "minutes": minutes}

    def _budget(self, model: nn.Module, batches: list[Tensor]) -> dict[str, float]:
        """Returns the densities of tiles that a scan of the layers by magnitude proposes, on some of the
        calibration's texts."""
        some = torch.cat(batches)[: self.setting.scanned]
        layers = {name: part for name, part in model.named_modules() if re.fullmatch(LAYERS, name)}
        weights: dict[str, Any] = {name: layer.weight for name, layer in layers.items()}

        @torch.no_grad()
        def loss() -> float:
            with self._autocast():
                return float(bits(model(some), some))

        def mask(weight: Tensor, density: float) -> Tensor:
            return Tiles.from_dense(weight, density).mask()

        scan = densities.sensitivity(weights, loss, densities=DENSITIES, mask=mask)
        sizes = {name: weight.numel() for name, weight in weights.items()}
        return densities.proposed(scan, sizes, 0.6)

    def _calibration(self, seed: int) -> list[Tensor]:
        setting, generator = self.setting, torch.Generator().manual_seed(1000 + seed)
        tokens = self.texts.drawn(setting.calibration, setting.size.context, generator)
        return list(tokens.split(8))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class _Endless:
    """Batches of training text, the same for a seed."""

    def __init__(self, experiment: Experiment, seed: int) -> None:
        self.experiment, self.seed = experiment, seed

    def __iter__(self) -> Iterator[Tensor]:
        setting, generator = self.experiment.setting, torch.Generator().manual_seed(2000 + self.seed)
        while True:
            yield self.experiment.texts.drawn(setting.batch, setting.size.context, generator)


def load(setting: Setting, path: Path, texts: Texts, device: torch.device) -> Experiment | None:
    """Returns the experiment whose dense model lies in a file; None where there is none. Raises Error for one
    of another setting."""
    if not path.exists():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    if state["setting"] != plain(setting):
        got = f"one of {state['setting']}"
        raise Error("experiment lm-prune", "a dense model of this setting", got, "pass another --out")
    found = Experiment(setting, texts, device)
    found.model.load_state_dict({key: value.float() for key, value in state["model"].items()})
    return found


def save(experiment: Experiment, path: Path) -> None:
    """Writes the dense model in bf16."""
    model = {key: value.bfloat16() for key, value in experiment.model.state_dict().items()}
    torch.save({"setting": plain(experiment.setting), "model": model}, path)
    experiment.model.load_state_dict({key: value.float() for key, value in model.items()})


def plain(setting: Setting) -> dict[str, Any]:
    """Returns a setting as JSON has it."""
    return asdict(setting) | {"size": list(setting.size)}


def digest(path: Path | None) -> str:
    """Returns the SHA-256 of the data, "" without."""
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
