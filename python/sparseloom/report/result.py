"""The results of report: printable, as HTML, and as plain data."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import Error
from ..pattern import Pattern
from ..timing.busy import loud
from ..timing.rounds import Spread

if TYPE_CHECKING:
    from ..advise.advice import Advice

#: Median microseconds of one call: "forward" and "backward"; of whole models also "compiled", "exported" and
#: "graph", the forward pass in these ways.
Times = dict[str, float]
#: A call of some milliseconds of the GPU is launched in a fraction of them; one that the GPU finishes as soon
#: as it is launched has some .95, the rest being the wait for the last kernel.
HOST_BOUND = 0.85
#: The share of an eager call in which the GPU idles, by the time of its graph: where it is known, it decides.
IDLE = 0.3
Ratios = dict[str, Spread]  # by direction: the dense twin's time over this one's, round by round


@dataclass
class LayerReport:
    """One layer. Sizes are in bytes, times in microseconds; times are None for layers that are not
    measured."""

    name: str
    kind: str
    shape: tuple[int, ...]  # out features, in features for linear layers; then the taps of convolutions
    bytes: int  # parameters and saved buffers as they are
    dense_bytes: int  # the bytes of the same layer, dense
    block: tuple[int, int] | None = None
    density: float | None = None
    tokens: int | None = None  # rows of the largest input seen
    x_shape: tuple[int, ...] | None = None  # of the largest input that a convolution saw
    dtype: str | None = None  # of the products: autocast's where autocast is on
    kernels: dict[str, str] = field(default_factory=dict)  # forward, dx, dw
    times: Times | None = None
    dense_times: Times | None = None
    ratios: Ratios = field(default_factory=dict)
    #: By direction, the density above which dense is faster, from the plan's predictions scaled to the
    #: measured time. None if dense is faster at every density, 1.0 if block-sparse is.
    break_even: dict[str, float | None] = field(default_factory=dict)
    note: str = ""
    pattern: Pattern | None = None
    layout: str | None = None  # a name of sparseloom.layouts; None for blocks and for dense layers
    copy_bytes: int = 0  # of the dense copy that calls of these tokens keep beside ``bytes``

    @property
    def sparse(self) -> bool:
        """Whether the layer's weight is sparse, in blocks or in another layout."""
        return self.block is not None or self.layout is not None

    @property
    def speedups(self) -> Times:
        """Dense time over this layer's time, by direction; below 1 the layer is slower than dense."""
        return speedups(self)

    @property
    def slower(self) -> list[str]:
        """The directions in which dense was shown to be faster."""
        return [
            direction
            for direction, speedup in self.speedups.items()
            if speedup < 1 and direction not in self.undecided
        ]

    @property
    def undecided(self) -> list[str]:
        """The directions in which no difference was shown: the middle 60 % of the rounds' ratios hold 1."""
        return undecided(self)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a flat row for each measured direction; one without times if there is none."""
        about = {name: getattr(self, name) for name in ("name", "kind", "shape", "block", "layout")}
        about |= {
            name: getattr(self, name) for name in ("density", "tokens", "dtype", "bytes", "dense_bytes")
        }
        rows = []
        for direction in self.times or {"": 0.0}:
            ratio, ways = self.ratios.get(direction), {"forward": ("forward",)}.get(direction, ("dx", "dw"))
            kernels = dict.fromkeys(self.kernels[way] for way in ways if way in self.kernels)
            measured = {
                "direction": direction or None,
                "dense_us": (self.dense_times or {}).get(direction),
                "sparse_us": (self.times or {}).get(direction),
                "ratio": self.speedups.get(direction),
                "ratio_p20": None if ratio is None else ratio.p20,
                "ratio_p80": None if ratio is None else ratio.p80,
                "kernel": ", ".join(kernels) or None,
                "break_even": self.break_even.get(direction),
            }
            rows.append(about | measured | {"note": self.note})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, without the pattern's bits."""
        data = {key: value for key, value in asdict(self).items() if key != "pattern"}
        return data | {
            "speedups": self.speedups,
            "slower_than_dense": self.slower,
            "no_difference_shown": self.undecided,
        }


