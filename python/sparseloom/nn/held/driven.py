"""The two kinds of weights that methods drive: stored blocks that move, and a dense master under a mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import Error
from ...ops.scores import NORMS
from ...sparsify.grid import expanded
from ...sparsify.held import Held
from ...sparsify.regrow import shrunk
from ..conv.base import ConvModule
from ..masked.linear import MaskedLinear
from ..masked.semi24 import Semi24Training
from .fused import unfuse
from .indexed import IndexedModule
from .places import Places
from .sparse_weight import SparseWeight, sparse_layers
from .topology import make_dynamic
from .watch import Watch


class StoredWeight(Held):
    """The weight of a module with ``sparse_weights()`` whose owner can move its blocks."""

    def __init__(self, name: str, weight: SparseWeight, target: float, by_gradient: bool = False) -> None:
        super().__init__()
        owner = weight.owner
        if by_gradient and not getattr(owner, "gives_dense_gradient", True):
            got = f"{name}, whose steps in a recurrent layer tell none"
            raise Error("Run", "weights whose absent blocks have a gradient", got, "choose methods.set_")
        stays = weight.layout != "bsr" or isinstance(owner, ConvModule)
        if stays or not hasattr(owner, "set_topology_"):
            got = f"{name}, a {type(owner).__name__}"
            raise Error("Run", "weights whose blocks can move (set_topology_)", got, "leave it out")
        # unfuse lets the model apply an activation that sparsify_ fused
        if getattr(owner, "activation", None) is not None and not unfuse(owner):
            remedy = "make the layer without one, and apply it afterwards"
            raise Error("Run", f"{name} without a fused activation", owner.activation, remedy)
        if weight.gated:
            raise Error("Run", "blocks without gates of their own", f"{name}, gated", "leave it out")
        self.name, self.target, self.owner, self.weight = name, target, owner, weight
        self.shape, self.block = weight.shape, weight.block
        # From the first step on, so that a resumed run has the same plans as an uninterrupted one.
        make_dynamic(owner)
        self.twins: list[IndexedModule] = []  # layers of copies of the model that were asked to move along
        self.watch()

    @property
    def moves_on_device(self) -> bool:  # type: ignore[override]
        return getattr(self.owner, "capacity", None) is not None

    @property
    def device(self) -> torch.device:
        return self.weight.values.device

    @property
    def parameter(self) -> Tensor:
        return self.weight.values

    def watch(self) -> None:
        Watch.on(self.owner, self)
        self.places = _leading(self.owner, self.weight.values)
        self.places.tell(getattr(self.owner, "packed_index", None))
        for twin in self.twins:
            _linked(twin, twin.values, self.places)

    def present(self) -> Tensor:
        return self.weight.pattern.mask

    def dense(self) -> Tensor:
        return self.weight.to_dense()

    def gradient(self) -> Tensor | None:
        grad = self.weight.values.grad
        return None if grad is None else self.weight.unpacked(grad)

    def learned(self) -> Tensor | None:
        return None

    def adjust(self, budget: float, progress: float) -> bool:
        return False

    def move(self, mask: Tensor, optimizers: Sequence[Optimizer], grown: Tensor | None) -> None:
        averages = self.places.averages()
        if torch.equal(mask, self.present()):
            return
        for layer in (self.owner, *(layer for _, layer in averages)):
            moving = list(optimizers) if layer is self.owner else None
            start = None if grown is None else grown.to(layer.values.device)
            layer.set_topology_(mask, optimizer=moving, grown=start)
        self._moved(averages)

    def follow(self, copy: nn.Module) -> None:
        owners = {layer.matched: layer.weight.owner for layer in sparse_layers(copy)}
        twin = owners.get(self.name)
        if twin is None or twin.pattern != self.weight.pattern:
            got = "none" if twin is None else "one with other blocks"
            raise Error("Run.follow", f"a copy of {self.name}", got, "copy the model after sparsify_")
        make_dynamic(twin)
        self.twins.append(twin)
        _linked(twin, twin.values, self.places)

    def _moved(self, averages: list[tuple[Places, IndexedModule]]) -> None:
        self.places.tell(getattr(self.owner, "packed_index", None))
        self.places.moved(averages)

    def drop_and_grow(
        self, count: int, share: float, scores: Tensor, growth: Tensor, optimizers: Sequence[Optimizer]
    ) -> None:
        budget = torch.empty(2, dtype=torch.float64, device=self.device)
        budget[0].fill_(count)
        budget[1].fill_(share)
        averages = self.places.averages()
        same_device = [layer for _, layer in averages if layer.values.device == self.device]
        # The averages first: they must choose by the same scores from the same blocks as the owner.
        for owner in (*same_device, self.owner):
            moving = list(optimizers) if owner is self.owner else None
            owner.drop_and_grow_(budget, growth, scores, optimizer=moving)
        for _, layer in averages:
            if layer.values.device != self.device:
                layer.set_topology_(self.present())
        self._moved(averages)

    def block_norms(self, norm: str) -> Tensor:
        values, order = self.weight.values.detach(), NORMS[norm]
        dims = tuple(range(1, values.dim()))
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        return torch.linalg.vector_norm(values, order, dim=dims, dtype=dtype).float()

    def cells(self) -> Tensor:
        index = self.weight.index
        slots = torch.arange(index.blocks, dtype=torch.int32, device=index.packed.device)
        rows = torch.searchsorted(index.crow, slots, right=True) - 1
        return rows.clamp_(0, max(0, self.grid[0] - 1)) * self.grid[1] + index.col

    def stored(self) -> Tensor:
        index, cells = self.weight.index, self.cells()
        live = torch.arange(len(cells), device=cells.device) < index.crow[-1]
        mask = torch.zeros(self.grid[0] * self.grid[1] + 1, dtype=torch.float32, device=cells.device)
        mask[torch.where(live, cells, len(mask) - 1)] = 1.0  # free slots write to the last element, a dummy
        return mask[:-1].view(self.grid)

    def shrink(self, amount: float) -> None:
        values = self.weight.values.detach()
        values.copy_(shrunk(values, amount, (1, 2)))

    def penalty(self) -> Tensor | None:
        return None

    def learning_rate(self, optimizers: Sequence[Optimizer]) -> float:
        return _rate(self.weight.values, optimizers)


class MaskedWeight(Held):
    """The dense weight of a MaskedLinear. ``keeps_pruned`` is that of the method's gradient rule."""

    def __init__(self, name: str, layer: MaskedLinear, target: float, keeps_pruned: bool) -> None:
        super().__init__()
        self.name, self.target, self.layer, self.keeps_pruned = name, target, layer, keeps_pruned
        self.shape, self.block = (layer.out_features, layer.in_features), layer.block
        self.twins: list[MaskedLinear] = []  # layers of copies of the model that were asked to follow
        self.watch()

    @property
    def device(self) -> torch.device:
        return self.layer.weight.device

    @property
    def parameter(self) -> Tensor:
        return self.layer.weight

    def watch(self) -> None:
        Watch.on(self.layer, self)
        self.places = _leading(self.layer, self.layer.weight)
        gate = self.layer.gate
        self.places.tell(self.layer.mask, None if gate is None else (gate.budget, gate.progress))
        for twin in self.twins:
            _linked(twin, twin.weight, self.places)

    def follow(self, copy: nn.Module) -> None:
        twin = dict(copy.named_modules(remove_duplicate=False)).get(self.name)
        if not isinstance(twin, MaskedLinear) or twin.mask.shape != self.layer.mask.shape:
            got = "none" if twin is None else type(twin).__name__
            raise Error("Run.follow", f"a copy of {self.name}", got, "copy the model after sparsify_")
        self.twins.append(twin)
        _linked(twin, twin.weight, self.places)

    def present(self) -> Tensor:
        return self.layer.mask.to("cpu", copy=True)

    def dense(self) -> Tensor:
        weight = self.layer.weight
        if hasattr(weight, "placements"):
            got = "a weight that fully_shard has cut up"
            raise Error("Run", f"the whole weight of {self.name}", got, "call pack_ before sharding")
        return weight.detach()

    def gradient(self) -> Tensor | None:
        return self.layer.weight.grad

    def learned(self) -> Tensor | None:
        return None if self.layer.gate is None else self.layer.gate.learned()

    def adjust(self, budget: float, progress: float) -> bool:
        gate = self.layer.gate
        if gate is not None:
            gate.budget, gate.progress = budget, progress
            self.places.tell(self.layer.mask, (budget, progress))
        return gate is not None

    @torch.no_grad()
    def move(self, mask: Tensor, optimizers: Sequence[Optimizer], grown: Tensor | None) -> None:
        """Sets the mask. Unless keeps_pruned, elements outside the old or the new mask get weight, gradient
        and moments zero, so that grown blocks start clean."""
        old_mask, weight = self.present(), self.layer.weight
        self.layer.set_mask_(mask)
        self.places.tell(self.layer.mask)
        if self.keeps_pruned:
            return
        clean = ~expanded((mask & old_mask).to(weight.device), self.block, self.shape)
        for tensor in [weight.detach(), weight.grad, *_state(weight, optimizers)]:
            if tensor is not None:
                tensor.masked_fill_(clean, 0)
        if grown is not None:
            new = expanded((mask & ~old_mask).to(weight.device), self.block, self.shape)
            weight.copy_(torch.where(new, grown.to(weight), weight))

    @property
    def refreshes(self) -> bool:  # type: ignore[override]
        return isinstance(self.layer, Semi24Training) and self.layer.gate is None

    def refresh(self, budget: float) -> None:
        layer = self.layer
        assert isinstance(layer, Semi24Training)
        if budget >= 1:
            layer.dense_tail_()
        else:
            layer.refresh_()
        self.places.tell(layer.mask)

    def flips(self) -> Tensor:
        assert isinstance(self.layer, Semi24Training)
        return self.layer.flips

    @property
    def in_tail(self) -> bool:
        return isinstance(self.layer, Semi24Training) and self.layer.is_whole

    def decay_in_step(self, steps: bool) -> None:
        self.layer._decays_in_step = steps and self.layer.decay != 0

    def add_decay(self, scale: Tensor | None) -> None:
        if self.layer._decays_in_step:
            self.layer.add_decay_(scale)

    def decay_pruned(self, amount: float, adaptive: bool) -> None:
        layer = self.layer
        if not isinstance(layer, Semi24Training):
            return super().decay_pruned(amount, adaptive)
        moments = [] if not adaptive else [o.state.get(layer.weight, {}) for o in self.run.optimizers]
        second = next((state["exp_avg_sq"] for state in moments if "exp_avg_sq" in state), None)
        layer.decay_pruned_(amount, adaptive, second)

    @torch.no_grad()
    def shrink(self, amount: float) -> None:
        weight = self.layer.weight
        (rows, cols), (bm, bn) = self.shape, self.block
        padded = weight.new_zeros(self.grid[0] * bm, self.grid[1] * bn)
        padded[:rows, :cols] = weight
        blocks = padded.view(self.grid[0], bm, self.grid[1], bn)
        weight.copy_(shrunk(blocks, amount, (1, 3)).view_as(padded)[:rows, :cols])

    def penalty(self) -> Tensor | None:
        return None if self.layer.gate is None else self.layer.gate.penalty()

    def learning_rate(self, optimizers: Sequence[Optimizer]) -> float:
        return _rate(self.layer.weight, optimizers)


def _leading(layer: nn.Module, parameter: Tensor) -> Places:
    """Returns the Places of a layer that a run drives."""
    existing: Any = getattr(layer, "_places", None)
    places = Places(layer, parameter) if existing is None or existing.of_none else existing.lead()
    layer._places = places  # type: ignore[assignment]
    return places


def _linked(copy: IndexedModule | MaskedLinear, parameter: Tensor, source: Places) -> None:
    places = copy._places
    if places is None or places.of_none:
        places = copy._places = Places(copy, parameter)
    places.link(source, asked=True)


def _state(parameter: Tensor, optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Returns the optimizer state of a Parameter that has its shape."""
    return [
        value
        for optimizer in optimizers
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]


def _rate(parameter: Tensor, optimizers: Iterable[Optimizer]) -> float:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(param is parameter for param in group["params"]):
                return float(group["lr"])
    return 1.0
