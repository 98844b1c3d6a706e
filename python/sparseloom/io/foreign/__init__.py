"""Checkpoints of other programs as dense entries: compressed-tensors, torch.nn.utils.prune and SparseML,
pytorch_block_sparse, nn_pruning, STen, superblock, torch's sparse and semi-structured tensors, SciPy's
matrices, Matrix Market."""

from .dense import Dense, dense_entries
from .files import is_foreign, read, state_in

__all__ = ["Dense", "dense_entries", "is_foreign", "read", "state_in"]
