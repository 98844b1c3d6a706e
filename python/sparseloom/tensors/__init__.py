"""SparseTensor, a tensor in any registered layout, and the operators on it: docs/programming_model.md."""

from . import linear as linear
from . import ways as ways
from .functions import sparsified_op
from .sparse_tensor import SparseTensor

__all__ = ["SparseTensor", "sparsified_op"]
