"""Advice on the attention of a model: what calls of scaled_dot_product_attention would gain over a part of
the blocks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attention.call import Asked, attention
from ..attention.dense import dense
from ..attention.pattern import AttentionPattern
from ..attention.plans import planned
from ..errors import Error
from ..patch.result import aligned
from ..report.attentions import modules_running
from ..report.break_even import FALLBACKS, LADDER, crossing
from ..report.layers import drawn
from ..report.text import WIDTH
from ..timing.rounds import Spread, in_turn, quotient
from .advice import Option, option_row, plain

BLOCKS = (64, 128)
_USE_PATTERN = "sparseloom.attention.use_pattern(model, ..)"


class Size(NamedTuple):
    """A call of dense attention, by what its time depends on."""

    q: tuple[int, ...]  # batch, heads, tokens, head size
    kv_heads: int
    keys: int
    causal: bool
    dtype: torch.dtype
    device: torch.device
    remedy: str  # how its module gets to keep blocks


@dataclass
class AttentionAdvice:
    """The attention of all modules whose calls have one size, and what they would gain. Densities are those
    of the blocks that causal order leaves."""

    names: list[str]
    shape: tuple[int, ...]  # batch, heads, queries, head size
    kv_heads: int
    keys: int
    causal: bool
    dtype: str
    dense_us: float  # measured
    remedy: str  # how to let them keep blocks
    options: list[Option] = field(default_factory=list)
    # by block: the predicted density above which dense is faster
    break_even: dict[int, float | None] = field(default_factory=dict)
    disturbed: bool = False  # as in LayerAdvice

    def best(self, density: float) -> Option | None:
        """Returns the fastest option of that density, or None if none gains."""
        gaining = [
            option
            for option in self.options
            if math.isclose(option.density, density) and option.gains(self.dense_us) and not self.disturbed
        ]
        return max(gaining, key=lambda option: option.speedup(self.dense_us), default=None)

    def lines(self) -> list[str]:
        """Returns the lines of the printed advice."""
        _, heads, tokens, head_dim = self.shape
        others = f" and {len(self.names) - 1} of its size" if len(self.names) > 1 else ""
        grouped = "" if self.kv_heads == heads else f" on {self.kv_heads} of keys"
        title = (
            f"{self.names[0]}{others}: attention, {heads} heads of {head_dim}{grouped}, {tokens} queries, "
            f"{self.keys} keys, {'causal, ' if self.causal else ''}{self.dtype}, dense {self.dense_us:.0f} us"
        )
        rows = [
            option_row(each, self.dense_us, self.break_even[each.block[0]], self.disturbed)
            for each in self.options
        ]
        gains = not self.disturbed and any(option.gains(self.dense_us) for option in self.options)
        told = f"to keep blocks: {self.remedy}" if gains else ""
        ways = textwrap.wrap(told, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        titles = textwrap.wrap(title, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        return [*titles, *aligned(rows), *ways]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        break_even = {str(block): density for block, density in self.break_even.items()}
        return asdict(self) | {
            "options": [plain(option, self.dense_us, self.disturbed) for option in self.options],
            "break_even": break_even,
        }


class _Calls(TorchFunctionMode):
    """Keeps the largest dense attention that each running module calls, by the module's name."""

    def __init__(self, names: dict[nn.Module, str], running: list[nn.Module]) -> None:
        super().__init__()
        self.names, self.running, self.sizes = names, running, dict[str, Size]()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reader = _READERS.get(func)
        size = None if reader is None else reader(*args, **kwargs)
        if size is not None and self.running:
            name = self.names.get(self.running[-1], "")
            if name not in self.sizes or _work(size) > _work(self.sizes[name]):
                self.sizes[name] = size
        return func(*args, **kwargs)


def _work(size: Size) -> int:
    return math.prod(size.q) * size.keys


def _of_sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, **options: Any,
) -> Size | None:  # fmt: skip
    if query.dim() != 4 or value.shape[-1] != query.shape[-1]:
        return None
    causal, kind = is_causal or _is_causal(attn_mask), (query.dtype, query.device)
    remedy = f"a transformers model: attn_implementation='sparseloom', then {_USE_PATTERN}; your own module: "
    remedy += "sparseloom.attention(q, k, v, pattern)"
    return Size(tuple(query.shape), key.shape[1], key.shape[2], causal, *kind, remedy)


def _of_torchs(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_heads: int, *rest: Any, **options: Any
) -> Size | None:
    """Reads a call of nn.MultiheadAttention: query and key [tokens, batch, embed_dim]."""
    if query.dim() != 3:
        return None
    causal = bool(options.get("is_causal")) or _is_causal(options.get("attn_mask"))
    weights = options.get("need_weights", True)
    remedy = _USE_PATTERN + (", and call the module with need_weights=False" if weights else "")
    shape = query.shape[1], num_heads, query.shape[0], int(embed_dim) // num_heads
    return Size(shape, num_heads, key.shape[0], causal, query.dtype, query.device, remedy)


_READERS: dict[Any, Callable[..., Size | None]] = {
    F.scaled_dot_product_attention: _of_sdpa,
    F.multi_head_attention_forward: _of_torchs,
}


def _is_causal(mask: Tensor | None) -> bool:
    """Returns whether a mask keeps the last key from the first query, but not from the last one."""
    if mask is None:
        return False
    kept = mask if mask.dtype == torch.bool else mask == 0
    return kept.shape[-2] > 1 and not bool(kept[..., 0, -1].any()) and bool(kept[..., -1, -1].any())


