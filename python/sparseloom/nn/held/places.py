"""Places: keeps the blocks of averaged weights (torch.optim.swa_utils) in step with the layer that a run
drives.

An average is a deep copy of the model whose tensors are written one by one: Parameters as averages, buffers
as averages, as copies or not at all. A mask or an index cannot be averaged: a bool mask rounds up to ones, an
index rounds down to other blocks, and blocks that moved would be averaged with values of other places. So a
copy knows the layer that it was copied from. Once something other than training or load_state_dict writes to
its Parameter, it takes that layer's mask and budget, and its stored blocks move along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

from ...errors import Error
from . import state

if TYPE_CHECKING:
    from .indexed import IndexedModule


class Places:
    """The attribute ``_places`` of a driven layer and of every copy.deepcopy of it. That of a pickled layer
    knows no layer."""

    def __init__(self, layer: nn.Module | None = None, parameter: Tensor | None = None) -> None:
        self._layer: Callable[[], Any] = _nothing if layer is None else ref(layer)
        self._parameter: Callable[[], Tensor | None] = _nothing if parameter is None else ref(parameter)
        self.source: Places | None = None  # of the driven layer; None where this is it, and where it trains
        self.copies: WeakSet[Places] = WeakSet()
        self.moves = 0  # how often its stored blocks have moved
        #: What averages take: a mask or an index, and budget and progress of a gate. They outlive the layer.
        self.tensor: Tensor | None = None
        self.numbers: tuple[float, float] | None = None
        self._average = self._asked = self._resumed = False
        self.mixed = False
        self.loaded(resumed=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Places:
        """Returns a copy that is linked to this one if its layer is copied with it."""
        layer, parameter = (memo.get(id(each())) for each in (self._layer, self._parameter))
        copy = Places(layer, parameter)
        if layer is not None and parameter is not None:
            root = self if self.source is None else self.source
            copy.link(memo.get(id(root), root))
            copy.moves = self.moves
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(copy._trains)
        return copy

    def __reduce__(self) -> tuple[type[Places], tuple[()]]:
        return Places, ()

    @property
    def of_none(self) -> bool:
        """Whether it knows no layer, as after unpickling."""
        return self._layer() is None

    def link(self, source: Places, asked: bool = False) -> None:
        """Makes the layer a copy of another one; ``asked``: it always moves along."""
        self.source, self.moves = source, source.moves
        self._asked = self._average = asked
        source.copies.add(self)

    def lead(self) -> Places:
        """Makes the layer one that a run drives directly; returns self."""
        self.source = None
        return self

    def tell(self, tensor: Tensor | None, numbers: tuple[float, float] | None = None) -> None:
        """Stores the tensor and the numbers that averages of a driven layer take."""
        self.tensor = tensor
        self.numbers = self.numbers if numbers is None else numbers

    def loaded(self, resumed: bool = True) -> None:
        """Notes that writes so far were no averaging; ``resumed``: because load_state_dict wrote."""
        self._resumed, self.mixed = self._resumed or resumed, False
        parameter = self._parameter()
        self._seen = -1 if parameter is None else _version(parameter)
        self._sum = _checksum(self._layer(), parameter)

    def written(self) -> bool:
        """Returns whether something has averaged the Parameter since the last call."""
        parameter = self._parameter()
        if self.source is None or parameter is None:
            return False
        version, total = _version(parameter), _checksum(self._layer(), parameter)
        same = version == self._seen and (total is None or self._sum is None or torch.equal(total, self._sum))
        self._seen, self._sum = version, total
        self._average = self._average or not same
        return not same

    def averages(self) -> list[tuple[Places, IndexedModule]]:
        """Returns the averages that have the same stored blocks as the layer; call it before blocks move."""
        current = []
        for copy in list(self.copies):
            layer = copy._layer()
            copy.written()
            if copy.source is not self or layer is None or not copy._average:
                continue
            if copy._is_behind(layer):
                continue
            copy._take_index(layer)
            current.append((copy, layer))
        return current

    def _is_behind(self, layer: IndexedModule) -> bool:
        """Returns whether the average has values of an older topology, because it was first written to after
        blocks had moved. The first update of an AveragedModel copies everything, also the index."""
        assert self.source is not None
        if self.moves == self.source.moves:
            return False
        if state.writes(layer) != layer._writes and not self._resumed:
            self.moves = self.source.moves
            return False
        self.mixed = True
        return True

    def moved(self, averages: list[tuple[Places, IndexedModule]]) -> None:
        """Notes that stored blocks have moved, and those of these averages with them."""
        self.moves += 1
        for copy, _ in averages:
            copy.moves = self.moves
            copy.loaded(resumed=False)

    def mend(self, layer: IndexedModule) -> bool:
        """Gives an average the index of the layer that it follows. Returns False if it follows none."""
        source = self.source
        self.written()
        if source is None or not self._average or source.tensor is None or self._is_behind(layer):
            return False
        self._take_index(layer)
        return True

    def require_own_places(self, op: str) -> None:
        """Raises Error for an average whose values belong to another topology than its index."""
        self.written()
        layer = self._layer()
        behind = self.source is not None and self._average and layer is not None and hasattr(layer, "values")
        if self.mixed or (behind and self._is_behind(layer)):
            got = "one that was first written to after blocks had moved"
            remedy = "call run.follow(average) right after the average is made"
            raise Error(op, "an average of values of the same blocks", got, remedy)

    @property
    def layer(self) -> Any:
        """The layer, None if it was deleted."""
        return self._layer()

    def _take_index(self, layer: IndexedModule) -> None:
        assert self.source is not None and self.source.tensor is not None
        with torch.no_grad():
            layer.packed_index.copy_(self.source.tensor)
            layer.get_buffer("requested_blocks").fill_(len(layer.values))
            if layer.capacity is not None:
                layer.get_buffer(state.FLAGS).zero_()
        layer._writes = state.writes(layer)

    def _trains(self, _: Tensor) -> None:
        """A copy that has a gradient of its own is no average."""
        if not self._asked:
            self.source, self.mixed = None, False
            layer = self._layer()
            if layer is not None and hasattr(layer, "_factors"):
                layer._factors = None


def _nothing() -> None:
    return None


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _checksum(layer: Any, parameter: Tensor | None) -> Tensor | None:
    """Returns sums that show whether something wrote to values with free slots: torch does not count writes
    through the entries that capacity.leave_out_free puts into a state dict, which share the memory."""
    if parameter is None or parameter.is_meta or getattr(layer, "capacity", None) is None:
        return None
    values = parameter.detach().double()
    return torch.stack([values.sum(), values.square().sum()])
