"""Tiles: a weight of square tiles, each dense, 2:4 or absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import ops, pattern
from .._arguments import named_arguments
from .._checks import require_mask
from ..errors import Error
from ..ops import semi24
from ..ops import tiles as tiles_ops
from ..ops.transforms import differentiated, transformed
from .layout import REPACK, Layout
from .registry import register
from .semi24 import Semi24Layout

#: What a tile is: an entry of ``kinds``.
ABSENT, HALF, DENSE = 0, 1, 2
SIDES = (64, 128)
#: The dtypes of the kernels that multiply both kinds, by type of device.
_WHOLE = {
    "cuda": (torch.bfloat16, torch.float16),
    "cpu": (torch.float32, torch.bfloat16, torch.float16),
}

#: What out and in features have to be multiples of there, by type of device: TMA moves 16 bytes.
_MULTIPLE = {"cuda": 8}


@register
class Tiles(Layout):
    """W [rows, cols] as tiles of ``side`` x ``side`` on a grid, each dense, 2:4 or absent: what a weight may
    lose decides tile by tile (as PATCH does, arXiv 2509.23410). Blocks, and 2:4 weights, are
    its special cases.

    ``packed`` is the index of all stored tiles as blocks (ops.Index), ``is24`` bool [blocks] says in its
    order which are 2:4, ``positions`` uint8 [semi24 * side, side / 8] are those of these tiles below each
    other (docs/semi24.md). The values are one list: the dense tiles in the order of the index, then the
    values of the 2:4 tiles; zero beyond the edge of W. One kernel multiplies dense and 2:4 tiles: forward of
    16-bit operands on GPUs from compute capability 8.0 on, forward and dX on a CPU with AVX2. The other
    products are those of blocks, for which 2:4 tiles are expanded in each call: absent tiles save time and
    bytes there, 2:4 tiles bytes alone.
    """

    name = "tiles"
    fuses = True
    derived_names = ("by_kind", "order", "table", "metadata")
    counts = ("blocks", "semi24", "digest")
    packed: Tensor
    is24: Tensor
    positions: Tensor
    blocks: int
    semi24: int
    side: int
    digest: int

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls, weight: Tensor, density: float = 0.6, side: int = 64, importance: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tiles:  # fmt: skip
        """Chooses the tiles under a budget: their bytes are at most ``density`` times those of W. A 2:4 tile
        has 9/16 of a dense one in 16 bits. What is lost, the sum of ``importance`` [rows, cols] over all
        elements that are not stored, is least but for the last tile. By default importance is the square of
        the weight; pass that times the mean square of each input for Wanda's. ``mask``: as from_mask. Raises
        Error for another side than 64 or 128, a density outside of 0 to 1, and an importance of another
        shape. Values of a mask: see layouts.masked."""
        if mask is not None:
            return cls.from_mask(weight, mask, side)
        weight = weight.detach()
        if not 0 <= density <= 1:
            raise Error(cls.name, "a density from 0 to 1", repr(density), "pass the share of bytes to keep")
        importance = weight.float().square() if importance is None else importance.detach().float()
        if importance.shape != weight.shape:
            remedy = "pass a score of each element of the weight"
            raise Error(cls.name, f"importance {list(weight.shape)}", f"{list(importance.shape)}", remedy)
        importance = importance.nan_to_num(nan=torch.inf)
        kinds = chosen_kinds(importance, density, side, half_share(weight.dtype))
        return cls._stored(importance, kinds, side)

    @classmethod
    @named_arguments
    def from_kinds(cls, weight: Tensor, kinds: Tensor, side: int = 64) -> Tiles:
        """Stores the tiles that ``kinds`` [tile rows, tile columns] names: 0 absent, 1 2:4 by magnitude, 2
        dense. Raises Error for other numbers, shapes or sides."""
        rows, cols = weight.shape
        grid = _grid(rows, cols, side)
        fits = isinstance(kinds, Tensor) and tuple(kinds.shape) == grid
        if not fits or not bool(((kinds >= ABSENT) & (kinds <= DENSE) & (kinds % 1 == 0)).all()):
            got = f"{kinds.dtype} {list(kinds.shape)}" if isinstance(kinds, Tensor) else repr(kinds)
            if fits:
                got += f" with {', '.join(f'{kind:g}' for kind in kinds.unique().tolist()[:4])}"
            raise Error(cls.name, f"kinds {list(grid)} of 0, 1 and 2", got, "name a kind for each tile")
        return cls._stored(weight.detach().float().abs(), kinds, side)

    @classmethod
    @named_arguments
    def from_mask(cls, weight: Tensor, mask: Tensor, side: int = 64) -> Tiles:
        """Stores the elements in ``mask``: a tile with at most two in each group of four consecutive elements
        of a row as 2:4, any other with some as dense. What else these tiles store is zero, if the weight is:
        see layouts.masked. Raises Error unless ``mask`` is bool [rows, cols]."""
        require_mask(cls.name, mask, weight.shape)
        of_group = _tiled(mask.float(), side).unflatten(-1, (-1, 4)).sum(-1).flatten(2).amax(-1)
        kinds = torch.where(of_group > 2, DENSE, torch.where(of_group > 0, HALF, ABSENT))
        return cls._stored(mask.float(), kinds, side)

    @classmethod
    def _stored(cls, score: Tensor, kinds: Tensor, side: int) -> Tiles:
        """The layout of these kinds; 2:4 tiles store the largest scores, of equal ones the first."""
        rows, cols = score.shape
        here = kinds.to("cpu")
        tiles = _tiled(score, side)[(here == HALF).to(score.device)]
        positions = semi24.compress(tiles.flatten(0, 1), "magnitude")[1]
        return cls._placed(rows, cols, here, side, positions)

    @classmethod
    def _placed(cls, rows: int, cols: int, kinds: Tensor, side: int, positions: Tensor) -> Tiles:
        """The layout of these kinds, which are on the CPU, on the device of the positions."""
        cells = pattern.from_mask(rows, cols, (side, side), kinds != ABSENT)
        index = ops.make_index(*cells.index(), rows, cols, (side, side))
        half = kinds[kinds != ABSENT] == HALF
        sizes = {"blocks": index.blocks, "semi24": int(half.sum()), "side": side, "digest": index.digest}
        tensors = {"packed": index.packed.to(positions.device), "is24": half.to(positions.device)}
        return cls(rows, cols, positions=positions, **tensors, **sizes)

    @classmethod
    def anywhere(
        cls, rows: int, cols: int, device: torch.device | None = None, *, blocks: int, semi24: int, side: int,
        digest: int,
    ) -> Tiles:  # fmt: skip
        """Returns a layout of the first tiles, the first of them 2:4, as a placeholder for a weight that is
        read later."""
        # The device is named because transformers makes models under torch.device("meta").
        kinds = torch.zeros(_grid(rows, cols, side), dtype=torch.uint8, device="cpu")
        kinds.view(-1)[:blocks] = DENSE
        kinds.view(-1)[:semi24] = HALF
        positions = Semi24Layout.anywhere(semi24 * side, side, device).positions
        made = cls._placed(rows, cols, kinds, side, positions)
        return cls(rows, cols, **made.tensors(), **{**made.options(), "digest": digest})

    def of_entries(self, tensors: Mapping[str, Tensor]) -> Tiles:
        packed, is24, positions = (tensors[name] for name in ("packed", "is24", "positions"))
        sizes = {"blocks": is24.numel(), "semi24": positions.numel() // (self.side**2 // 8)}
        digest = self.index.holding(packed, sizes["blocks"]).digest
        return type(self)(self.rows, self.cols, **{**self.options(), **tensors, **sizes, "digest": digest})

    @property
    def index(self) -> ops.Index:
        """The index of the tiles as blocks."""
        return ops.Index(self.packed, self.blocks, self.rows, self.cols, self.side, self.side, self.digest)

    def as_blocks(self) -> pattern.Pattern:
        """Returns which tiles are stored, as blocks of side x side."""
        return pattern.from_mask(self.rows, self.cols, (self.side, self.side), self.kinds != ABSENT)

    @property
    def padded(self) -> bool:
        return self.rows % self.side != 0 or self.cols % self.side != 0

    @property
    def kinds(self) -> Tensor:
        """What each tile is: uint8 [tile rows, tile columns], on the CPU; 0 absent, 1 2:4, 2 dense."""
        crow, col = self.index.crow.cpu().long(), self.index.col.cpu().long()
        kinds = torch.zeros(_grid(self.rows, self.cols, self.side), dtype=torch.uint8, device="cpu")
        row = torch.repeat_interleave(torch.arange(len(kinds), device="cpu"), crow.diff())
        kinds[row, col] = torch.where(self.is24.cpu(), HALF, DENSE).to(torch.uint8)
        return kinds

    def mask(self) -> Tensor:
        """Returns which elements are stored, bool [rows, cols], on the device of the index. Of a 2:4 group
        that is two elements, whatever their values."""
        ones = torch.ones(self.blocks, self.side, self.side, device=self.is24.device)
        return self.to_dense(self._values_of(ones)) != 0

    def derived(self) -> dict[str, Tensor]:
        """The tiles of the index by kind, dense ones first, and where each tile of the index lies there; for
        the kernel of both kinds, where it can run, its table and the positions in its order."""
        by_kind = self.is24.byte().argsort(stable=True)
        derived = {"by_kind": by_kind, "order": by_kind.argsort()}
        if self._runs_whole():
            table = tiles_ops.table(self.kinds, self.rows, self.cols, self.side)
            derived["table"] = table.to(self.packed.device)
            if self.packed.is_cuda:
                derived["metadata"] = tiles_ops.order(self.positions, self.side)
        return derived

    def pack(self, dense: Tensor) -> Tensor:
        index = self.index
        blocks: Tensor = ops.call(
            "pack", dense.detach().contiguous(), index.crow, index.col, index.bm, index.bn
        )
        return self._values_of(blocks)

    def to_dense(self, values: Tensor) -> Tensor:
        index, blocks = self.index, self.expanded(values.detach()).contiguous()
        dense: Tensor = ops.call("unpack", blocks, index.crow, index.col, self.rows, self.cols)
        return dense

    def expanded(self, values: Tensor) -> Tensor:
        """Returns all tiles as blocks [blocks, side, side] in the order of the index."""
        side = self.side
        count = (self.blocks - self.semi24) * side * side
        dense, halves = values[:count].view(-1, side, side), values[count:].view(-1, side // 2)
        if not self.semi24:
            return dense
        layout = self._of_halves()
        if transformed() or differentiated(values):
            places = layout.places()  # [rows, groups, 2]
            tall = halves.new_zeros(*places.shape[:-1], 4).scatter(-1, places, halves.view(places.shape))
        else:
            tall = semi24.unpack(halves, self.positions, side)
        tiles = tall.reshape(-1, side, side)
        if self.semi24 == self.blocks:
            return tiles
        return torch.cat([dense, tiles]).index_select(0, self._orders()["order"])

    def linear(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return self.linear_by(x, values, bias, activation, residual)

    def linear_by(
        self, x: Tensor, values: Tensor, bias: Tensor | None = None, activation: str | None = None,
        residual: Tensor | None = None, kernel: str = "",
    ) -> Tensor:  # fmt: skip
        """``linear`` by a kernel of its plan, which a benchmark names; "": the plan's choice."""
        fused: dict[str, Any] = {"activation": activation, "residual": residual, "strict": self.strict}
        table = self._derived.get("table")
        if table is None or values.dtype not in _WHOLE[values.device.type]:
            return ops.linear(x, self.expanded(values), self.index, bias, kernel=kernel or None, **fused)
        rows, cols = self._padded()
        missing = rows - self.rows
        if missing:
            bias, residual = (None if each is None else pad(each, (0, missing)) for each in (bias, residual))
            fused["residual"] = residual
        x = x if cols == self.cols else pad(x, (0, cols - self.cols))
        weight = values, table, self.positions, self._derived.get("metadata"), rows, self.side
        y = tiles_ops.linear(x, *weight, bias, kernel=kernel, **fused)
        return y[..., : self.rows].contiguous() if missing else y

    def linear_transformed(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        return ops.linear(x, self.expanded(values), self.index, bias, strict=self.strict)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        table = self._derived.get("table") if values.device.type == "cpu" else None
        again = transformed() or differentiated(dy) or differentiated(values)
        if table is None or again or values.dtype not in _WHOLE["cpu"]:
            return ops.linear_dx(dy, self.expanded(values), self.index, self.strict)
        return tiles_ops.dx(dy, values, table, self.positions, self.cols, self.side, self.strict)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return self._values_of(ops.linear_dw(dy, x, self.index, self.strict))

    def plan(
        self, m: int, direction: str, dtype: torch.dtype, bias: bool, activation: str | None = None,
        residual: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        device = "cpu" if self.packed.is_meta else self.packed.device
        fused: dict[str, Any] = {"activation": activation, "residual": residual, "strict": self.strict}
        whole = ("forward",) if self.packed.is_cuda else ("forward", "dx")
        if direction in whole and dtype in _WHOLE[torch.device(device).type] and self._runs_whole():
            return tiles_ops.plan(direction, dtype, m, self._sizes, device, bias, **fused)
        plan = ops.plan(self.index.to("cpu"), direction, dtype, m, bias, device=device, **fused)
        told = f"  {self.semi24} of {self.blocks} tiles are 2:4, expanded in each call (not predicted)\n"
        return {**plan, "text": plan["text"] + told}

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless the sizes are those of the options, and every value has a place of its own."""
        rows, width = self.semi24 * self.side, self.side // 8
        count = (self.blocks - self.semi24) * self.side**2 + rows * self.side // 2
        sizes = {"is24": (self.is24, [self.blocks]), "positions": (self.positions, [rows, width]),
                 "values": (values, [count])}  # fmt: skip
        for name, (tensor, shape) in sizes.items():
            if list(tensor.shape) != shape:
                raise Error(op, f"{name} {shape}", f"{list(tensor.shape)}", REPACK)
        if self.is24.dtype != torch.bool:
            raise Error(op, "is24 of torch.bool", str(self.is24.dtype), REPACK)
        if not self.is24.is_meta and int(self.is24.sum()) != self.semi24:
            raise Error(op, f"{self.semi24} tiles that are 2:4", f"{int(self.is24.sum())}", REPACK)
        if self.positions.numel():
            halves = values[count - rows * self.side // 2 :].view(rows, -1)
            self._of_halves().require_consistent(op, halves)
        super().require_consistent(op, values)

    @property
    def _sizes(self) -> tuple[int, int, int, int, int]:
        return *self._padded(), self.side, self.blocks - self.semi24, self.semi24

    def _padded(self) -> tuple[int, int]:
        """Out and in features as the kernels take them: the tiles have zeros there, so that copies of x and
        of the result, with a few columns more, save expanding W (a fifth to a tenth of dense on an H200)."""
        multiple = _MULTIPLE.get(self.packed.device.type, 1)
        return self.rows + -self.rows % multiple, self.cols + -self.cols % multiple

    def _runs_whole(self) -> bool:
        """Whether the device has a kernel that multiplies dense and 2:4 tiles together."""
        device = self.packed.device
        if device.type not in _WHOLE or not self.semi24:
            return False
        try:
            tiles_ops.plan("forward", torch.bfloat16, 128, self._sizes, device, strict=True)
        except Error:
            return False
        return True

    def _of_halves(self) -> Semi24Layout:
        """The 2:4 tiles below each other as one 2:4 weight."""
        return Semi24Layout(self.semi24 * self.side, self.side, positions=self.positions)

    def _values_of(self, blocks: Tensor) -> Tensor:
        """Returns the stored elements of [blocks, side, side]."""
        if not self.semi24:
            return blocks.flatten()
        dense, halves = blocks.index_select(0, self._orders()["by_kind"]).split(
            [self.blocks - self.semi24, self.semi24]
        )
        return torch.cat([dense.flatten(), self._of_halves().pack(halves.flatten(0, 1)).flatten()])

    def _orders(self) -> dict[str, Tensor]:
        return self._derived or self.derived()


def half_share(dtype: torch.dtype) -> float:
    """Returns the bytes of a 2:4 tile, positions too, as a share of a dense one's."""
    return 0.5 + 1 / (8 * dtype.itemsize)


def chosen_kinds(importance: Tensor, density: float, side: int, half_bytes: float) -> Tensor:
    """Returns a kind for each tile, uint8: of all choices whose bytes are at most ``density`` times those of
    dense tiles, where a 2:4 one counts ``half_bytes``, about the one that loses least importance."""
    groups = _tiled(importance, side).unflatten(-1, (-1, 4))
    lost = groups.topk(2, -1, largest=False).values.double().flatten(2).sum(-1)
    kept = groups.topk(2, -1).values.double().flatten(2).sum(-1)
    return kinds_of_costs(lost, lost + kept, density, half_bytes)


def kinds_of_costs(as_half: Tensor, as_absent: Tensor, density: float, half_bytes: float) -> Tensor:
    """Returns a kind for each tile, uint8, as ``chosen_kinds`` does, of what each tile [tile rows, tile
    columns] costs as 2:4 and if it is absent.

    Every tile can go from dense over 2:4 to absent, or to absent at once where that loses less for each byte:
    its lower convex hull. The steps are taken in ascending order of loss for each byte until the budget is
    met; so no choice of as few bytes loses less (Everett 1963), but for the last step's surplus.
    """
    lost, whole, saved = as_half.flatten(), as_absent.flatten(), 1 - half_bytes
    first, second = lost / saved, (whole - lost) / half_bytes  # loss for each byte of both steps
    at_once = first >= second
    slopes = torch.cat([torch.where(at_once, whole, first), torch.where(at_once, torch.inf, second)])
    saving = torch.cat([torch.where(at_once, 1.0, saved), torch.where(at_once, 0.0, half_bytes)]).double()
    order = slopes.nan_to_num(nan=torch.inf).argsort(stable=True)
    before = saving[order].cumsum(0) - saving[order]
    # The steps before have not met the budget, or the step is free.
    must = ((1 - density) * len(whole) - before > 1e-9 * len(whole)) | (slopes[order] == 0)
    taken = torch.zeros_like(must)
    taken[order[must]] = True
    one, two = taken.chunk(2)
    kinds = torch.where(one, torch.where(at_once | two, ABSENT, HALF), DENSE)
    return kinds.to(torch.uint8).view(as_half.shape)


def _grid(rows: int, cols: int, side: int) -> tuple[int, int]:
    if side not in SIDES:
        raise Error("tiles", f"a side of {' or '.join(map(str, SIDES))}", repr(side), "pass one of them")
    return -(-rows // side), -(-cols // side)


def _tiled(matrix: Tensor, side: int) -> Tensor:
    """[tile rows, tile columns, side, side], with zeros beyond the edge."""
    rows, cols = matrix.shape
    down, across = _grid(rows, cols, side)
    padded = pad(matrix, (0, across * side - cols, 0, down * side - rows))
    return padded.view(down, side, across, side).transpose(1, 2)
