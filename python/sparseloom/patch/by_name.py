"""Csr, Coo, Bitmap and Nm: InLayout by the names of the layouts, with their options as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._arguments import named_init
from .._checks import whole
from ..errors import Error
from .in_layout import InLayout

if TYPE_CHECKING:
    from ..sparsify import ElementSparsifier, Method


class _Elements(InLayout):
    """A layout of single elements."""

    _layout = ""

    def __init__(
        self,
        density: float | None = None,
        *,
        mask: Tensor | None = None,
        method: Method | str | None = None,
        start: ElementSparsifier | None = None,
    ) -> None:
        super().__init__(self._layout, method, start, **_given(density=density, mask=mask))


@named_init
class Csr(_Elements):
    """Says that a layer's weight becomes CSR: single elements, by rows. It is InLayout("csr", ...).

    Args:
        density: the share that stays, those of the largest magnitude; without it and ``mask`` all elements
            that are not zero.
        mask: which elements stay, bool of the weight's shape.
        method, start: see InLayout.

    Raises Error as InLayout does.
    """

    _layout = "csr"


@named_init
class Coo(_Elements):
    """Says that a layer's weight becomes COO: single elements with their rows and columns. It is
    InLayout("coo", ...); the arguments are those of ``Csr``."""

    _layout = "coo"


@named_init
class Bitmap(_Elements):
    """Says that a layer's weight becomes a bitmap and its stored elements, for densities of a half to a tenth
    on the CPU. It is InLayout("bitmap", ...); the arguments are those of ``Csr``."""

    _layout = "bitmap"


@named_init
class Nm(InLayout):
    """Says that a layer's weight becomes n:m: the n largest |w| of each m inputs. It is InLayout("nm", ...).

    Args:
        n, m: whole numbers, 1 <= n <= m <= 256.
        mask: which elements stay, bool of the weight's shape, at most n in each group.
        method, start: see InLayout.

    Raises Error as InLayout does.
    """

    def __init__(
        self,
        n: int,
        m: int,
        *,
        mask: Tensor | None = None,
        method: Method | str | None = None,
        start: ElementSparsifier | None = None,
    ) -> None:
        n, m = whole("Nm", "n", n, 1), whole("Nm", "m", m, 1)
        if not n <= m <= 256:
            raise Error("Nm", "1 <= n <= m <= 256", f"n={n}, m={m}", "pass Nm(2, 8) to store a quarter")
        super().__init__("nm", method, start, n=n, m=m, **_given(mask=mask))


def _given(**options: Any) -> dict[str, Any]:
    return {name: option for name, option in options.items() if option is not None}
