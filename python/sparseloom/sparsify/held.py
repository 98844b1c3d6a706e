"""Held: a method's interface to one weight of a model, whatever its module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import Error
from ..ops.scores import gradient_norms, gradient_scores
from .context import Context

if TYPE_CHECKING:
    from .run import Run


class Held(ABC):
    """One weight that a method drives. nn.held.driven has the two kinds: stored blocks, and a dense
    master."""

    name: str
    number: int  # its position among the weights of the run
    run: Run  # that drives it
    shape: tuple[int, int]  # out features, in features
    block: tuple[int, int]
    target: float  # the density that was asked for
    #: Whether the weight has a capacity, so that its blocks can change on its device.
    moves_on_device: bool = False

    def __init__(self) -> None:
        #: (dY, X) of the watched steps that the optimizer has made, and of backward passes since then.
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.fresh: list[tuple[Tensor, Tensor]] = []
        self.watching = False
        self._pass, self._of_none = -1, True  # the backward pass seen last; whether the first had no gradient

    @property
    def grid(self) -> tuple[int, int]:
        """(block rows, block columns)."""
        return -(-self.shape[0] // self.block[0]), -(-self.shape[1] // self.block[1])

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weight is."""

    @property
    @abstractmethod
    def parameter(self) -> Tensor:
        """The Parameter that optimizers hold."""

    @abstractmethod
    def watch(self) -> None:
        """Connects the layer's forward hook to this object, also after both were copied."""

    @abstractmethod
    def present(self) -> Tensor:
        """Returns which blocks exist: bool [block rows, block columns] on the CPU."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Returns the weight [out, in]; stored blocks with zero elsewhere."""

    @abstractmethod
    def gradient(self) -> Tensor | None:
        """Returns the gradient that the optimizer sees [out, in], None without one."""

    @abstractmethod
    def learned(self) -> Tensor | None:
        """Returns trained scores, None without them."""

    @abstractmethod
    def adjust(self, budget: float, progress: float) -> bool:
        """Tells a gate its budget. Returns whether there is a gate, which then decides on the mask."""

    @abstractmethod
    def move(self, mask: Tensor, optimizers: Sequence[Optimizer], grown: Tensor | None) -> None:
        """Makes ``mask`` the topology; values, gradient and state go with their blocks."""

    def follow(self, copy: nn.Module) -> None:
        """Lets the weight of the same name in a copy of the model move along. Raises Error if the copy has no
        such weight, or if this kind of weight cannot move in a copy."""
        raise Error(
            "Run.follow", "stored blocks", f"{self.name}, a masked weight", "average what pack_ makes"
        )

    def drop_and_grow(
        self, count: int, share: float, scores: Tensor, growth: Tensor, optimizers: Sequence[Optimizer]
    ) -> None:
        """Keeps ``count`` blocks with the best ``scores`` [slots], drops the ``share`` of them, and grows as
        many others with the best ``growth`` [block rows, block columns]; for weights with
        ``moves_on_device``."""
        raise NotImplementedError

    def block_norms(self, norm: str) -> Tensor:
        """Returns the norm of each slot's block on the weight's device, float32 [slots]; for weights with
        ``moves_on_device``."""
        raise NotImplementedError

    def cells(self) -> Tensor:
        """Returns the grid cell of each slot's block, in row-major order: int64 [slots], any cell for a free
        slot; for weights with ``moves_on_device``."""
        raise NotImplementedError

    def stored(self) -> Tensor:
        """Returns ``present`` as float32 on the weight's device, without waiting; for weights with
        ``moves_on_device``."""
        raise NotImplementedError

    @abstractmethod
    def shrink(self, amount: float) -> None:
        """Reduces the l2 norm of every block by ``amount``."""

    #: Whether ``refresh`` chooses a 2:4 mask on the weight's device.
    refreshes: bool = False

    def refresh(self, budget: float) -> None:
        """Chooses the 2:4 mask anew by |w|, or keeps all with a budget of 1; for weights with
        ``refreshes``."""
        raise NotImplementedError

    def flips(self) -> Tensor:
        """Returns the share of the mask that the last refresh changed, float32 [] on the weight's device; for
        weights with ``refreshes``."""
        raise NotImplementedError

    @property
    def in_tail(self) -> bool:
        """Whether a weight with ``refreshes`` multiplies whole, after ``Run.dense_tail``."""
        return False

    def decay_in_step(self, steps: bool) -> None:
        """Tells a layer whose gradient rule has a decay whether ``add_decay`` adds it before each step."""
        return None

    def add_decay(self, scale: Tensor | None) -> None:
        """Adds the gradient rule's decay to the gradient, which GradScaler has multiplied by ``scale``."""
        return None

    def decay_pruned(self, amount: float, adaptive: bool) -> None:
        """Decays the pruned part of a 2:4 master: see regrow.PrunedDecay."""
        raise Error("PrunedDecay", "2:4 layers that train", self.name, 'use InLayout("semi24", method=...)')

    @abstractmethod
    def penalty(self) -> Tensor | None:
        """Returns the gate's penalty, None without one."""

    @abstractmethod
    def learning_rate(self, optimizers: Sequence[Optimizer]) -> float:
        """Returns the learning rate of the weight's group in its optimizer, 1 without one."""

    def ages(self, optimizers: Sequence[Optimizer]) -> Tensor | None:
        """Returns how many steps each slot's block has made, float32 [slots] on the weight's device; None
        where no optimizer counts them."""
        for optimizer in optimizers:
            steps = optimizer.state.get(self.parameter, {}).get("step")
            if isinstance(steps, Tensor) and steps.dim() == 1:
                return steps
        return None

    def context(self, step: int) -> Context:
        """Returns the Context for a Score."""
        return Context(
            self.dense(), self.block, self.target, step=step,
            gradient=self.gradient(), learned=self.learned(), present=self.present(),
        )  # fmt: skip

    def saw(self, dy: Tensor, x: Tensor) -> None:
        """Keeps the operands of one backward pass, before it reaches the weight's gradient."""
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self._pass = number
            self._forget_skipped()
        self.fresh.append((dy.detach().reshape(-1, dy.shape[-1]), x.detach().reshape(-1, x.shape[-1])))

    def _forget_skipped(self) -> None:
        """At the first backward pass after them, drops passes whose gradient was discarded without a step, as
        by GradScaler. Passes whose gradient still exists are micro-batches, and stay."""
        parameter = self.parameter
        if isinstance(getattr(parameter, "main_grad", None), Tensor):
            return  # the sum is in main_grad, and .grad is always None
        if parameter.grad is None:
            self.fresh.clear()
        elif self.fresh and not self._of_none:
            # zero_grad(set_to_none=False) leaves zeros; torch.where avoids waiting for the device
            has_gradient = (parameter.grad != 0).any()
            self.fresh = [
                (torch.where(has_gradient, dy, 0), torch.where(has_gradient, x, 0)) for dy, x in self.fresh
            ]
        if not self.fresh:
            self._of_none = parameter.grad is None

    def made_step(self, skipped: bool) -> None:
        """Notes that the optimizer has made its step, or skipped it: the passes since the last step are then
        dropped."""
        if not skipped:
            self.pairs += self.fresh
        self.fresh = []

    def gradient_scores(self, norm: str) -> Tensor | None:
        """Returns the norms of the blocks of the whole gradient in the watched step, with squares summed over
        ranks; None if one is not finite: GradScaler skips such a step. For a weight that took no part in the
        step, its present blocks are the best candidates, so that it keeps them."""
        finite = [(dy, x) for dy, x in self.pairs if bool(dy.isfinite().all()) and bool(x.isfinite().all())]
        has_pairs = torch.tensor([float(len(self.pairs) > 0)], dtype=torch.float32, device="cpu")
        if finite:
            squares = gradient_scores(finite, *self.shape, self.block, norm).square()
        else:  # the all-reduce spreads a NaN to all ranks
            start = float("nan") if self.pairs else 0.0
            squares = torch.full(self.grid, start, dtype=torch.float32, device="cpu")
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            message = torch.cat([squares.flatten(), has_pairs]).to(self.device)
            dist.all_reduce(message)
            message = message.cpu()
            squares, has_pairs = message[:-1].view(self.grid), message[-1:]
        if not bool(has_pairs):
            return self.present().float()
        return None if bool(squares.isnan().any()) else squares.sqrt()

    def gradient_norms(self, norm: str) -> Tensor:
        """Returns ``gradient_scores`` on the weight's device, without waiting for it; not finite where
        ``gradient_scores`` would be None."""
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not self.pairs and not distributed:
            return self.stored()
        if self.pairs:
            norms = gradient_norms(self.pairs, self.block, norm)
        else:
            norms = torch.zeros(self.grid, dtype=torch.float32, device=self.device)
        if not distributed:
            return norms
        message = torch.cat([norms.square().flatten(), norms.new_full((1,), float(len(self.pairs) > 0))])
        dist.all_reduce(message)
        return torch.where(message[-1] > 0, message[:-1].view(self.grid).sqrt(), self.stored())
