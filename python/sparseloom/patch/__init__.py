"""Makes existing models sparse in place, and dense again."""

from . import kept_blocks as kept_blocks
from .by_name import Bitmap, Coo, Csr, Nm
from .config import BlockSparse
from .densify import densify_
from .fold_batchnorm import Folded, fold_batchnorm_
from .in_layout import InLayout
from .masters import drive
from .pack import pack_
from .patcher import BlockSparseModelPatcher
from .recipe import Recipe
from .result import Change, Patched, Skip
from .semi24 import Semi24
from .sparsify import sparsify_
from .unpack import unpack_

__all__ = [
    "Bitmap",
    "BlockSparse",
    "BlockSparseModelPatcher",
    "Change",
    "Coo",
    "Csr",
    "Folded",
    "InLayout",
    "Nm",
    "Patched",
    "Recipe",
    "Semi24",
    "Skip",
    "densify_",
    "drive",
    "fold_batchnorm_",
    "pack_",
    "sparsify_",
    "unpack_",
]
