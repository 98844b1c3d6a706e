"""SparsityBuilder: says by name what of a model becomes sparse. See docs/programming_model.md."""

from .builder import SparsityBuilder

__all__ = ["SparsityBuilder"]
