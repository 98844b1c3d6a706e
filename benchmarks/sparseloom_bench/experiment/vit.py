"""One arm of `sparseloom experiment vit`: ViT-tiny on CIFAR-10 in bf16, dense or by one method.

The recipe is one for all arms: AdamW at a learning rate of 1e-3 with a warm-up of 5 epochs and a cosine to
zero, a weight decay of 0.05, batches of 256, the augmentations of augment.py, the accuracy of the last epoch.
Every random number follows from the seed and the step, so that a run that goes on from a checkpoint is the
run that never stopped.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom import optim
from sparseloom.errors import Error
from sparseloom.nn import MaskedLinear
from sparseloom.patch import BlockSparse, pack_, sparsify_
from sparseloom.sparsify import densities, methods, select
from sparseloom.sparsify.gates import Gate
from sparseloom.sparsify.run import Run

from . import augment
from .cifar import Images
from .digits import Arm
from .moves import Moves, noted
from .steps import Graph, device_name, mixed, rate
from .vit_model import SPARSE, TINY, Size, ViT

EPOCHS, BATCH, LR, DECAY, WARM_UP = 115, 256, 1e-3, 0.05, 5
#: Steps that are timed, and those before them, which compile.
TIMED, COLD = 250, 20
#: Steps over which the rate of a new block rises with SMET's rules, and changes before which it stays.
WARM, GRACE = 20, 5


class Trial(NamedTuple):
    """What is compared: a method at a sparsity in percent, in blocks of one size. ``by_shape`` gives layers
    Erdos-Renyi densities instead of one for all; rates are divided by density**power."""

    arm: Arm
    sparsity: int = 0
    block: int = 16
    by_shape: bool = False
    power: float = 0.0


def trials(steps: int) -> dict[str, Trial]:
    """Returns the arms of a training of that many steps, by the names that the command takes."""

    def at(share: float) -> int:
        return round(share * steps)

    every = max(1, at(1 / 97))
    static = Arm("static", select="random", redraw=True)
    moving = noted(methods.rigl(at(0.75), every, share=0.1))
    rigl = Arm("RigL", moving, "random", True)
    in_rows = replace(moving, select=select.TopK("row"))
    summed = noted(methods.rigl(at(0.75), every, share=0.1, steps=8))
    gradual = Arm("gradual", methods.gradual(at(0.1), at(0.7), every))
    warm = Arm("RigL", noted(methods.rigl(at(0.75), every, share=0.1, warm_up=WARM)), "random", True)
    kept = noted(methods.rigl(at(0.75), every, share=0.1, warm_up=WARM, grace=GRACE * every))
    grace = Arm("RigL", kept, "random", True)
    set_ = Arm("SET", noted(methods.set_(every, 0.1, at(0.75), warm_up=WARM)), "random", True)
    return {
        "dense": Trial(Arm("dense", dense=True)),
        "static-80": Trial(static, 80),
        "rigl-80": Trial(rigl, 80),
        "supermask-80": Trial(Arm("supermask", methods.supermask(lr=LR)), 80),
        "gradual-80": Trial(gradual, 80),
        "spartan-80": Trial(Arm("Spartan", methods.spartan(at(0.8), at(0.2))), 80),
        "gradual-80-block32": Trial(gradual, 80, 32),
        "gradual-70": Trial(gradual, 70),
        "static-90": Trial(static, 90),
        "rigl-90": Trial(rigl, 90),
        # What may lift RigL and supermask above static: see docs/results_vit.md.
        "rigl-80-erk": Trial(rigl, 80, by_shape=True),
        "rigl-80-row": Trial(Arm("RigL", in_rows, "random", True), 80),
        "rigl-80-sum": Trial(Arm("RigL", summed, "random", True), 80),
        "supermask-80-scaled": Trial(Arm("supermask", methods.supermask(lr=LR), redraw=True), 80),
        "gradual-90": Trial(gradual, 90),
        "supermask-90": Trial(Arm("supermask", methods.supermask(lr=LR)), 90),
        # SMET's rules; -warm without scaled rates
        "rigl-80-smet": Trial(warm, 80, power=1.0),
        "rigl-80-warm": Trial(warm, 80),
        "rigl-90-smet": Trial(warm, 90, power=1.0),
        "set-80-smet": Trial(set_, 80, power=1.0),
        # new blocks, which start at zero and are the weakest, stay for GRACE changes
        "rigl-80-grace": Trial(grace, 80, power=1.0),
        "rigl-90-grace": Trial(grace, 90, power=1.0),
        # what scaled rates do without moving blocks
        "static-80-scaled": Trial(static, 80, power=1.0),
        "static-90-scaled": Trial(static, 90, power=1.0),
    }


@dataclass(frozen=True)
class Setting:
    """What all arms of a table share. ``archive`` is the SHA-256 of the data."""

    archive: str
    epochs: int = EPOCHS
    batch: int = BATCH
    size: Size = TINY

    def steps(self, images: Images) -> int:
        """Returns the steps of a training: each epoch leaves out what does not fill a batch."""
        return self.epochs * self.epoch(images)

    def epoch(self, images: Images) -> int:
        """Returns the steps of an epoch. Raises Error for a batch that no epoch fills."""
        if len(images.x) < self.batch:
            got = f"{len(images.x)} images"
            raise Error(
                "experiment vit", f"{self.batch} images for a batch", got, "pass the whole of CIFAR-10"
            )
        return len(images.x) // self.batch


class Training:
    """A network, its optimizer and its method at one step of one arm."""

    def __init__(self, name: str, seed: int, setting: Setting, images: Images, compiled: bool) -> None:
        logging.getLogger("sparseloom").setLevel(logging.WARNING)  # sparsify_ would print its table
        self.name, self.seed, self.setting, self.images, self.compiled = name, seed, setting, images, compiled
        self.steps = setting.steps(images)
        self.device = images.x.device
        self.trial = trials(self.steps)[name]
        arm = self.trial.arm
        torch.manual_seed(seed)
        self.net = ViT(setting.size).to(self.device)
        self.optimizer = _adamw(self.net)
        self.run: Run | None = None
        if not arm.dense:
            chosen = {
                name: BlockSparse(self.trial.block, density, arm.select, seed=seed, method=arm.method)
                for name, density in self._densities().items()
            }
            self.run = sparsify_(self.net, chosen, optimizer=self.optimizer).run
            if arm.redraw:
                self._redraw()
            for module in self.net.modules():
                if isinstance(module, MaskedLinear):
                    module.multiply = "dense"  # at this width faster, and in a CUDA graph
        self.moves: Moves | None = None
        if self.run is not None and arm.method is not None and arm.method.regrow is not None:
            self.moves = Moves(self.run, arm.method, self.optimizer)
        if self.trial.power:
            _scale(self.optimizer, self.net, self.trial.power)
        for group in self.optimizer.param_groups:
            group["peak"] = group["lr"]
        if compiled:
            for block in self.net.blocks:
                block.compile()
        self.graph: Graph | None = None
        if compiled and self.device.type == "cuda" and not self._host_decides():
            everything = list(self.net.parameters())
            self.graph = Graph(self._gradients, everything, self.setting.batch, augment.NUMBERS)
        self.uniform = torch.Generator(self.device)
        pixels = images.x.float()
        self.mean, self.deviation = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
        self.step = 0
        self.losses: list[float] = []  # the mean of each epoch

    def _densities(self) -> dict[str, float]:
        """Returns the densities of layers, by regexes."""
        density = 1 - self.trial.sparsity / 100
        if not self.trial.by_shape:
            return {SPARSE: density}
        shapes = {
            re.escape(name): (module.out_features, module.in_features)
            for name, module in self.net.named_modules()
            if isinstance(module, nn.Linear) and re.fullmatch(SPARSE, name)
        }
        return densities.erdos_renyi(shapes, density, self.trial.block)

    @torch.no_grad()
    def _redraw(self) -> None:
        """Gives the weights the deviation of the fan-in that is left."""
        for layer in self.net.hidden():
            if isinstance(layer, MaskedLinear):  # whose mask moves: that of the average row
                layer.weight.mul_((1 - self.trial.sparsity / 100) ** -0.5)
            else:
                layer.reset_parameters()

    def train(self, stop: Callable[[], bool], save: Callable[[], None]) -> bool:
        """Trains until all steps are done, and returns True, or until ``stop`` says so after an epoch. Calls
        ``save`` then."""
        epoch = self.setting.epoch(self.images)
        while self.step < self.steps:
            number = self.step // epoch
            shuffled = torch.Generator().manual_seed(mixed(self.seed, number))
            order = torch.randperm(len(self.images.x), generator=shuffled).to(self.device)
            total = torch.zeros((), device=self.device)
            for rows in order[: epoch * self.setting.batch].split(self.setting.batch):
                total += self._step(rows)
            self.losses.append(float(total) / epoch)
            if stop():
                save()
                break
        return self.step == self.steps

    def speed(self) -> float:
        """Returns the steps per second of a training that goes no further than this."""
        rows = torch.arange(self.setting.batch, device=self.device)
        for _ in range(COLD):
            self._step(rows)
        begin = self._clock()
        for _ in range(TIMED):
            self._step(rows)
        return TIMED / (self._clock() - begin)

    def _step(self, rows: Tensor) -> Tensor:
        """Takes one step with the images of these rows, and returns its loss."""
        self.uniform.manual_seed(mixed(self.seed, self.step) + 1)
        u = torch.rand(len(rows), augment.NUMBERS, generator=self.uniform, device=self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate((self.step + 1) / self.steps, WARM_UP / self.setting.epochs)
        # In watched steps layers have hooks, which compiled blocks and graphs would not run.
        watched = self.run is not None and any(held.watching for held in self.run.weights)
        if self.graph is None or watched:
            self.optimizer.zero_grad()
            with _eager(watched):
                loss = self._gradients(rows, u)
        else:
            loss = self.graph(rows, u)
        self.optimizer.step()
        if self.run is not None:
            self.run.step()
        if self.moves is not None:
            self.moves.after()
        self.step += 1
        return loss

    def _gradients(self, rows: Tensor, u: Tensor) -> Tensor:
        """Adds the gradients of a batch, and returns its loss."""
        pixels = augment.standardised(self.images.x[rows], self.mean, self.deviation)
        x, y = augment.batch(pixels, self.images.y[rows], u)
        with self._bf16():
            logits = self.net(x)
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        return loss.detach()

    def _host_decides(self) -> bool:
        """Whether a gate's choice needs the host: no CUDA graph holds that."""
        return any(isinstance(module, Gate) and not module.on_device for module in self.net.modules())

    def _bf16(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16)

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the steps that are left depend on."""
        return {
            "setting": asdict(self.setting), "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "run": None if self.run is None else self.run.state_dict(),
            "moves": None if self.moves is None else self.moves.state_dict(),
            "step": self.step, "losses": self.losses,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises Error for the state of another setting."""
        if state["setting"] != asdict(self.setting):
            got = f"a checkpoint of {state['setting']}"
            raise Error("experiment vit", f"one of {asdict(self.setting)}", got, "pass another --out")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.run is not None:
            self.run.load_state_dict(state["run"])
        if self.moves is not None:
            self.moves.load_state_dict(state["moves"])
        self.step, self.losses = state["step"], state["losses"]

    @torch.no_grad()
    def outcome(self) -> dict[str, Any]:
        """Packs the network, and returns its test accuracy and its kept density."""
        moves = None if self.moves is None else self.moves.record()
        if self.run is not None:
            pack_(self.net)
        right = 0
        with self._bf16(), _eager(True):
            for x, y in zip(self.images.test_x.split(500), self.images.test_y.split(500), strict=True):
                logits = self.net(augment.standardised(x, self.mean, self.deviation))
                right += int((logits.argmax(-1) == y).sum())
        layers = self.net.hidden()
        total = sum(layer.in_features * layer.out_features for layer in layers)
        stored = sum(next(layer.parameters()).numel() for layer in layers)
        return {
            "arm": self.name, "seed": self.seed, "setting": asdict(self.setting),
            "accuracy": right / len(self.images.test_y), "density": stored / total,
            "steps": self.steps, "losses": self.losses, "moves": moves,
            "device": device_name(self.device), "torch": torch.__version__,
        }  # fmt: skip


