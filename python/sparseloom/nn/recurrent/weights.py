"""The weights of a recurrent layer: names them, makes them, and prepares them for the loop over steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ... import ops
from ... import pattern as patterns
from ...errors import Error
from ...ops.recurrent.walk import Weight
from ...pattern import Block, Pattern, block_shape
from ..linear import BlockSparseLinear
from ..linears import in_blocks

#: A pattern, of one gate or of all gates stacked, or a function of (out, in features) that returns one.
GatePattern: TypeAlias = Pattern | Callable[[int, int], Pattern] | None


#: Weight -> its index with interleaved gates. It is kept here so that copies and files leave it out.
_BESIDE: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


class BlockSparseGates(BlockSparseLinear):
    """A weight of a recurrent layer, [gates x hidden, in features]: the matrices of the gates one below the
    other. The recurrent layer multiplies with its values in every step."""

    gives_dense_gradient = False  # its products run inside a step, where no hook sees them
    _no_eight_bits = "a recurrent layer multiplies with it in every step, and has no 8-bit steps"

    def _require_copyable(self, setting: bool | Literal["auto"]) -> None:
        if setting:
            got, remedy = repr(setting), "a recurrent layer multiplies with the blocks in every step"
            raise Error("dense_copy", "dense_copy=False in a recurrent weight", got, remedy)

    def _require_option(self, name: str, value: Any) -> None:
        super()._require_option(name, value)
        if name == "activation" and value is not None:
            remedy = "leave it: the recurrent layer applies its own"
            raise Error(
                f"{type(self).__name__}.activation", "None in a recurrent weight", repr(value), remedy
            )


def names_of(layers: int, bidirectional: bool, projected: bool) -> list[str]:
    """Returns what follows ``weight_`` in the names of torch's Parameters, layer by layer: ih_l0, ..."""
    kinds = ("ih", "hh", "hr") if projected else ("ih", "hh")
    ends = ("", "_reverse") if bidirectional else ("",)
    return [f"{kind}_l{layer}{end}" for layer in range(layers) for end in ends for kind in kinds]


def stacked(pattern: Pattern, gates: int) -> Pattern:
    """Returns the pattern [gates x hidden, in] whose gates all have ``pattern`` [hidden, in]. Raises Error
    where a block would reach into two gates."""
    side = pattern.block[0]
    if pattern.rows % side:
        expected = f"a hidden size that blocks of {side} rows divide, for gates of one pattern"
        remedy = "choose a block that divides it, or pass a pattern of all gates"
        raise Error("stacked", expected, str(pattern.rows), remedy)
    mask = pattern.mask.repeat(gates, 1)
    return Pattern(gates * pattern.rows, pattern.cols, pattern.block, mask)


def made_of(
    op: str, shape: tuple[int, int], gates: int, density: float | None, block: Block, pattern: GatePattern,
    generator: torch.Generator | None, **options: Any,
) -> nn.Module:  # fmt: skip
    """Returns the layer of all gates, each of ``shape``; ``options`` are those of nn.Linear. It is dense for
    density 1 without a pattern. Raises Error for a pattern of another size."""
    rows, cols = shape
    if pattern is None:
        if density == 1:
            return nn.Linear(cols, gates * rows, **options)
        side = block_shape(op, block)[0]
        if density is None or rows % side:  # a block may then span two gates
            full_pattern = patterns.balanced(gates * rows, cols, block, density or 0.0, generator)
        else:
            full_pattern = stacked(patterns.balanced(rows, cols, block, density, generator), gates)
    else:
        full_pattern = pattern(rows, cols) if callable(pattern) else pattern
        if not isinstance(full_pattern, Pattern):
            remedy = "pass pattern.random(rows, cols, block, density), for example"
            raise Error(
                op, "a Pattern, or a function of (rows, cols) that returns one", repr(full_pattern), remedy
            )
        if (full_pattern.rows, full_pattern.cols) == (rows, cols):
            full_pattern = stacked(full_pattern, gates)
        elif (full_pattern.rows, full_pattern.cols) != (gates * rows, cols):
            expected = f"a pattern of {rows} x {cols}, of one gate, or of {gates * rows} x {cols}"
            remedy = "pass a function of (rows, cols) where layers differ"
            raise Error(op, expected, f"{full_pattern.rows} x {full_pattern.cols}", remedy)
    return BlockSparseGates(cols, gates * rows, pattern=full_pattern, seed=generator, **options)


def beside_of(module: nn.Module, gates: int, dtype: torch.dtype) -> Weight | None:
    """Returns the weight with interleaved gates, ``Weight.side`` units of each gate at a time. A block row
    then has all gates of its units, and reads the inputs once. None unless all gates have one pattern and
    the merged blocks are supported."""
    if not in_blocks(module) or module._digest < 0 or module.capacity is not None:
        return None
    weight, (bm, bn) = weight_of(module, dtype)[0], module.block
    key = module._digest, weight.values.device, gates
    cached = _BESIDE.get(module)
    if cached is None or cached[0] != key:
        cached = _BESIDE[module] = key, _index_beside(module, gates)
    if cached[1] is None:
        return None
    packed, numbers = cached[1]
    values = weight.values.unflatten(0, (gates, -1)).transpose(0, 1).reshape(-1, gates * bm, bn)
    return Weight(values, packed, numbers)


def side_by_side(x: Tensor, gates: int, side: int) -> Tensor:
    """Interleaves the gates of x [.., gates x units]: ``side`` units of each gate at a time."""
    return x.unflatten(-1, (gates, -1, side)).transpose(-3, -2).flatten(-3)


def _index_beside(module: BlockSparseLinear, gates: int) -> tuple[Tensor, tuple[int, ...]] | None:
    (bm, bn), pattern = module.block, module.pattern
    if gates * bm > 128 or pattern.rows % (gates * bm):
        return None
    masks = pattern.mask.unflatten(0, (gates, -1))
    if not bool((masks == masks[0]).all()):
        return None
    merged = Pattern(pattern.rows, pattern.cols, (gates * bm, bn), masks[0])
    index = ops.make_index(*merged.index(), merged.rows, merged.cols, merged.block)
    packed = index.packed.to(module.values.device)
    if packed.is_cuda:
        ops.remember(index, packed)
        ops.trust(index._replace(packed=packed))
    numbers = index.blocks, index.rows, index.cols, *merged.block, index.digest, int(module.strict), bm
    return packed, numbers


def weight_of(module: nn.Module, dtype: torch.dtype) -> tuple[Weight, Tensor | None]:
    """Returns a child's weight and bias for the loop over steps, in its dtype. Raises Error for a weight that
    the loop cannot use."""
    bias: Tensor | None = module.bias  # type: ignore[assignment]
    bias = None if bias is None else bias.to(dtype)
    if not in_blocks(module):
        values: Tensor = module.weight  # type: ignore[assignment]
        return Weight(values.to(dtype)), bias
    if module._cut is not None or module.fuse_wgrad_accumulation:
        got = "a part of one" if module._cut is not None else "fuse_wgrad_accumulation"
        remedy = "leave recurrent weights whole, and their gradients in grad"
        raise Error("recurrent", "a whole weight whose gradient is returned", got, remedy)
    index = module.index
    numbers = index.blocks, index.rows, index.cols, index.bm, index.bn, index.digest, int(module.strict)
    return Weight(module.values.to(dtype), index.packed, numbers), bias
