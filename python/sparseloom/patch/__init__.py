"""Makes existing models block-sparse in place, and dense again."""

from .config import BlockSparse
from .patcher import BlockSparseModelPatcher
from .result import Change, Patched, Skip
from .sparsify import densify_, sparsify_

__all__ = ["BlockSparse", "BlockSparseModelPatcher", "Change", "Patched", "Skip", "densify_", "sparsify_"]