@dataclass
class ModelReport:
    """The whole model at one batch size, compared to its dense twin: the same model with every block-sparse
    layer dense."""

    batch: int | None  # first dimension of the input; None when that has no tensor
    times: Times | None = None  # "backward" is missing where the model does not train
    dense_times: Times | None = None
    note: str = ""  # what could not be measured, and why
    ratios: Ratios = field(default_factory=dict)
    #: On a GPU, the share of an eager forward call that passes until the host has launched it.
    launch_share: float | None = None

    @property
    def idle_share(self) -> float | None:
        """The share of an eager forward call in which the GPU waits, None where no graph was measured."""
        if self.times is None or not {"graph", "forward"} <= self.times.keys():
            return None
        return max(0.0, 1 - self.times["graph"] / self.times["forward"])

    @property
    def host_bound(self) -> bool:
        """Whether the GPU waits for the host in an eager forward call: it idles for IDLE of it or, where no
        graph was measured, launching takes HOST_BOUND of it."""
        if self.idle_share is not None:
            return self.idle_share >= IDLE
        return self.launch_share is not None and self.launch_share >= HOST_BOUND

    @property
    def speedups(self) -> Times:
        """Dense time over this model's time, by direction."""
        return speedups(self)

    @property
    def undecided(self) -> list[str]:
        """The directions in which no difference was shown: the middle 60 % of the rounds' ratios hold 1."""
        return undecided(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return asdict(self) | {
            "speedups": self.speedups,
            "no_difference_shown": self.undecided,
            "host_bound": self.host_bound,
        }


@dataclass(frozen=True)
class Totals:
    """Sizes of the whole model and of its dense twin; shared tensors count once."""

    parameters: int
    dense_parameters: int
    bytes: int  # parameters, and the indices of sparse layers
    dense_bytes: int
    sparse_share: float  # share of the dense twin's parameters that are weights of sparse and masked layers
    copy_bytes: int = 0  # of the dense copies that calls of these tokens keep beside ``bytes``
    masked: int = 0  # of the parameters, those that masks prune now, and that pack_ leaves out


@dataclass(repr=False)
class Report:
    """The layers of a model in order, its totals, and the whole model against its dense twin.

    Prints in lines of at most 100 columns: what was found in a sentence, the whole model, then a row for each
    group of equal sparse layers; other layers are counted. ``show`` prints it in colour. ``layers`` has every
    layer by itself.
    """

    layers: list[LayerReport]
    threads: int
    machine: str
    totals: Totals | None = None
    model: ModelReport | None = None
    batches: list[ModelReport] = field(default_factory=list)
    lost: float = 0.0  # share of the CPU time that other work took meanwhile
    #: What advise said of the same model, for the page; assign it.
    advice: Advice | None = None
    #: What is known of the quality, by stage: what ``evaluate`` of prune_ ("dense", "pruned", "exchanged")
    #: and of report ("now") returned, and what report was given.
    quality: dict[str, float] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether other work took so much of the CPU time that the times say little."""
        return bool(loud(self.lost))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: {"headline", "machine", "threads", "lost", "busy", "layers": [...],
        "totals", "model", "batches": [...], "quality", "advice"}."""
        return {
            "headline": self.headline,
            "machine": self.machine,
            "threads": self.threads,
            "lost": self.lost,
            "busy": self.busy,
            "layers": [layer.to_dict() for layer in self.layers],
            "totals": None if self.totals is None else asdict(self.totals),
            "model": None if self.model is None else self.model.to_dict(),
            "batches": [batch.to_dict() for batch in self.batches],
            "quality": self.quality,
            "advice": None if self.advice is None else self.advice.to_dict(),
        }

    @property
    def headline(self) -> str:
        """What was found, in one or two sentences."""
        from .words import headline  # which imports this module's classes

        return headline(self)

    def __str__(self) -> str:
        from .text import text  # which imports this module's classes

        return text(self)

    def __repr__(self) -> str:
        sparse = sum(layer.sparse for layer in self.layers)
        gains = {} if self.model is None else self.model.speedups
        words = [f"{direction} {gain:.2f}x" for direction, gain in gains.items()]
        return f"Report({', '.join([f'{sparse} of {len(self.layers)} layers sparse', *words])})"

    def show(self, file: TextIO | None = None) -> None:
        """Prints the report to a stream, by default stdout: in colour if it is a terminal, unless the
        environment has NO_COLOR."""
        from .text import on_terminal, text

        stream = sys.stdout if file is None else file
        if not hasattr(stream, "write"):
            raise Error("Report.show", "a stream to print to", repr(file), "save(path) writes a file")
        stream.write(text(self, colour=on_terminal(stream)) + "\n")

    def to_html(self, title: str | None = None) -> str:
        """Returns the report in HTML, with its bars and a picture of each kind of pattern: one section, or
        with ``title`` a whole page. It has no scripts and fetches nothing, fits screens from 360 pixels on,
        and follows a dark colour scheme."""
        from .page import fragment, page

        if title is None:
            return fragment(self)
        if not isinstance(title, str):
            raise Error("Report.to_html", "title to be a text", repr(title), 'pass title="My model"')
        return page(self, title)

    def save(self, path: str | os.PathLike[str], title: str = "Sparseloom report") -> None:
        """Writes the page to ``path`` and the plain data beside it, in a file with the ending .json. Raises
        Error where the folder cannot be written."""
        if not isinstance(path, (str, os.PathLike)):
            raise Error("Report.save", "a path", repr(path), 'call save("report.html")')
        page_path = Path(path)
        try:
            page_path.write_text(self.to_html(title), encoding="utf-8")
            data = json.dumps(self.to_dict(), indent=2, default=str)
            page_path.with_suffix(".json").write_text(data + "\n", encoding="utf-8")
        except OSError as error:
            raise Error(
                "Report.save", "a file that can be written", str(error), "pass another path"
            ) from error

    def to_dataframe(self) -> Any:
        """Returns a pandas.DataFrame with a row for each layer and measured direction, and one for each layer
        that was not measured. Raises Error where pandas is not installed."""
        return dataframe("Report", [row for layer in self.layers for row in layer.rows()])

    def _repr_html_(self) -> str:
        return self.to_html()


def dataframe(of: str, rows: list[dict[str, Any]]) -> Any:
    """Returns the rows as a pandas.DataFrame. Raises Error where pandas is not installed."""
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        got, remedy = "an environment without it", "pip install pandas, or take to_dict()"
        raise Error(f"{of}.to_dataframe", "the package pandas", got, remedy) from None
    return pandas.DataFrame(rows)


def speedups(entry: LayerReport | ModelReport) -> Times:
    """Returns dense over sparse, by direction, as the median of the rounds; empty where either was not
    measured."""
    if entry.times is None or entry.dense_times is None:
        return {}
    directions = [direction for direction in entry.times if direction in entry.dense_times]
    ratios, times, dense = entry.ratios, entry.times, entry.dense_times
    return {
        direction: ratios[direction].median if direction in ratios else dense[direction] / times[direction]
        for direction in directions
    }


def undecided(entry: LayerReport | ModelReport) -> list[str]:
    """Returns the directions in which neither side was shown to be faster."""
    return [direction for direction, ratio in entry.ratios.items() if ratio.shows_none]
