"""What `sparseloom experiment lm` has to show: the means of a folder's outcomes, the search, and its bars."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparseloom.errors import Error

from . import lm_speed, runs
from .lm import PLAN
from .lm_arms import ARMS, average_share
from .runs import SEEDS, spread

Outcome = Mapping[str, Any]
#: How much longer than dense's a step of equal time may be, and how far parameters may differ.
TIME, PARAMETERS = 1.05, 0.02
#: Per cent below dense that the best arm is to lie at equal time and at equal parameters; what must be is
#: first, then the goal.
AT_TIME, AT_PARAMETERS = (0.5, 1.5), (1.0, 2.0)
#: Bits below dense that gradual pruning is meant to lie, and the least seconds of a run.
GRADUAL, SECONDS = 0.01, 360.0


class Row(NamedTuple):
    """The outcomes of one arm that count, what its search had, and its milliseconds a step alone."""

    searches: list[Outcome]
    finals: list[Outcome]
    ms: float | None

    @property
    def bits(self) -> tuple[float, float]:
        """Mean and deviation over seeds, of the half of the held-out windows that judges."""
        return spread([math.inf if each["test"] is None else each["test"] for each in self.finals])

    @property
    def validation(self) -> float:
        """The mean of the half that chooses."""
        return statistics.mean(math.inf if e["validation"] is None else e["validation"] for e in self.finals)


Record = dict[str, Row]


class Bar(NamedTuple):
    """One thing to show; ``met`` is None where arms are missing."""

    text: str
    value: str
    met: bool | None


def read(folder: Path) -> Record:
    """Returns the arms of a folder that have seeds, dense first. Raises Error where dense has none, where two
    outcomes had other settings, and where seeds of an arm had other sizes."""
    times, record = lm_speed.milliseconds(folder), {}
    for arm, mine in runs.read(PLAN, folder).items():
        row = Row([e for e in mine if e["searching"]], list(runs.counted(PLAN, mine)), times.get(arm))
        if len({json.dumps(each["shape"]) for each in row.finals}) > 1:
            remedy = "delete those of the size that was not fitted"
            raise Error(PLAN.op, f"seeds of {arm} of one size", "two", remedy)
        if row.finals:
            record[arm] = row
    if "dense" not in record:
        raise Error(PLAN.op, "seeds of the arm dense", f"none in {folder}", "train it with --arms dense")
    return record


def parameters(arm: str, row: Row) -> float:
    """Returns the parameters of an arm, on average over the steps."""
    width, depth, _, hidden, _ = row.finals[0]["shape"]
    how, found = ARMS[arm], float(row.finals[0]["parameters"])
    for density, count in ((how.mlp, 3 * width * hidden), (how.attention, 4 * width**2)):
        if density < 1:
            last = 1.0 if how.method == "tail" else density
            found += depth * count * (average_share(how, density) - last)
    return found


def below(record: Record, arm: str) -> float:
    """Returns by how many per cent an arm's bits lie below dense's."""
    return 100 * (1 - record[arm].bits[0] / record["dense"].bits[0])


def _best(record: Record, arms: Sequence[str], what: str, limits: tuple[float, float]) -> Iterator[Bar]:
    best = min(arms, key=lambda arm: record[arm].validation, default=None)
    for word, limit in zip(("must", "goal"), limits, strict=True):
        text = f"best arm at dense's {what}: {limit} % below dense ({word})"
        if best is None:
            yield Bar(text, "not run", None)
        else:
            yield Bar(text, f"{best}: {below(record, best):+.2f} %", below(record, best) >= limit)


def bars(record: Record) -> Iterator[Bar]:
    """Yields what is to be shown."""
    dense = record["dense"]
    others = [arm for arm in record if arm != "dense"]
    # a step of the arm with a dense tail was timed while it is sparse
    timed = [arm for arm in others if dense.ms and ARMS[arm].method != "tail"]
    as_long = [arm for arm in timed if (record[arm].ms or math.inf) <= TIME * (dense.ms or 0.0)]
    size = parameters("dense", dense)
    as_many = [arm for arm in others if abs(parameters(arm, record[arm]) / size - 1) <= PARAMETERS]
    yield from _best(record, as_long, "time a step", AT_TIME)
    yield from _best(record, as_many, "parameters", AT_PARAMETERS)
    pruned = [arm for arm in as_many if ARMS[arm].method == "gradual"]
    gradual = min(pruned, key=lambda arm: record[arm].validation, default="gradual60")
    for text, one, other, gap in (
        (f"{gradual} not above dense (must)", gradual, "dense", 0.0),
        (f"{gradual} {GRADUAL} bits below dense (goal)", gradual, "dense", GRADUAL),
        ("RigL with SMET's rules not above SET", "mlp25-rigl", "mlp25-set", 0.0),
        ("RigL with SMET's rules not above static", "mlp25-rigl", "mlp25", 0.0),
    ):
        if one in record and other in record:
            lead = record[other].bits[0] - record[one].bits[0]
            yield Bar(text, f"{lead:+.4f} bits", lead >= gap)
        else:
            yield Bar(text, "not run", None)
    least = min(len(row.finals) for row in record.values())
    yield Bar(f"{SEEDS} seeds of each arm", str(least), least >= SEEDS)
    shortest = min(each["seconds"] for row in record.values() for each in row.finals)
    text = f"a run takes {SECONDS:.0f} s at least, beside others"
    yield Bar(text, f"{shortest:.0f} s", shortest >= SECONDS)


def rows(record: Record) -> list[list[str]]:
    """Returns the cells of the table, its heads first."""
    found = [
        ["arm", "", "width x depth, hidden", "parameters", "ms a step", "of dense's", "rate", "seeds",
         "bits a byte", "below dense"]
    ]  # fmt: skip
    whole = record["dense"].ms
    for arm, row in record.items():
        (mean, deviation), first = row.bits, row.finals[0]
        width, depth, _, hidden, _ = first["shape"]
        sizes = f"{width} x {depth}, {hidden}", f"{parameters(arm, row) / 1e6:.1f} M"
        ms = ["", ""] if row.ms is None or whole is None else [f"{row.ms:.2f}", f"{row.ms / whole:.2f}"]
        found.append(
            [
                arm, ARMS[arm].text, *sizes, *ms,
                f"{first['rate']:g}", str(len(row.finals)), f"{mean:.4f} ± {deviation:.4f}",
                f"{below(record, arm):+.2f} %",
            ]
        )  # fmt: skip
    return found


def search_rows(record: Record) -> list[list[str]]:
    """Returns the cells of the search's table, its heads first; a chosen rate at an end says so."""
    found = [["arm", *(f"{each:g}" for each in PLAN.rates), "chosen"]]
    for arm, row in record.items():
        by_rate = {each["rate"]: each["validation"] for each in row.searches}
        cells = ["none" if by_rate.get(e) is None else f"{by_rate[e]:.4f}" for e in PLAN.rates]
        chosen = row.finals[0]["rate"]
        at_end = chosen in (PLAN.rates[0], PLAN.rates[-1])
        found.append([arm, *cells, f"{chosen:g}" + (", an end of the range" if at_end else "")])
    return found


