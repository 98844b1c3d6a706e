"""IndexedModule: the base class of all layers whose blocks train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ... import ops
from ...errors import Error
from ...pattern import Pattern
from .. import arguments
from ..in_layout import dense_entries
from . import capacity as capacities
from . import cut_state, dense_copy, moments, padding, state, topology
from .places import Places
from .pruned_entries import accept_pruned
from .with_copy import WithCopy
from .with_index import WithIndex

Self = TypeVar("Self", bound="IndexedModule")


class IndexedModule(WithCopy, WithIndex):
    """A layer with trained ``values`` [blocks, bm, bn]: provides its pattern, methods that change the
    pattern, and its state dict."""

    values: nn.Parameter
    strict: bool
    _capacity: int | None = None
    #: Whether calls of the layer give the gradient of absent blocks, by which methods grow blocks.
    gives_dense_gradient = True
    #: Links the layer to averaged copies, whose blocks must move with it; see nn.held.places.
    _places: Places | None = None

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the weight in the dense module that this layer stands for."""
        return self.out_features, self.in_features

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the weight of the dense module that this layer stands for as [out_features, in_features] (a
        view)."""
        return weight

    @property
    def pattern(self) -> Pattern:
        """Which blocks exist; immutable. A dynamic layer (set_topology_) gives the pattern of this moment,
        which waits for the device; on meta the last one that the host knew."""
        known = not self.dynamic or self.packed_index.is_meta
        return self._pattern if known else topology.current_pattern(self)

    @property
    def dynamic(self) -> bool:
        """Whether set_topology_ or reserve_ was called. The index, and not a pattern on the host, then say
        which blocks exist."""
        return self._digest < 0

    @property
    def capacity(self) -> int | None:
        """How many blocks ``values`` has room for, where reserve_ was called; None where all of them
        exist."""
        return self._capacity

    @property
    def density(self) -> float:
        """The number of stored blocks over all blocks of the grid. Waits for the device if the layer has a
        capacity."""
        return self._pattern.density if self._capacity is None else self.pattern.density

    def reserve_(
        self: Self, capacity: float, *, optimizer: Optimizer | Sequence[Optimizer] | None = None
    ) -> Self:
        """Makes room for that share of blocks, in [0, 1]: the number of blocks may then change, up to it, on
        the device. Returns self.

        ``values`` has a slot for each block that may exist, of which the first ones are stored, in row-major
        order. Free slots are zero and get no gradient; products take the time of the blocks that exist.
        ``state_dict`` and ``save`` leave free slots out. Call it before CUDA graphs capture the layer.
        Parameter and optimizers stay the same objects, with larger tensors.

        Args:
            capacity: at least the density that the layer has.
            optimizer: one or several optimizers, whose state of ``values`` gets the room as well.
        """
        return capacities.reserve(self, capacity, optimizer)

    def drop_and_grow_(
        self,
        budget: Tensor,
        growth: Tensor | None = None,
        scores: Tensor | None = None,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ) -> Tensor:
        """Drops the weakest blocks and grows the best others, all on the layer's device: nothing waits, and a
        CUDA graph may capture it. For a layer with a capacity.

        A NaN among the scores, or a budget beyond the capacity, keeps the topology as it is, and the next
        call that waits for the device (``pattern``, ``state_dict``, ``plan``) raises Error. Growth that is
        not finite, as in a step that GradScaler skips, keeps it, too, and is no error.

        Args:
            budget: float64 [2] on the layer's device: how many blocks there shall be, and the share of the
                kept ones that is dropped and grown anew. A graph reads it in each replay.
            growth: float32 [block rows, block columns], such as the norms of the blocks of the dense
                gradient; -inf where no block may grow. None: none grows.
            scores: float32 [capacity], of each slot; the l2 norms of the blocks by default.
            optimizer: as in ``set_topology_``.

        Returns:
            moved, as ``set_topology_`` does.
        """
        return topology.drop_and_grow(self, budget, growth, scores, optimizer)

    def set_topology_(
        self,
        mask: Tensor | Pattern,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        grown: Tensor | None = None,
    ) -> Tensor:
        """Moves the layer to another set of as many blocks, in place. On CUDA this does not wait, and after a
        first call it can be captured in a CUDA graph.

        Blocks that stay keep their values, gradient and optimizer state; new ones start at zero, or with
        their part of ``grown``. The index and ``values`` keep their place in memory, so captured graphs
        and compiled code see the new topology. The layer is ``dynamic`` from then on: ``pattern``,
        ``state_dict`` and ``save`` give the topology of that moment.

        Under DistributedDataParallel and tensor parallelism, give all ranks the same arguments, of the whole
        weight. A layer that tensor parallelism has cut waits for the mask, and raises Error on every rank
        unless it names as many blocks in each part as the part has. Under fully_shard every mask raises
        Error.

        Args:
            mask: bool or uint8 [block rows, block columns], or a Pattern. It should name exactly the layer's
                number of blocks. Nothing waits to count them: if it names more, the first in row-major order
                are taken; if it names fewer, the first other blocks are added, which start at zero.
                ``requested_blocks`` (int32 [1], on the layer's device) holds the mask's number. A layer with
                a ``capacity`` takes any number up to it; beyond it the topology stays as it is, and the next
                call that waits for the device raises Error.
            optimizer: one or several optimizers, whose state of ``values`` (moments, not step counts) moves
                with the blocks.
            grown: [out_features, in_features] on the layer's device; new blocks take their values from it.

        Returns:
            moved, int32 [blocks]: the slot where each block lay before, -1 for a new one and for a slot that
            becomes free, -2 for one that stays free. With it,
            ``ops.move_blocks`` moves anything else that has blocks as its first dimension (an average, a
            master copy).
        """
        return topology.set_topology(self, mask, optimizer, grown)

    def fix_topology_(self: Self, *, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Self:
        """Ends ``dynamic`` with the current topology (waits for the device), so that plans may depend on the
        pattern again; returns self. Free slots of a capacity are given back, also in the state of one or
        several optimizers."""
        if self.dynamic:
            pattern = self.pattern
            if self._capacity is not None:
                capacities.release(self, pattern, optimizer)
            self._pattern, self._digest, self._index = pattern, state.build_index(pattern).digest, None
            state.remember(self, changed=True)
            self._settle()
        return self

    def _settle(self) -> None:
        """Tells the layers merged with this one that its blocks or its device may have changed."""
        if self._siblings is not None:
            self._siblings.settle()

    def _index_of(self, pattern: Pattern) -> ops.Index:
        """Returns the index of a pattern, with the layer's free slots."""
        index = super()._index_of(pattern)
        return index if self._capacity is None else capacities.with_slots(index, self._capacity)

    def _cpu_index(self) -> ops.Index:
        """Returns the index on the CPU, wherever the layer is."""
        if self.packed_index.device.type == "cpu":
            if self._capacity is not None:
                state.stored(self)  # raises the Errors of failed changes on the CPU, too
            return self.index
        return self._index_of(self.pattern)._replace(digest=self._digest)

    def _set_index(self, pattern: Pattern, device: torch.device) -> None:
        if not topology.write_index(self, pattern, device):
            super()._set_index(pattern, device)
            if self._capacity is not None:
                capacities.count(self, pattern.blocks, device)
        self._writes = state.writes(self)
        if self._copy is not None:
            self._copy.forget()
        self._settle()

    def _mend(self) -> None:
        state.mend_index(self)

    def _no_copy(self) -> str:
        return "the topology is dynamic" if self.dynamic else ""

    def _unpacked(self, values: Tensor) -> Tensor:
        index = self.index
        return ops.call("unpack", values, index.crow, index.col, index.rows, index.cols)  # type: ignore[no-any-return]

    def _stored(self) -> tuple[dense_copy.Stored, dense_copy.Stored]:
        index, strict = self.index, self.strict
        return (
            lambda x, values, bias: ops.linear(x, values, index, bias, strict=strict),
            lambda dy, values, _: ops.linear_dx(dy, values, index, strict),
        )

    def _copy_key(self) -> tuple[Any, ...]:
        return self.block, self._blocks, self._digest

    def train(self: Self, mode: bool = True) -> Self:
        """Does what nn.Module.train does. Restores an index that something else has written to: an
        average of the weights that also takes buffers rounds them down."""
        super().train(mode)
        state.mend_index(self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state.mend_index(self)
        return super().__getstate__()

    def __setstate__(self, state_of_copy: dict[str, Any]) -> None:
        super().__setstate__(state_of_copy)
        self._writes = state.writes(self)
        if self._cut is not None:
            cut_state.cut_layers.add(self)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self._places is not None:
            self._places.require_own_places("state_dict")
        state.mend_index(self)
        padding.clear(self)
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._capacity is not None:
            capacities.leave_out_free(self, destination, prefix)
        if self._cut is not None:
            destination.update({prefix + name: entry for name, entry in cut_state.entries(self).items()})

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Applies .to(), .half(), .to_empty() and their like. Memory that came from meta holds nothing, so
        the index is written again."""
        was_meta, clean = self.packed_index.is_meta, state.writes(self) == self._writes
        super()._apply(arguments.exact(fn), recurse)
        packed = self.packed_index
        if clean:  # else it is still to be mended
            self._writes = state.writes(self)
        if was_meta and not packed.is_meta:
            self._set_index(self._pattern, packed.device)
        else:
            state.remember(self)
            self._settle()
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Checks indices and values before anything changes. Another number of blocks gives ``values`` new
        memory."""
        moments.called(self, prefix)
        try:
            state.require_strided(state_dict, prefix, ("values", "bias"))
            if self._cut is not None:
                cut_state.load(self, state_dict, prefix, missing_keys, unexpected_keys)
                return
            accept_pruned(state_dict, prefix)
            dense_entries.accept_dense(self, state_dict, prefix)
            pattern = state.read_pattern(self, state_dict, prefix)
            if pattern is not None and self._capacity is not None:
                capacities.fill_free(self, state_dict, prefix)
            state.require_room(self, pattern)
        except Error as error:
            error_msgs.append(f"{prefix[:-1] or 'layer'}: {error}")
            return
        with dense_copy.own_writes(self):
            if pattern is not None and pattern != self.pattern:
                old_pattern, slots = self.pattern, len(self.values)
                if self._capacity is None and pattern.blocks != self._pattern.blocks:
                    # Assigned through .data, so that the Parameter stays the one that an earlier optimizer
                    # holds.
                    self.values.data = self.values.data.new_zeros((pattern.blocks, *self.stored_shape))
                    self.values.grad = None
                self._set_index(pattern, self.packed_index.device)
                sizes = slots, len(self.values)
                moments.follow(self, lambda: moments.Way.of_blocks(old_pattern, pattern, sizes))
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
            if pattern is not None:
                # load_state_dict(assign=True) may have moved the values
                self._set_index(pattern, self.values.device)
            if self._places is not None:
                self._places.loaded()
        state.load_pair(state_dict, prefix, missing_keys, unexpected_keys)
