"""SparsityBuilder: makes tensors of a model sparse by name. See docs/programming_model.md."""

from .builder import SparsityBuilder

__all__ = ["SparsityBuilder"]
