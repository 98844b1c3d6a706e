"""What advise found: printable, as plain data, and as patterns for sparsify_."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from .patch.config import BlockSparse
from .patch.result import aligned


@dataclass(frozen=True)
class Option:
    """One block and density for one layer. Times in microseconds; ``measured_us`` is None unless asked for."""

    block: tuple[int, int]
    density: float
    kernels: dict[str, str]  # by direction
    predicted_us: float | None  # None where no sparse kernel takes it
    measured_us: float | None = None

    @property
    def us(self) -> float:
        """Measured where it was, else predicted; infinite where neither is."""
        found = self.predicted_us if self.measured_us is None else self.measured_us
        return math.inf if found is None else found


@dataclass
class LayerAdvice:
    """All layers of one size that see as many tokens, and what they would gain."""

    names: list[str]
    shape: tuple[int, int]  # out features, in features
    tokens: int
    dtype: str
    dense_us: float  # measured
    options: list[Option] = field(default_factory=list)
    break_even: dict[tuple[int, int], float | None] = field(default_factory=dict)  # predicted: dense is faster above it

    def best(self, density: float) -> Option | None:
        """The fastest option of at most that density that is faster than dense."""
        found = [option for option in self.options if option.density <= density and option.us < self.dense_us]
        return min(found, key=lambda option: option.us, default=None)


@dataclass
class Advice:
    """The layers of a model by size; prints as a table."""

    layers: list[LayerAdvice]
    skipped: dict[str, str]  # name -> why it cannot become sparse
    directions: tuple[str, ...]

    def patterns(self, density: float = 0.25) -> dict[str, BlockSparse]:
        """What to pass to sparsify_: every layer that would gain at that density or less, with its fastest block and density."""
        found = {}
        for layer in self.layers:
            if best := layer.best(density):
                for name in layer.names:
                    found[re.escape(name)] = BlockSparse(best.block, best.density)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        layers = []
        for layer in self.layers:
            even = {f"{bm}x{bn}": density for (bm, bn), density in layer.break_even.items()}
            options = [asdict(option) | {"speedup": layer.dense_us / option.us} for option in layer.options]
            layers.append(asdict(layer) | {"options": options, "break_even": even})
        return {"directions": list(self.directions), "layers": layers, "skipped": self.skipped}

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            (rows, cols), count = layer.shape, len(layer.names)
            more = f" and {count - 1} of its size" if count > 1 else ""
            lines.append(
                f"{layer.names[0]}{more}: {rows} x {cols}, {layer.tokens} tokens, {layer.dtype}, dense {layer.dense_us:.0f} us"
            )
            lines += aligned([_row(option, layer) for option in layer.options])
        lines += [f"{name}: stays dense, {reason}" for name, reason in self.skipped.items()]
        lines.append(
            f"us of {' + '.join(self.directions)}; dense measured; break-even: predicted density above which dense is faster"
        )
        return "\n".join(lines)


def _row(option: Option, layer: LayerAdvice) -> list[str]:
    even = layer.break_even[option.block]
    measured = "" if option.measured_us is None else f"measured {option.measured_us:.0f} us"
    speedup = layer.dense_us / option.us
    return [
        f"block {option.block[0]} x {option.block[1]}",
        f"density {option.density:.3g}",
        "no sparse kernel" if option.predicted_us is None else f"predicted {option.predicted_us:.0f} us",
        measured,
        f"{speedup:.2f}x" + (" slower than dense" if speedup < 1 else ""),
        "never faster" if even is None else f"break-even {even:.2f}",
    ]
