"""Makes existing models block-sparse in place, and dense again."""

from .config import BlockSparse
from .densify import densify_
from .patcher import BlockSparseModelPatcher
from .result import Change, Patched, Skip
from .sparsify import sparsify_

__all__ = ["BlockSparse", "BlockSparseModelPatcher", "Change", "Patched", "Skip", "densify_", "sparsify_"]