@contextmanager
def watched_dense(model: nn.Module, wanted: bool) -> Iterator[dict[str, Size]]:
    """Yields the dict {name of the module: size} of the dense attention called in the body; an empty one
    where nobody wants it."""
    if not wanted:
        yield {}
        return
    running: list[nn.Module] = []
    names = {module: name for name, module in model.named_modules()}
    with modules_running(running), _Calls(names, running) as calls:
        yield calls.sizes


def advised(
    sizes: dict[str, Size], densities: Sequence[float], training: bool, measure: bool, seconds: float
) -> tuple[list[AttentionAdvice], dict[str, str]]:
    """Returns the advice on every size, and the names, with the reason, of those that nothing takes."""
    groups: dict[Size, list[str]] = {}
    skipped = {}
    for name, size in sizes.items():
        if size.keys <= BLOCKS[0]:
            skipped[name] = f"its attention has {size.keys} keys, a single block of {BLOCKS[0]}"
        elif size.causal and size.q[2] != size.keys:
            skipped[name] = (
                "its causal attention has fewer queries than keys, which torch aligns at the start"
            )
        else:
            groups.setdefault(size, []).append(name)
    found = []
    for size, names in groups.items():
        try:
            found.append(_advised(size, names, densities, training, measure, seconds))
        except Error as refused:
            skipped |= dict.fromkeys(names, f"no kernel takes its attention: {refused}")
    return found, skipped


def _advised(
    size: Size, names: list[str], densities: Sequence[float], training: bool, measure: bool, seconds: float
) -> AttentionAdvice:
    gpu = size.device if size.device.type == "cuda" else None
    shapes = (size.q, (size.q[0], size.kv_heads, size.keys, size.q[3]))
    q, k, v = (drawn(*shapes[at]).to(size.device, size.dtype).requires_grad_(training) for at in (0, 1, 1))
    dout = drawn(*size.q).to(size.device, size.dtype)
    blocks = [block for block in BLOCKS if size.keys > block]
    middle = sorted(densities)[(len(densities) - 1) // 2]

    def called(forward: Callable[[], Tensor]) -> Callable[[], object]:
        def call() -> object:
            with torch.set_grad_enabled(training):
                out = forward()
                return torch.autograd.grad(out, [q, k, v], dout) if training else out

        return call

    def ours(block: int, density: float) -> Callable[[], object]:
        pattern = _pattern(size, block, density)
        return called(lambda: attention(q, k, v, pattern, causal=size.causal))

    whole = _pattern(size, blocks[0], 1.0)
    twin = called(lambda: dense(Asked(q, k, v, whole, size.causal, None, False)))
    asked = [(block, each) for block in blocks for each in densities if measure or each == middle]
    dense_us, *samples = in_turn([twin, *(ours(*each) for each in asked)], seconds * len(asked), gpu)
    timed = {each: (Spread.of(us), quotient(dense_us, us)) for each, us in zip(asked, samples, strict=True)}
    entry = AttentionAdvice(
        names, size.q, size.kv_heads, size.keys, size.causal, str(size.dtype).removeprefix("torch."),
        Spread.of(dense_us).median, size.remedy,
    )  # fmt: skip
    for block in blocks:
        planned_us, kernels = _planned(size, block, middle, training)
        scale = timed[block, middle][0].median / planned_us
        curve = [(each, scale * _planned(size, block, each, training)[0]) for each in LADDER]
        entry.break_even[block] = crossing(curve, entry.dense_us)
        for density in densities:
            predicted = scale * _planned(size, block, density, training)[0]
            spread, ratio = timed.get((block, density), (None, None))
            measured = None if spread is None else spread.median
            slow = tuple(way for way, kernel in kernels.items() if kernel in FALLBACKS)
            entry.options.append(
                Option(
                    (block, block),
                    density,
                    kernels,
                    predicted,
                    measured,
                    ratio,
                    dense_in=slow,
                    dense_us=None if ratio is None else entry.dense_us,
                )
            )
    return entry


def _pattern(size: Size, block: int, density: float) -> AttentionPattern:
    """Draws the same number of blocks in each row, of each head: of those that causal order leaves, and in
    them the query's own."""
    rows, columns = (-(-tokens // block) for tokens in (size.q[2], size.keys))
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand((1, size.q[1], rows, columns), generator=generator)
    own = torch.arange(rows)[:, None] * columns // rows == torch.arange(columns)
    allowed = torch.arange(columns) <= torch.arange(rows)[:, None] if size.causal else torch.ones_like(own)
    scores = scores + own.float() - 2 * (~allowed).float()
    places = scores.argsort(-1, descending=True).argsort(-1)
    kept = (places < (density * allowed.sum(-1, keepdim=True)).round().clamp(min=1)) & allowed
    return AttentionPattern.from_map(kept, block)


def _planned(size: Size, block: int, density: float, training: bool) -> tuple[float, dict[str, str]]:
    """Returns the predicted microseconds of a call, and its kernels."""
    k_shape = (size.q[0], size.kv_heads, size.keys, size.q[3])
    room = max(1, round(density * -(-size.keys // block)))
    us, kernels = 0.0, {}
    for direction in ("forward", "dx") if training else ("forward",):
        what = size.q, k_shape, size.dtype, size.device, room, (block, block), size.causal, False
        plan = planned(*what, backward=direction == "dx")
        us, kernels[direction] = us + float(plan["predicted_us"]), str(plan["kernel"])
    return us, kernels
