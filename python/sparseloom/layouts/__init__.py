"""Layouts: how the stored elements of a weight are arranged in memory. Your own layouts are registered here,
and ``nn.SparseLinear`` multiplies with them; docs/add_a_layout.md shows two."""

from .bitmap import Bitmap
from .bsr import Bsr
from .coo import Coo
from .coo_nd import CooNd
from .csr import Csr
from .dense import Dense, MaskedDense
from .layout import Layout
from .nm import Nm
from .nmg import Nmg
from .registry import chosen as chosen
from .registry import get, names, register
from .registry import is_registered as is_registered
from .registry import masked as masked
from .registry import require_options as require_options
from .semi24 import Semi24Layout
from .tiles import Tiles

__all__ = [
    "Bitmap",
    "Bsr",
    "Coo",
    "CooNd",
    "Csr",
    "Dense",
    "Layout",
    "MaskedDense",
    "Nm",
    "Nmg",
    "Semi24Layout",
    "Tiles",
    "get",
    "names",
    "register",
]
