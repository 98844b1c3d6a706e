"""The results of advise: they print as a table, convert to plain data, and give patterns for sparsify_."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .._checks import share
from ..errors import Error
from ..patch import BlockSparse, InLayout, Recipe, Semi24
from ..patch.result import aligned, folded
from ..report.result import dataframe
from ..report.text import WIDTH, elided
from ..timing.busy import loud
from ..timing.rounds import Spread

if TYPE_CHECKING:
    from .attention import AttentionAdvice
    from .whole import ModelAdvice

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
    dense_us: float | None = None  # median of dense, called in turn with this one; None where not called
    #: The share of sum |w| of the group's first layer that this option keeps, chosen by magnitude; None where
    #: it is not known. What that costs in quality shows after training.
    kept: float | None = None

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
        """Returns whether the change is worth it. The speedup must be at least WORTH, and the measurement,
        where there is one, must show a gain. Every block row must keep a block, and the plan must take a
        sparse kernel for some product with the weight."""
        shown = self.ratio is None or not self.ratio.shows_none
        return self.speedup(dense_us) >= WORTH and shown and not self.bare_rows and not self.goes_dense

    @property
    def goes_dense(self) -> bool:
        """Whether the layer would multiply by its whole weight, which is slower than a dense layer."""
        return bool(self.dense_in) and set(self.dense_in) >= set(self.kernels) - {"dw"}


@dataclass
class LayerAdvice:
    """All layers of one size that see the same number of tokens, or convolutions that see the same images,
    and what they would gain."""

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
    calls: int = 1  # products of each of them in one call of the model
    window: str = ""  # of convolutions: the images and the taps, in words
    #: Whether other work had a share of the CPU while this was measured, twice: then nothing is recommended.
    disturbed: bool = False

    def fastest(self, least: float = 0.0) -> Option | None:
        """Returns the fastest option that gains, of blocks, 2:4 and CSR, among those that store at least that
        share; None if none does."""
        gaining = [each for each in self.all_options() if each.density >= least and self.gains(each)]
        return max(gaining, key=lambda option: option.speedup(self.dense_us), default=None)

    def all_options(self) -> list[Option]:
        """Returns the options of blocks, then 2:4 and CSR where advise was asked for them."""
        return [*self.options, *([self.semi24] if self.semi24 else []), *self.csr]

    def gains(self, option: Option) -> bool:
        """Returns whether the change is worth it, by figures that nothing disturbed."""
        return not self.disturbed and option.gains(self.dense_us)

    def recipe(self, option: Option) -> Recipe:
        """Returns the recipe by which sparsify_ makes one of the layers what the option is."""
        if option is self.semi24:
            return Semi24("magnitude")
        if any(option is each for each in self.csr):
            return InLayout("csr", density=option.density)
        return BlockSparse(option.block, option.density)

    def names_of(self, option: Option) -> list[str]:
        """Returns the layers that can become what the option is."""
        return self.csr_names if any(option is each for each in self.csr) else self.names

    def words(self, option: Option) -> str:
        """Returns the option as text."""
        if option is self.semi24:
            return "2:4"
        if any(option is each for each in self.csr):
            return f"CSR at density {option.density:.3g}"
        bm, bn = option.block
        return f"blocks of {bm} x {bn} at density {option.density:.3g}"

    def best(self, density: float) -> Option | None:
        """Returns the fastest option of that density, or None if none gains."""
        candidates = [
            option for option in self.options if math.isclose(option.density, density) and self.gains(option)
        ]
        return max(candidates, key=lambda option: option.speedup(self.dense_us), default=None)


@dataclass
class Advice:
    """The advice on the layers of a model, grouped by size; prints as a table of at most 100 columns, with
    what was found in its first line. ``best`` is what to pass to sparsify_."""

    layers: list[LayerAdvice]
    skipped: dict[str, str]  # name -> why it cannot become sparse
    directions: tuple[str, ...]
    densities: tuple[float, ...] = ()
    lost: float = 0.0  # share of the CPU time that other work took during the measurements
    attention: list[AttentionAdvice] = field(default_factory=list)  # where advise was asked
    model: ModelAdvice | None = None  # the whole model's time; without training alone

    def best(self, least: float = 0.0) -> dict[str, Recipe]:
        """Returns what to pass to sparsify_: each layer that gains, as the fastest of all that was looked at:
        blocks of each size and density, 2:4 and CSR. ``least`` leaves out what stores a smaller share of the
        weight, since the fastest option is the one that loses most. 2:4 does not train. Raises Error for a
        ``least`` outside of [0, 1]."""
        if not 0 <= share("Advice.best", least, "least") <= 1:
            raise Error("Advice.best", "least in [0, 1]", repr(least), "pass a share of the weight")
        found: dict[str, Recipe] = {}
        for layer in self.layers:
            if (option := layer.fastest(least)) is not None:
                found |= {re.escape(name): layer.recipe(option) for name in layer.names_of(option)}
        return found

    def choices(self) -> list[list[str]]:
        """Returns a row for each group of layers: its names, its fastest option, the times of dense and of
        the option, the ratio, and what is known of the cost in quality."""
        rows = []
        for layer in self.layers:
            title = layer.names[0] if len(layer.names) == 1 else f"{len(layer.names)} x {layer.names[0]} .."
            option = layer.fastest()
            if option is None:
                rows.append([title, "stay dense", f"{layer.dense_us:,.0f} us", "", "", ""])
                continue
            dense_us = layer.dense_us if option.dense_us is None else option.dense_us
            ratio = f"{option.speedup(layer.dense_us):.2f}x" + (
                " (predicted)" if option.ratio is None else option.ratio.words
            )
            kept = "not known" if option.kept is None else f"keeps {100 * option.kept:.0f} % of sum |w|"
            times = f"{dense_us:,.0f} us", f"{option.us:,.0f} us"
            rows.append([title, layer.words(option), *times, ratio, kept])
        return rows

    def code(self) -> str:
        """Returns the lines that do what ``best`` says."""
        return "advice = sparseloom.advise(model, x)\nsparseloom.sparsify_(model, advice.best())"

    @property
    def headline(self) -> str:
        """What was found, in one sentence."""
        chosen = [(layer, option) for layer in self.layers if (option := layer.fastest()) is not None]
        every = sum(len(layer.names) for layer in self.layers)
        if not chosen and (disturbed := sum(len(layer.names) for layer in self.layers if layer.disturbed)):
            return (
                f"Nothing is recommended: {disturbed} of {every} dense layers were measured beside other "
                "work. Call advise again when the machine is idle."
            )
        if not chosen:
            return f"None of the {every} dense layers would gain: leave them dense."
        gaining = sum(len(layer.names_of(option)) for layer, option in chosen)
        layer, option = max(chosen, key=lambda each: each[0].calls * len(each[0].names) * each[0].dense_us)
        return (
            f"{gaining} of {every} dense layers would gain: advice.best() has them. The most time goes to "
            f"{layer.names[0]}{'' if len(layer.names) == 1 else ' and its like'}: {layer.words(option)}, "
            f"{option.speedup(layer.dense_us):.2f} times as fast."
        )

    @property
    def setting(self) -> str:
        """The one block and density, for all layers that gain by it, that would save the most time, in a
        sentence; "" where none gains."""
        saved: dict[tuple[tuple[int, int], float], float] = {}
        for layer in self.layers:
            for option in filter(layer.gains, layer.options):
                gain = layer.calls * len(layer.names) * (layer.dense_us - option.us)
                key = option.block, option.density
                saved[key] = saved.get(key, 0.0) + gain
        if not saved:
            return ""
        (bm, bn), density = max(saved, key=lambda key: saved[key])
        return (
            f"The best single setting is BlockSparse(({bm}, {bn}), {density:.3g}) for the layers that gain."
        )

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
        gaining = [advice for advice in self.layers if advice.semi24 and advice.gains(advice.semi24)]
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
            if math.isclose(option.density, density) and layer.gains(option)
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
            of = lambda option, layer=layer: plain(option, layer.dense_us, layer.disturbed)  # noqa: E731
            options = [of(option) for option in layer.options]
            semi24 = None if layer.semi24 is None else of(layer.semi24)
            csr = [of(option) for option in layer.csr]
            layers.append(
                asdict(layer) | {"options": options, "break_even": break_even, "semi24": semi24, "csr": csr}
            )
        data = {"lost": self.lost, "busy": bool(loud(self.lost)), "densities": list(self.densities)}
        attention = [each.to_dict() for each in self.attention]
        told: dict[str, Any] = {"layers": layers, "attention": attention, "skipped": self.skipped}
        told["model"] = None if self.model is None else self.model.to_dict()
        return {"directions": list(self.directions), **data, **told}

    def to_dataframe(self) -> Any:
        """Returns a pandas.DataFrame with a row for each option of each group of layers: names, shape,
        tokens, the option in words, density, times in microseconds, speedup, and whether it gains. Raises
        Error where pandas is not installed."""
        rows = [
            {
                "layers": ", ".join(layer.names_of(option)),
                "out_features": layer.shape[0],
                "in_features": layer.shape[1],
                "tokens": layer.tokens,
                "dtype": layer.dtype,
                "option": layer.words(option),
                "density": option.density,
                "dense_us": layer.dense_us if option.dense_us is None else option.dense_us,
                "us": option.us,
                "measured": option.measured_us is not None,
                "speedup": option.speedup(layer.dense_us),
                "gains": layer.gains(option),
            }
            for layer in self.layers
            for option in layer.all_options()
        ]
        return dataframe("Advice", rows)

    def __str__(self) -> str:
        lines = _wrapped(loud(self.lost)) + _wrapped(self.headline)
        lines += [] if self.model is None else _wrapped(self.model.line()) + _wrapped(self.setting)
        for layer in self.layers:
            (rows, cols), count = layer.shape, len(layer.names)
            others = f" and {count - 1} of its size" if count > 1 else ""
            tokens = (layer.window or f"{layer.tokens} tokens") + (
                f" {layer.calls} times" if layer.calls > 1 else ""
            )
            about = f": {rows} x {cols}, {tokens}, {layer.dtype}, dense {layer.dense_us:.0f} us"
            lines.append(elided(f"{layer.names[0]}{others}", WIDTH - len(about)) + about)
            lines += aligned([_row(option, layer) for option in layer.all_options()])
        for each in self.attention:
            lines += each.lines()
        for reason in dict.fromkeys(self.skipped.values()):
            names = [name for name, why in self.skipped.items() if why == reason]
            lines += _wrapped(f"stay dense, {reason}: {', '.join(folded(names))}")
        lines += _wrapped(
            f"us of a call, {' + '.join(self.directions)}: dense -> sparse; measured beside dense in turn "
            "(20th to 80th percentile of the rounds' ratios), or predicted (p); recommended from "
            f"{WORTH}x on; even: predicted density above which dense is faster; keeps: of sum |w|, by "
            "magnitude"
        )
        return "\n".join(lines)


def plain(option: Option, dense_us: float, disturbed: bool = False) -> dict[str, Any]:
    """Returns an option as plain data."""
    gains = not disturbed and option.gains(dense_us)
    return asdict(option) | {"speedup": option.speedup(dense_us), "gains": gains}


def _row(option: Option, layer: LayerAdvice) -> list[str]:
    if any(option is block_option for block_option in layer.options):
        return option_row(option, layer.dense_us, layer.break_even[option.block], layer.disturbed)
    row = option_row(option, layer.dense_us, None, layer.disturbed)
    return ["2:4" if option is layer.semi24 else "csr", *row[1:-2], "", row[-1]]


def option_row(
    option: Option, dense_us: float, break_even: float | None, disturbed: bool = False
) -> list[str]:
    """Returns the columns of an option of blocks: at most WIDTH columns in all."""
    speedup = option.speedup(dense_us)
    shown = option.ratio is None or not option.ratio.shows_none
    beside = dense_us if option.dense_us is None else option.dense_us
    spread = "" if option.ratio is None else f" ({option.ratio.p20:.2f} to {option.ratio.p80:.2f})"
    predicted = " p" if option.measured_us is None else ""
    return [
        f"{option.block[0]} x {option.block[1]}",
        f"{option.density:.3g}",
        "no sparse kernel" if option.predicted_us is None else f"{beside:.0f} -> {option.us:.0f}{predicted}",
        f"{speedup:.2f}x{spread}" if option.us < math.inf else "",
        f"{option.bare_rows} bare rows"
        if option.bare_rows
        else "plan goes dense"
        if option.goes_dense
        else "no difference shown"
        if not shown
        else "slower than dense"
        if speedup < 1
        else "measured beside other work"
        if disturbed
        else "recommended"
        if option.gains(dense_us)
        else "",
        "never" if break_even is None else f"even {break_even:.2f}",
        "" if option.kept is None else f"keeps {100 * option.kept:.0f} %",
    ]


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
