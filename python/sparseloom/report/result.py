"""The results of report: printable, as HTML, and as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..pattern import Pattern
from ..timing.busy import loud
from ..timing.rounds import Spread

#: Median microseconds of one call: "forward" and "backward"; of whole models also "compiled" and "graph", the
#: forward pass in these ways.
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

    Prints in lines of at most 100 columns: the whole model first, then block-sparse layers, equal ones
    together; other layers are counted. ``layers`` has every layer by itself.
    """

    layers: list[LayerReport]
    threads: int
    machine: str
    totals: Totals | None = None
    model: ModelReport | None = None
    batches: list[ModelReport] = field(default_factory=list)
    lost: float = 0.0  # share of the CPU time that other work took meanwhile

    @property
    def busy(self) -> bool:
        """Whether other work took so much of the CPU time that the times say little."""
        return bool(loud(self.lost))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: {"machine", "threads", "lost", "busy", "layers": [...], "totals",
        "model", "batches": [...]}."""
        return {
            "machine": self.machine,
            "threads": self.threads,
            "lost": self.lost,
            "busy": self.busy,
            "layers": [layer.to_dict() for layer in self.layers],
            "totals": None if self.totals is None else asdict(self.totals),
            "model": None if self.model is None else self.model.to_dict(),
            "batches": [batch.to_dict() for batch in self.batches],
        }

    def __str__(self) -> str:
        from .text import text  # which imports this module's classes

        return text(self)

    def __repr__(self) -> str:
        sparse = sum(layer.sparse for layer in self.layers)
        gains = {} if self.model is None else self.model.speedups
        words = [f"{direction} {gain:.2f}x" for direction, gain in gains.items()]
        return f"Report({', '.join([f'{sparse} of {len(self.layers)} layers sparse', *words])})"

    def to_html(self) -> str:
        """Returns a self-contained fragment with the tables and a picture of every pattern; it has no scripts
        and fetches nothing."""
        from .page import fragment

        return fragment(self)

    def _repr_html_(self) -> str:
        return self.to_html()


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
