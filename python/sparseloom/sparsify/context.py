"""Context and Sparsifier: the facts that a choice of blocks may use, and the base class of choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Error
from ..pattern import Head, Pattern


@dataclass(frozen=True, eq=False)
class Context:
    """One weight that becomes sparse, the request, and the facts that are known about the weight.

    Args:
        weight: [out features, in features], on any device and in any dtype that has kernels.
        block: (out features, in features) of one block.
        density: share of blocks to keep; None where the sparsifier decides.
        scope: "layer", "row" or "head": the scope within which blocks compete (see ``pattern.top_k``).
        generator: the generator of random choices; None stands for torch's default one.
        gradient: of the loss by the weight, in its shape. sparsify_ passes ``.grad`` if there is one.
        input_statistics: [in features], the mean of the squares of each input.
        hessian: [in features, in features], the mean of x x^T over inputs x.
        step: of the training, from 0.
        learned: a learned score of each block [block rows, block columns], where a method trains them.
        present: bool [block rows, block columns], the blocks that the weight has now.
        head: (out features, in features) of one head, for scope "head" (see ``pattern.top_k``).
    """

    weight: Tensor
    block: tuple[int, int] = (32, 32)
    density: float | None = None
    scope: str = "layer"
    generator: torch.Generator | None = None
    gradient: Tensor | None = None
    input_statistics: Tensor | None = None
    hessian: Tensor | None = None
    step: int | None = None
    learned: Tensor | None = None
    present: Tensor | None = None
    head: Head | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        rows, cols = self.weight.shape
        return rows, cols

    @property
    def share(self) -> float:
        """The density. Raises Error if none was given."""
        if self.density is None:
            raise Error("Sparsifier", "a density", "none", "pass density=, the share of blocks that stay")
        return self.density

    def need(self, name: str) -> Tensor:
        """Returns the gradient, the input statistics, the Hessian, the learned scores or the present blocks.
        Raises Error if it is not known."""
        tensor = getattr(self, name)
        if not isinstance(tensor, Tensor):
            remedy = "run a backward pass first" if name == "gradient" else f"make a Context with {name}="
            raise Error("Sparsifier", f"the weight's {name}", "none", remedy)
        return tensor


class Sparsifier(ABC):
    """Chooses the blocks of a weight that are kept; ``BlockSparse(select=...)`` and
    ``from_dense(select=...)`` take one."""

    #: Whether the choice reads the weight's values, which a weight on the meta device does not have.
    needs_values = True
    #: Whether it takes no density, because the weight determines how much is kept.
    decides = False

    @abstractmethod
    def __call__(self, context: Context) -> Pattern:
        """Returns a pattern of the weight's shape."""