def _adamw(net: nn.Module) -> optim.AdamW:
    """Returns the optimizer, which counts the steps of each block. Matrices decay; positions, norms and
    biases do not."""
    named = list(net.named_parameters())
    plain = [each for name, each in named if each.dim() < 2 or name == "positions"]
    matrices = [each for name, each in named if each.dim() >= 2 and name != "positions"]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": plain, "weight_decay": 0.0}]
    return optim.AdamW(groups, LR, weight_decay=DECAY)


def _scale(optimizer: torch.optim.Optimizer, net: nn.Module, power: float) -> None:
    """Gives sparse values groups of their own, whose rates follow their densities."""
    first = optimizer.param_groups[0]
    for group in densities.rates(net, first["lr"], power):
        mine = {id(each) for each in group["params"]} & {id(each) for each in first["params"]}
        moved = [each for each in first["params"] if id(each) in mine]
        if group["lr"] != first["lr"] and moved:
            first["params"] = [each for each in first["params"] if id(each) not in mine]
            optimizer.add_param_group({**first, "params": moved, "lr": group["lr"]})


@contextlib.contextmanager
def _eager(wanted: bool) -> Iterator[None]:
    """Runs compiled blocks as plain Python where that is wanted."""
    with torch.compiler.set_stance("force_eager") if wanted else contextlib.nullcontext():
        yield
