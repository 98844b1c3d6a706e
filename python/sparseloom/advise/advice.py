"""The results of advise: they print as a table, convert to plain data, and give patterns for sparsify_."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import Error
from ..patch import BlockSparse, InLayout, Semi24
from ..patch.result import aligned
from ..timing.busy import loud
from ..timing.rounds import Spread

if TYPE_CHECKING:
    from .attention import AttentionAdvice

#: The speedup from which a change is recommended. Predictions miss by a few percent, and a layer that becomes
#: slower costs more than a gain of a few percent brings. The value is half way, by ratio, between .97 and
#: 1.2.
WORTH = 1.08


@dataclass(frozen=True)
class Option:
    """One block and density for one layer. Times are in microseconds per call; measured ones are None where
    the layer was not called."""

    block: tuple[int, int]
    density: float
    kernels: dict[str, str]  # kernel by direction
    predicted_us: float | None  # None where no sparse kernel can run
    measured_us: float | None = None  # median
    ratio: Spread | None = None  # dense time over this one's, by round; None where not called
    bare_rows: int = 0  # block rows without a block: their outputs would be the bias alone
    # the directions in which the layer's plan would go dense, which `strict` forbids
    dense_in: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        """The measured time where there is one, else the predicted time; infinite where there is neither."""
        us = self.predicted_us if self.measured_us is None else self.measured_us
        return math.inf if us is None else us

    def speedup(self, dense_us: float) -> float:
        """Returns the dense time over this one's: the median of the rounds' ratios where it was called beside
        dense."""
        return dense_us / self.us if self.ratio is None else self.ratio.median

    def gains(self, dense_us: float) -> bool:
        """Returns whether the change is worth it: the speedup is at least WORTH, and the measurement, where
        there is one, shows a gain; every block row keeps a block; and the plan would take a sparse kernel for
        some product with the weight."""
        shown = self.ratio is None or not self.ratio.shows_none
        return self.speedup(dense_us) >= WORTH and shown and not self.bare_rows and not self.goes_dense

    @property
    def goes_dense(self) -> bool:
        """Whether the layer would multiply by its whole weight, which is slower than a dense layer."""
        return bool(self.dense_in) and set(self.dense_in) >= set(self.kernels) - {"dw"}


@dataclass
class LayerAdvice:
    """All layers of one size that see the same number of tokens, and what they would gain."""

    names: list[str]
    shape: tuple[int, int]  # out features, in features
    tokens: int
    dtype: str
    dense_us: float  # measured
    options: list[Option] = field(default_factory=list)
    # by block: the predicted density above which dense is faster
    break_even: dict[tuple[int, int], float | None] = field(default_factory=dict)
    semi24: Option | None = None  # as a 2:4 layer, of groups of 1 x 4 and density .5; where advise was asked
    # as a CSR layer, of blocks of 1 x 1, by density, and which of the names can become one; where asked
    csr: list[Option] = field(default_factory=list)
    csr_names: list[str] = field(default_factory=list)

    def best(self, density: float) -> Option | None:
        """Returns the fastest option of that density, or None if none gains."""
        candidates = [
            option
            for option in self.options
            if math.isclose(option.density, density) and option.gains(self.dense_us)
        ]
        return max(candidates, key=lambda option: option.speedup(self.dense_us), default=None)


@dataclass
class Advice:
    """The advice on the layers of a model, grouped by size; prints as a table."""

    layers: list[LayerAdvice]
    skipped: dict[str, str]  # name -> why it cannot become sparse
    directions: tuple[str, ...]
    densities: tuple[float, ...] = ()
    lost: float = 0.0  # share of the CPU time that other work took during the measurements
    attention: list[AttentionAdvice] = field(default_factory=list)  # where advise was asked

    def patterns(self, density: float = 0.25) -> dict[str, BlockSparse]:
        """Returns what to pass to sparsify_: every layer that gains at that density, with its fastest block.
        Raises Error for a density that advise was not asked about."""
        self._require_known("Advice.patterns", density)
        patterns_of = {}
        for layer in self.layers:
            if best := layer.best(density):
                for name in layer.names:
                    patterns_of[re.escape(name)] = BlockSparse(best.block, best.density)
        return patterns_of

    def semi24_patterns(self) -> dict[str, Semi24]:
        """Returns what to pass to sparsify_ to make every layer 2:4 that gains by it, pruned by magnitude.
        Raises Error where advise was not asked for 2:4."""
        if all(layer.semi24 is None for layer in self.layers):
            remedy = "call advise(..., semi24=True)"
            raise Error("Advice.semi24_patterns", "2:4 layers that advise looked at", "none", remedy)
        gaining = [advice for advice in self.layers if advice.semi24 and advice.semi24.gains(advice.dense_us)]
        return {re.escape(name): Semi24("magnitude") for layer in gaining for name in layer.names}

    def csr_patterns(self, density: float = 0.1) -> dict[str, InLayout]:
        """Returns what to pass to sparsify_ to put every layer into CSR that gains by it at that density: its
        largest magnitudes. Raises Error where advise was not asked for CSR, or not about that density."""
        if all(not layer.csr for layer in self.layers):
            remedy = "call advise(..., csr=True)"
            raise Error("Advice.csr_patterns", "CSR layers that advise looked at", "none", remedy)
        self._require_known("Advice.csr_patterns", density)
        gaining = [
            (layer, option)
            for layer in self.layers
            for option in layer.csr
            if math.isclose(option.density, density) and option.gains(layer.dense_us)
        ]
        return {
            re.escape(name): InLayout("csr", density=option.density)
            for layer, option in gaining
            for name in layer.csr_names
        }

    def _require_known(self, op: str, density: float) -> None:
        if any(math.isclose(density, measured) for measured in self.densities):
            return
        listed = ", ".join(f"{measured:.3g}" for measured in self.densities) or "none"
        remedy = f"pass one of them, or advise(..., densities=[{density!r}])"
        raise Error(op, f"a density that advise looked at: {listed}", repr(density), remedy)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        layers = []
        for layer in self.layers:
            break_even = {f"{bm}x{bn}": density for (bm, bn), density in layer.break_even.items()}
            options = [plain(option, layer.dense_us) for option in layer.options]
            semi24 = None if layer.semi24 is None else plain(layer.semi24, layer.dense_us)
            csr = [plain(option, layer.dense_us) for option in layer.csr]
            layers.append(
                asdict(layer) | {"options": options, "break_even": break_even, "semi24": semi24, "csr": csr}
            )
        data = {"lost": self.lost, "busy": bool(loud(self.lost)), "densities": list(self.densities)}
        attention = [each.to_dict() for each in self.attention]
        told = {"layers": layers, "attention": attention, "skipped": self.skipped}
        return {"directions": list(self.directions), **data, **told}

    def __str__(self) -> str:
        lines = [words] if (words := loud(self.lost)) else []
        for layer in self.layers:
            (rows, cols), count = layer.shape, len(layer.names)
            others = f" and {count - 1} of its size" if count > 1 else ""
            lines.append(
                f"{layer.names[0]}{others}: {rows} x {cols}, {layer.tokens} "
                f"tokens, {layer.dtype}, dense {layer.dense_us:.0f} us"
            )
            options = [*layer.options, *([layer.semi24] if layer.semi24 else []), *layer.csr]
            lines += aligned([_row(option, layer) for option in options])
        for each in self.attention:
            lines += each.lines()
        lines += [f"{name}: stays dense, {reason}" for name, reason in self.skipped.items()]
        lines.append(
            f"us of a call, {' + '.join(self.directions)}; measured beside "
            "dense in turn (20th to 80th percentile of the rounds' "
            f"ratios); recommended from {WORTH}x on; break-even: "
            "predicted density above which dense is faster"
        )
        return "\n".join(lines)


def plain(option: Option, dense_us: float) -> dict[str, Any]:
    """Returns an option as plain data."""
    return asdict(option) | {"speedup": option.speedup(dense_us), "gains": option.gains(dense_us)}


def _row(option: Option, layer: LayerAdvice) -> list[str]:
    if any(option is block_option for block_option in layer.options):
        return option_row(option, layer.dense_us, layer.break_even[option.block])
    row = option_row(option, layer.dense_us, None)
    return ["2:4" if option is layer.semi24 else "csr", *row[1:-1], ""]


def option_row(option: Option, dense_us: float, break_even: float | None) -> list[str]:
    """Returns the columns of an option of blocks."""
    words = "predicted" if option.measured_us is None else "measured"
    speedup = option.speedup(dense_us)
    shown = option.ratio is None or not option.ratio.shows_none
    return [
        f"block {option.block[0]} x {option.block[1]}",
        f"density {option.density:.3g}",
        "no sparse kernel" if option.predicted_us is None else f"{words} {option.us:.0f} us",
        f"{speedup:.2f}x" + ("" if option.ratio is None else option.ratio.words),
        f"{option.bare_rows} block rows without a block"
        if option.bare_rows
        else "its plan goes dense"
        if option.goes_dense
        else "slower than dense"
        if speedup < 1 and shown
        else "recommended"
        if option.gains(dense_us)
        else "",
        "never faster" if break_even is None else f"break-even {break_even:.2f}",
    ]
