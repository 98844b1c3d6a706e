"""Reports on attention over kept blocks: which module asks for it, what runs, and its times beside torch's
dense attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.call import Asked, attention, before_calls
from ..attention.dense import dense
from ..attention.pattern import AttentionPattern
from ..attention.plans import planned
from ..errors import Error
from ..timing.rounds import in_turn
from .break_even import LADDER, crossing
from .layers import drawn, name_kernels, summed_up
from .result import LayerReport

#: Of a report's directions: whether the plan is that of the backward pass, and the name of its kernel.
_DIRECTIONS = {"forward": (False, "forward"), "backward": (True, "dx")}


class Seen(NamedTuple):
    """The largest attention that a module asked for."""

    q: Tensor  # on meta, as k is
    k: Tensor
    device: torch.device
    pattern: AttentionPattern
    causal: bool
    scale: float | None
    ragged: bool

    def plan(self, backward: bool, density: float | None = None) -> dict[str, Any]:
        """Returns the plan of a direction, also for lists that are shorter or longer than the pattern's."""
        room = self.pattern.indices.shape[-1]
        if density is not None:
            room = max(1, round(room * density / max(self.density, 1e-9)))
        of = self.q.shape, self.k.shape, self.q.dtype, self.device, room, self.pattern.block
        return planned(*of, self.causal, self.pattern.q_documents is not None, backward=backward)

    @property
    def density(self) -> float:
        """The kept share of the blocks."""
        counts = self.pattern.counts
        blocks = self.pattern.kv_blocks or -(-self.k.shape[-2] // self.pattern.block[1])
        return int(counts.sum()) / max(1, counts.numel() * blocks)


@dataclass
class Callers:
    """Which module runs, and what it asked for. A module without a call of its own is not in ``seen``."""

    running: list[nn.Module] = field(default_factory=list)
    seen: dict[nn.Module, Seen] = field(default_factory=dict)

    def see(self, asked: Asked) -> None:
        """Keeps the largest call of the module that runs."""
        if not self.running:
            return
        work = asked.q.numel() * asked.k.shape[-2]
        before = self.seen.get(self.running[-1])
        if before is None or work > before.q.numel() * before.k.shape[-2]:
            q, k = (torch.empty_like(each, device="meta") for each in (asked.q, asked.k))
            self.seen[self.running[-1]] = Seen(q, k, asked.q.device, *asked[3:])


@contextmanager
def modules_running(running: list[nn.Module]) -> Iterator[None]:
    """Keeps the modules that run in a list, the innermost last."""

    def enter(module: nn.Module, arguments: object) -> None:
        running.append(module)

    def leave(module: nn.Module, arguments: object, result: object) -> None:
        running.pop()

    of_all = nn.modules.module
    hooks = [
        of_all.register_module_forward_pre_hook(enter),
        of_all.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def watched_attention() -> Iterator[dict[nn.Module, Seen]]:
    """Yields the dict of what modules ask for in the body."""
    callers = Callers()
    with modules_running(callers.running), before_calls(callers.see):
        yield callers.seen


class DenseAttention(nn.Module):
    """Calls a model with torch's dense attention in the place of each attention over kept blocks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        with before_calls(dense):
            return self.model(*arguments, **keywords)


def described(name: str, module: nn.Module, seen: Seen, trains: bool) -> LayerReport:
    """Returns the report of a module's attention without the times. Its size in bytes is that of the lists;
    the projections around it are layers of their own."""
    lists = seen.pattern.counts.nbytes + seen.pattern.indices.nbytes
    entry = LayerReport(
        name, type(module).__name__, (seen.q.shape[1], seen.q.shape[-1]),
        lists, 0, seen.pattern.block, dtype=str(seen.q.dtype).removeprefix("torch."),
        x_shape=tuple(seen.q.shape),
    )  # fmt: skip
    if seen.pattern.counts.is_meta:
        entry.note = "on meta: nothing to measure"
        return entry
    entry.density = seen.density
    if seen.ragged:
        entry.note = "not timed alone: sequences of several lengths have no dense twin"
        return entry
    try:
        plans = {
            name: seen.plan(backward) for backward, name in _DIRECTIONS.values() if trains or not backward
        }
        name_kernels(entry, plans)
    except Error as refused:
        entry.note = f"not timed alone: {refused}"
    return entry


def measure(entry: LayerReport, seen: Seen, seconds: float) -> None:
    """Measures the times on random data, if a kernel takes it."""
    if not entry.kernels:
        return
    gpu = seen.device if seen.device.type == "cuda" else None
    shapes, dtype = (seen.q.shape, seen.k.shape, seen.k.shape), seen.q.dtype
    q, k, v = (drawn(*shape).to(seen.device, dtype) for shape in shapes)

    def ours() -> Tensor:
        return attention(q, k, v, seen.pattern, causal=seen.causal, scale=seen.scale)

    def twin() -> Tensor:
        return dense(Asked(q, k, v, seen.pattern, seen.causal, seen.scale, False))

    with torch.no_grad():
        samples = {"forward": in_turn([ours, twin], seconds / 2, gpu)}
    if "dx" in entry.kernels:
        inputs = [each.requires_grad_() for each in (q, k, v)]
        dy = drawn(*q.shape).to(seen.device, dtype)

        def backward(y: Tensor) -> Callable[[], object]:
            return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)

        with torch.enable_grad():
            samples["backward"] = in_turn([backward(ours()), backward(twin())], seconds / 2, gpu)
    entry.times, entry.dense_times, entry.ratios = summed_up(samples)
    entry.break_even = {way: _break_even(entry, seen, way) for way in entry.times}
    if entry.slower:
        entry.note = f"slower than dense: {', '.join(entry.slower)}"


def _break_even(entry: LayerReport, seen: Seen, way: str) -> float | None:
    """Returns the share of blocks at which the predicted time, scaled to what was measured, meets dense."""
    assert entry.times is not None and entry.dense_times is not None
    backward, _ = _DIRECTIONS[way]
    now = float(seen.plan(backward)["predicted_us"])
    scale = entry.times[way] / now if now > 0 else 1.0
    curve = [(share, scale * float(seen.plan(backward, share)["predicted_us"])) for share in LADDER]
    return crossing(curve, entry.dense_times[way])