def _searched(record: Record) -> str:
    return " or ".join(sorted({str(each["steps"]) for row in record.values() for each in row.searches}))


def introduction(record: Record) -> str:
    """Returns what was done, in words."""
    first = record["dense"].finals[0]
    setting = first["setting"]
    devices = sorted({each["device"] for row in record.values() for each in row.finals})
    return (
        "Byte-level decoders (RoPE, RMSNorm, SwiGLU) on all texts, one document in 20 held out by hash; "
        f"{setting['steps']} steps of {setting['batch']} windows of {first['shape'][4]} bytes, blocks of "
        f"{setting['block']}, bf16, on {' and '.join(devices)}. Parameters are means over the steps; "
        "milliseconds are those of a step alone. Half of the held-out windows chose rates and arms, the "
        "other half judged."
    )


def table(record: Record) -> str:
    """Returns the means, the search and the bars as tables in Markdown."""
    words = {None: "not run", True: "met", False: "**missed**"}
    verdicts = [["bar", "measured", ""], *([bar.text, bar.value, words[bar.met]] for bar in bars(record))]
    lines = ["# sparseloom experiment lm", "", introduction(record), "", *markdown(rows(record)), ""]
    lines += [
        *markdown(verdicts),
        "",
        f"Bits of the half that chooses, after {_searched(record)} steps, by rate:",
        "",
    ]
    return "\n".join([*lines, *markdown(search_rows(record)), ""])


def markdown(cells: list[list[str]]) -> list[str]:
    """Returns the lines of a table whose first row are its heads."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|---" * len(cells[0]) + "|", *lines[1:]]
