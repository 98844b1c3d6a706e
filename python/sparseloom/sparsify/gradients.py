"""Gradient rule, the fourth part of a method: which tensor trains, and which part of G = dY^T X it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .._arguments import named_init
from .._checks import gradient_rule
from ..errors import Error
from .gates import Gate, HardConcreteGate, ScoreGate, TransportGate
from .scores import Learned

if TYPE_CHECKING:
    from .method import Method


class Gradient:
    """Says whether a weight trains as stored blocks or as a dense master, and the pruned part's gradient."""

    #: Whether the layer is an nn.MaskedLinear with a dense Parameter; otherwise only its blocks are stored.
    dense_master: ClassVar[bool] = True
    #: Whether pruned weights keep their values under the mask. Otherwise they and their state become zero.
    keeps_pruned: ClassVar[bool] = False
    #: Whether a gate chooses the blocks in each forward pass, and whether it also decides how many.
    gated: ClassVar[bool] = False
    decides: ClassVar[bool] = False
    #: The gradient of the pruned part: ``share`` times G plus ``decay`` times W.
    share: float = 0.0
    decay: float = 0.0
    #: Whether the weight itself does not train.
    frozen: bool = False
    #: The learning rate of trained scores; None stands for the optimizer's own.
    lr: float | None = None

    def gate(self, method: Method, rows: int, cols: int, block: tuple[int, int]) -> Gate | None:
        """Returns the gate of a layer with that grid; None if a mask decides."""
        return None


@named_init
class Stored(Gradient):
    """Only blocks are stored, and they get their part of G: memory and time are those of the sparse layer."""

    dense_master = False


@named_init
class Masked(Gradient):
    """The weight gets the kept part of G. Pruned blocks become zero, and start from zero if they return."""


@named_init
@dataclass(frozen=True)
class Straight(Gradient):
    """Straight through: the pruned part of the master gets ``share`` of G, plus ``decay`` times the weight
    (SR-STE; 0 is the plain rule). Pruned weights keep training, and their blocks may return with their
    values."""

    keeps_pruned: ClassVar[bool] = True
    share: float = 1.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        gradient_rule("gradients.Straight", self.share, self.decay)


@named_init
@dataclass(frozen=True)
class Soft(Gradient):
    """Straight through soft thresholds, for select.Semi24("magnitude") (S-STE, Hu et al. 2024, arXiv
    2409.09099): the products take the kept weights less the largest pruned magnitude of their group, times
    a factor that stays what the first mask gives. The weight gets G as it is."""

    keeps_pruned: ClassVar[bool] = True
    share: float = 1.0


def _learned(name: str, method: Method) -> Learned:
    if not isinstance(method.score, Learned):
        raise Error(name, "score=scores.Learned(...)", repr(method.score), "pass scores that it can train")
    return method.score


@named_init
@dataclass(frozen=True)
class Scores(Gradient):
    """Trained scores choose the blocks in each forward pass; their gradient, straight through the choice, is
    the sum of G * W over the block, of the whole weight. The weight gets the kept part of G.

    Args:
        frozen: leaves the weight as it is: only scores train (edge-popup).
        lr: the learning rate of the scores.
        squash: compares a sigmoid of the scores; with select.Threshold that is soft movement pruning.
        penalty: the factor of the mean of those sigmoids in the loss, see ``Run.penalty``.
    """

    keeps_pruned: ClassVar[bool] = True
    gated: ClassVar[bool] = True
    frozen: bool = False
    lr: float | None = None
    squash: bool = False
    penalty: float = 0.0

    def gate(self, method: Method, rows: int, cols: int, block: tuple[int, int]) -> Gate:
        score = _learned("gradients.Scores", method)
        return ScoreGate(score, method.select, rows, cols, self.squash, self.penalty)


@named_init
@dataclass(frozen=True)
class Transport(Gradient):
    """Spartan's soft top-k: the factor of a block depends on its weights, which get that part of the gradient
    as well. ``sharpness`` is what the inverse temperature reaches, times the root of the block's elements."""

    keeps_pruned: ClassVar[bool] = True
    gated: ClassVar[bool] = True
    sharpness: float = 20.0

    def gate(self, method: Method, rows: int, cols: int, block: tuple[int, int]) -> Gate:
        return TransportGate(rows, cols, block, self.sharpness)


@named_init
@dataclass(frozen=True)
class HardConcrete(Gradient):
    """L0 gates. ``penalty`` is the factor of the expected number of open blocks in the loss; for a loss that
    is a mean over examples the paper divides it by their number."""

    keeps_pruned: ClassVar[bool] = True
    gated: ClassVar[bool] = True
    decides: ClassVar[bool] = True
    penalty: float = 1e-3
    lr: float | None = None

    def gate(self, method: Method, rows: int, cols: int, block: tuple[int, int]) -> Gate:
        return HardConcreteGate(_learned("gradients.HardConcrete", method), rows, cols, self.penalty)
