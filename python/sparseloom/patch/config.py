"""BlockSparse: the recipe for block-sparse layers."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import pattern as patterns
from .._arguments import named_init
from .._checks import share
from ..errors import Error
from ..nn.arguments import generator_of
from ..nn.semi24.semi_structured import is_torchs
from ..pattern import Block, Head, Pattern, block_shape
from ..pattern.empty_rows import warn_of_empty_heads, warn_of_empty_rows
from ..sparsify import Context, Sparsifier, sparsifier_of
from .heads import head_of
from .masters import Master, refusal_of_master
from .recipe import Chosen, Recipe

if TYPE_CHECKING:
    from ..nn import BlockSparseLinear
    from ..sparsify import Method
    from .forms import Site

_OP = "BlockSparse"
_SPARSIFY = "sparsify_"


@named_init
@dataclass(frozen=True)
class BlockSparse(Recipe):
    """Says which blocks of a layer's weight stay.

    Args:
        block: int or (out features, in features) of one block, each of {8, 16, 32, 64, 128}; a Pattern brings
            its own.
        density: share of blocks kept, in [0, 1]; needed unless ``select`` is a Pattern, "stored", or a
            Sparsifier that decides by itself.
        select: "magnitude" (the blocks with the largest sum of |w|), "l2", "max", "random" (every block row
            with its exact share, values kept where they are), "stored" (every block that is not all zero: a
            pruned weight is taken as it is), a Pattern of the layer's size, or a ``sparsify.Sparsifier``.
            Blocks of equal score are taken in the order of their index.
        scope: the scope within which blocks compete for their place. "layer" is the whole layer; with "row"
            every block row keeps its exact share, for weights whose rows differ in scale, which would lose
            whole rows otherwise. "random" does that anyway. With "head" every head of an attention keeps its
            exact share, and its blocks compete with each other.
        seed: of "random", an int or a torch.Generator; torch's default generator otherwise. Layers draw one
            after the other from one generator.
        method: a ``sparsify.Method``, or the name of one with its defaults, such as "rigl", which changes the
            blocks in training; ``select`` then says where they lie at first. A method with a dense master
            makes an nn.MaskedLinear of the layer.
        capacity: share of blocks that the layer has room for (``reserve_``), for a method with
            gradient=Stored() whose density changes, or that must not wait for the device.
        head: for scope "head", (out features, in features) of one head: (64, None) or 64 in the projections
            to query, key and value, (None, 64) in the one behind the attention. Left out, both come from the
            attention module that holds the layer.
        pattern: a Pattern, under the name that layers have for it; it becomes ``select``.

    Raises Error for values outside these.
    """

    layer: ClassVar[str] = "BlockSparseLinear"

    block: Block = 32
    density: float | None = None
    select: str | Pattern | Sparsifier = "magnitude"
    seed: int | torch.Generator | None = None
    scope: str = "layer"
    method: Any = None  # a Method once it is made
    capacity: float | None = None
    head: Head | None = None
    pattern: InitVar[Pattern | None] = None

    def __post_init__(self, pattern: Pattern | None) -> None:
        if pattern is not None:
            if not isinstance(pattern, Pattern) or self.select != "magnitude":
                got = repr(pattern) if self.select == "magnitude" else f"select={self.select!r} beside it"
                raise Error(_OP, "pattern to be a Pattern, alone", got, "see sparseloom.pattern")
            object.__setattr__(self, "select", pattern)
        if self.capacity is not None:
            self._require_capacity(self.capacity)
        if self.method is not None:
            from ..sparsify import methods  # most programs train by none

            object.__setattr__(self, "method", methods.by_name(_OP, self.method))
            if not isinstance(self.select, Pattern) and self.sparsifier.decides:
                remedy = "pass select=pattern.from_nonzero(weight, block)"
                raise Error(_OP, "a pattern for a method to begin with", repr(self.select), remedy)
            self.method.require_target(self.aim, self.capacity is not None)
            patterns.full(0, 0, self.shape)  # C++ checks the sides
            if self.aim is None:  # a threshold or a penalty decides: the weight starts whole
                return
        if isinstance(self.select, Pattern):
            if self.density is not None:
                raise Error(
                    _OP,
                    "density or a pattern",
                    "both",
                    "the pattern says which blocks stay: leave density out",
                )
            if self.seed is not None or self.scope != "layer":
                got = f"seed={self.seed} and scope={self.scope!r}"
                raise Error(_OP, "a pattern alone", got, "it says which blocks stay: leave them out")
            return
        patterns.require_any_scope(_OP, self.scope, self.head)
        generator_of(_OP, self.seed)
        sparsifier_of(_OP, self.select, more=", a Pattern")
        if self.sparsifier.decides and self.density is not None:
            remedy = 'leave density out, or choose by select="magnitude"'
            raise Error(_OP, f"no density with select={self.select!r}", repr(self.density), remedy)
        decides = self.density is None and isinstance(self.select, Sparsifier)
        if (
            not decides
            and not self.sparsifier.decides
            and (self.density is None or not 0 <= share(_OP, self.density) <= 1)
        ):
            raise Error(
                _OP,
                "density in [0, 1]",
                repr(self.density),
                "pass the share of blocks that stay: density=0.25",
            )
        patterns.full(0, 0, block_shape(_OP, self.block))  # C++ checks the sides

    def _require_capacity(self, capacity: float) -> None:
        if self.has_master:
            remedy = "leave capacity out, or choose a method with gradient=Stored()"
            raise Error(_OP, "a method with stored blocks", type(self.method).__name__, remedy)
        first = self.first
        if not 0 <= share(_OP, capacity) <= 1 or (first is not None and first > capacity):
            expected = f"a capacity of {0 if first is None else first:.4g} to 1, from the first density on"
            raise Error(_OP, expected, repr(capacity), "pass the most blocks that there will be, as a share")

    @property
    def first(self) -> float | None:
        """The density before the first step: where the method has room, that which its schedule begins
        with."""
        if self.method is None or self.capacity is None or self.aim is None:
            return self.aim
        return self.method.schedule.budget(0, self.aim)

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features) of one block."""
        return self.select.block if isinstance(self.select, Pattern) else block_shape(_OP, self.block)

    @property
    def aim(self) -> float | None:
        """The density that is asked for, by number or by a pattern."""
        return self.select.density if isinstance(self.select, Pattern) else self.density

    @property
    def needs_values(self) -> bool:
        """Whether the choice depends on the weight's values."""
        return not isinstance(self.select, Pattern) and self.sparsifier.needs_values

    @property
    def sparsifier(self) -> Sparsifier:
        """The sparsifier that chooses the blocks, where ``select`` is no Pattern."""
        return sparsifier_of(_OP, self.select)

    def generator(self) -> torch.Generator | None:
        """Returns the generator that the layers of one sparsify_ call draw from; None stands for torch's
        default one."""
        return generator_of(_OP, self.seed)

    def blocks(self, rows: int, cols: int) -> int | None:
        """Returns how many blocks of a [rows, cols] weight stay; None where the sparsifier decides."""
        if isinstance(self.select, Pattern):
            return self.select.blocks
        return (
            None if self.density is None else patterns.block_count(_OP, rows, cols, self.shape, self.density)
        )

    def trained(self) -> tuple[Method, float | None] | None:
        return None if self.method is None else (self.method, self.aim)

    def refusal(self, site: Site) -> str:
        if self.has_master and (reason := refusal_of_master(site)):
            return reason
        moves = self.capacity is not None or self.method is not None
        if moves and not self.has_master and (reason := site.form.cannot_move(self._by_gradient)):
            return reason
        if is_torchs(site.parameter):
            return "its weight is 2:4, packed by torch: choose Semi24(), or give it a dense one first"
        (rows, cols), (bm, bn) = site.shape, self.shape
        if not isinstance(self.select, Pattern) and (rows < bm or cols < bn):
            return f"too small: {rows} x {cols} in blocks of {bm} x {bn}"
        if self.blocks(rows, cols) == 0:
            return (
                f"too small: density {self.density} of {-(-rows // bm) * -(-cols // bn)} blocks leaves none"
            )
        if site.parameter.is_meta and (self.needs_values or self.has_master):
            remedy = 'choose select="random" or a pattern, or give the model its values first'
            got = "a weight on the meta device"
            raise Error(_SPARSIFY, f"values to rank the blocks of {site.name} by", got, remedy)
        return ""

    @property
    def has_master(self) -> bool:
        """Whether a dense weight trains under a mask."""
        return self.method is not None and self.method.gradient.dense_master

    @property
    def _by_gradient(self) -> bool:
        regrow = None if self.method is None else self.method.regrow
        return regrow is not None and regrow.needs_gradient

    def chosen(self, site: Site, generator: torch.Generator | None) -> Any:
        if self.method is None or not self.has_master:
            return Blocks(self._first(site, generator), self.capacity)
        fixed = self.aim is not None and self.method.schedule.is_fixed(self.aim)
        fixed = fixed and not self.method.gradient.gated  # whose gate chooses at once
        return Master(self.method, self.shape, self._first(site, generator) if fixed else None)

    def _first(self, site: Site, generator: torch.Generator | None) -> Pattern:
        matrix, gradient = site.value, site.parameter.grad
        ranked = site.form.ranked
        by_gradient = None if gradient is None else ranked(site.matrix(gradient))
        head = self._head(site)
        pattern = self.pattern_of(ranked(matrix), generator, by_gradient, head)
        if not isinstance(self.select, Pattern) and not self.sparsifier.decides:
            warn_of_empty_rows(pattern, f"sparsify_: {site.name}")
            if head is None and (head := head_of(site)) is not None:
                warn_of_empty_heads(pattern, head, f"sparsify_: {site.name}")
        return pattern

    def _head(self, site: Site) -> Head | None:
        """Returns the size of a head for scope "head". Raises Error if it is not known."""
        if self.scope != "head" or isinstance(self.select, Pattern):
            return None
        head = head_of(site) if self.head is None else self.head
        if head is None and self.needs_values:
            remedy = (
                "pass head=(64, None) for query, key and value, or head=(None, 64) for what follows attention"
            )
            got = f"{site.name}, which no attention of known head size holds"
            raise Error(_SPARSIFY, 'scope="head" for layers of an attention', got, remedy)
        return head

    def pattern_of(
        self,
        matrix: Tensor,
        generator: torch.Generator | None = None,
        gradient: Tensor | None = None,
        head: Head | None = None,
    ) -> Pattern:
        """Returns the pattern for a weight [out features, in features]; its gradient is optional. Raises
        Error when the pattern is not of the layer's size."""
        rows, cols = matrix.shape
        if isinstance(self.select, Pattern):
            pattern = self.select
        else:
            options = self.scope, generator, gradient
            context = Context(
                matrix, self.shape, self.first, *options, head=self.head if head is None else head
            )
            pattern = self.sparsifier(context)
        if not isinstance(pattern, Pattern) or (pattern.rows, pattern.cols) != (rows, cols):
            sized = isinstance(pattern, Pattern)
            raise Error(
                _OP,
                f"a pattern of the layer's size {rows} x {cols} (out x in features)",
                f"a pattern of {pattern.rows} x {pattern.cols}" if sized else type(pattern).__name__,
                "one per layer size",
            )
        return pattern


@dataclass(frozen=True)
class Blocks(Chosen):
    """The blocks of a pattern."""

    pattern: Pattern
    capacity: float | None = None

    def no_copy(self, site: Site) -> str:
        return "a recurrent layer multiplies with the blocks in every step" if site.form.has_steps else ""

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> BlockSparseLinear:
        layer = site.form.packed(site, self.pattern)
        if self.capacity is not None:
            layer.reserve_(self.capacity)
        layer.values.requires_grad_(site.parameter.requires_grad)
        layer.strict, layer.dense_copy = strict, dense_copy
        return layer
