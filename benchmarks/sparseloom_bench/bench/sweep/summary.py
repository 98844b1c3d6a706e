"""Summarizes a sweep: figures of its records, in tables that the terminal and docs/sweep.md show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from .. import semi24
from ..cells import DENSE_COPY, DIRECTIONS
from . import beside_busy
from .record import WITHIN, Record, by_plan, portable

#: A problem counts as slower than dense when its speed-up is below SLOWER and it loses more than SLOWER_US
#: microseconds, which a clock or a launch may account for.
SLOWER, SLOWER_US = 0.97, 0.5
MUCH_SLOWER = 0.9
WORST = 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: The last token count of each group.
TOKEN_GROUPS = (8, 32, 128, 1024, 8192, 65536)
HEAD = ["", "problems", "below .97", "below .9", *(f"p{100 * at:.0f}" for at in QUANTILES)]
HEAD += ["of 1/density, p25", "median", "p75"]


def measured(records: Iterable[Record]) -> list[Record]:
    """Returns the records that have a figure that counts."""
    return [record for record in records if "error" not in record and "unmeasured" not in record]


def slower(record: Record, than: float = SLOWER) -> bool:
    """Returns whether ours is slower than dense, both by the speed-up and by microseconds."""
    return bool(record["speedup"] < than and record["us"]["median"] * (1 - record["speedup"]) > SLOWER_US)


def worst(records: Iterable[Record], many: int) -> list[Record]:
    """Returns the records that are slowest against dense, the worst first."""
    return sorted(measured(records), key=lambda record: float(record["speedup"]))[:many]


def quantile(values: list[float], at: float) -> float:
    """Interpolates linearly between the nearest two values."""
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / max(1, whole):.1f} %)"


def token_group(tokens: int) -> str:
    first = 1
    for last in TOKEN_GROUPS:
        if tokens <= last:
            return f"{first} to {last}"
        first = last + 1
    raise ValueError(tokens)


def block_group(rows: int, cols: int) -> str:
    return f"{rows}x{cols}" if rows == cols else "rectangular"


Key = Callable[[Record], str]


def taps_of(record: Record) -> str:
    return "x".join(map(str, record["window"]["kernel"]))


def steps_of(record: Record) -> str:
    """Returns the stride and the dilation, of the axes the largest."""
    stride, dilation = (max(record["window"][name]) for name in ("stride", "dilation"))
    return f"{stride}" + (", dilation above 1" if dilation > 1 else "")


GROUPS: dict[str, Key] = {
    "direction": lambda record: record["direction"],
    "mask": lambda record: record["pattern"],
    "tokens": lambda record: token_group(record["m"]),
    "block": lambda record: block_group(*record["block"]),
    "dtype": lambda record: record["dtype"],
}
#: Groups that 2:4 weights do not have.
OF_BLOCKS = ("mask", "block")
OF_CONVOLUTIONS: dict[str, Key] = {
    "images" if name == "tokens" else name: key for name, key in GROUPS.items()
} | {"taps": taps_of, "stride": steps_of}


OF_ATTENTION: dict[str, Key] = GROUPS | {
    "head size": lambda record: str(record["n"]),
    "heads for one of keys": lambda record: str(record["heads"] // record["kv_heads"]),
    "order": lambda record: "causal" if record["causal"] else "none",
    "lengths": lambda record: record["lengths"],
}


def groups_of(record: Record) -> dict[str, Key]:
    """Returns the groups that records of this one's family have."""
    if "kv_heads" in record:
        return OF_ATTENTION
    if "window" in record:
        return OF_CONVOLUTIONS
    packed = record["pattern"] == semi24.PATTERN
    return {name: key for name, key in GROUPS.items() if not (packed and name in OF_BLOCKS)}


def row(name: str, records: list[Record]) -> list[str]:
    """Returns HEAD's columns for some records, at least one."""
    speedups = [record["speedup"] for record in records]
    of_ideal = [record["speedup"] * record["stored"] for record in records]
    behind = (sum(slower(record, than) for record in records) for than in (SLOWER, MUCH_SLOWER))
    return [
        name,
        str(len(records)),
        *(share(count, len(records)) for count in behind),
        *(f"{quantile(speedups, at):.2f}" for at in QUANTILES),
        *(f"{quantile(of_ideal, at):.2f}" for at in (0.25, 0.5, 0.75)),
    ]


def rows(records: Iterable[Record]) -> list[list[str]]:
    """Returns one row for all records, then rows for each of their groups in a fixed order."""
    found = measured(records)
    if not found:
        return []
    lines = [row("all", found)]
    for name, key in groups_of(found[0]).items():
        grouped: dict[str, list[Record]] = {}
        for record in found:
            grouped.setdefault(key(record), []).append(record)
        lines += [row(f"{name} {value}", grouped[value]) for value in sorted(grouped, key=in_order)]
    return lines


def in_order(value: str) -> tuple[float, str]:
    """Sorts by the number that a group's name begins with; names without one come last."""
    digits = re.match(r"\d*", value)
    return (float(digits[0]) if digits and digits[0] else math.inf), value


def well_chosen(records: Iterable[Record]) -> tuple[int, int]:
    """Returns in how many problems the choice was within 5 % of the fastest, and how many had their
    candidates timed."""
    found = [record for record in measured(records) if "over_best" in record]
    return sum(record["over_best"] <= WITHIN for record in found), len(found)


def sentences(records: list[Record], dense_copy: bool = False) -> list[str]:
    """Returns sentences on what the table cannot say. ``dense_copy``: whether copies were allowed."""
    found = measured(records)
    copies = _of_copies(found) if dense_copy else []
    beside = [record for record in records if "beside_busy" in record]
    busy = _of_busy(beside) if beside else []
    return [*(_of_measured(found) if found else []), *copies, *busy, *_of_others(records)]


def _of_copies(found: list[Record]) -> list[str]:
    # Older sweeps allowed it in forward problems alone, and do not say so.
    taking = {record["direction"] for record in found if record["kernel"] == DENSE_COPY} | {"forward"}
    lines = []
    for direction in sorted(taking, key=DIRECTIONS.index):
        own = [record for record in found if record["direction"] == direction]
        taken = share(sum(record["kernel"] == DENSE_COPY for record in own), len(own))
        behind, far = (
            share(sum(slower(record, than) for record in own), len(own)) for than in (SLOWER, MUCH_SLOWER)
        )
        many = f"{len(own)} {direction} problems"
        lines.append(
            f"dense copy allowed, {many}: taken in {taken}; slower than dense: {behind}, below .9: {far}"
        )
    return lines


def _of_busy(records: list[Record]) -> list[str]:
    """Returns the verdict on ours beside busy processes, and the problems that lose more than is allowed."""
    timed = [record for record in records if beside_busy.counts(record)]
    found = {name: [float(each["beside_busy"][name]) for each in timed] for name in ("quotient", "of_sums")}
    what = "ours over dense beside one busy process a core, over the same without"
    lines = [f"{what}: {len(timed)} problems, not counted for other work: {len(records) - len(timed)}"]
    if not timed:
        return lines
    for name, words in (("quotient", "medians of the rounds"), ("of_sums", "whole times")):
        lines.append(
            f"{words}: " + ", ".join(f"p{100 * at:.0f} {quantile(found[name], at):.2f}" for at in QUANTILES)
        )
    lost = sorted(timed, key=lambda record: float(record["beside_busy"]["quotient"]), reverse=True)
    beyond = [record for record in lost if record["beside_busy"]["quotient"] > beside_busy.MOST]
    verdict = f"{'missed' if beyond else 'held'}, {share(len(beyond), len(timed))} beyond"
    last = f"at most {beside_busy.MOST} wanted of the medians: {verdict}"
    for record in beyond:
        ratios = "{quotient:.2f} ({quiet:.3f} quiet, {busy:.3f} busy)".format(**record["beside_busy"])
        last += f"\n  {title(record)}: {ratios}"
    return [*lines, last]


def _of_measured(found: list[Record]) -> list[str]:
    counts = (sum(slower(record, than) for record in found) for than in (SLOWER, MUCH_SLOWER))
    behind, far = (share(count, len(found)) for count in counts)
    median = quantile([record["speedup"] for record in found], 0.5)
    ratios = [each["predicted_us"] / each["us"]["median"] for each in found if each["predicted_us"]]
    predicted = ", ".join(f"p{100 * at:.0f} {quantile(ratios, at):.2f}" for at in QUANTILES if ratios)
    without = f"; {len(found) - len(ratios)} without a prediction" if len(ratios) < len(found) else ""
    lines = [
        f"slower than dense (by 3 % and .5 us): {behind} of {len(found)} problems, below .9: {far}",
        f"median speed-up {median:.3f}",
        f"predicted over measured time: {predicted or 'none'}{without}",
    ]
    good, many = well_chosen(found)
    if many:
        lost = 100 * (quantile([record["over_best"] for record in found if "over_best" in record], 0.95) - 1)
        chosen = f"the choice is within 5 % of the fastest in {share(good, many)} of {many} problems"
        lines.append(f"{chosen} with every candidate timed, {lost:.0f} % behind it at the 95th percentile")
    eager = [record["eager"] for record in found if "eager" in record]
    if eager:
        speedup, hosts = (quantile([each[name] for each in eager], 0.5) for name in ("speedup", "host_share"))
        most = sum(each["host_share"] > 0.5 for each in eager)
        launched = f"launched eagerly, back to back, in {len(eager)} problems: median speed-up {speedup:.2f}"
        lines.append(f"{launched}, the host's share of the time {100 * hosts:.0f} %, above half in {most}")
    return lines


def _of_others(records: list[Record]) -> list[str]:
    """Returns sentences that name wrong results and problems without a figure."""

    def listed(what: str, some: list[Record], why: Callable[[Record], str]) -> str:
        return f"{what}: {len(some)}" + "".join(f"\n  {title(record)}: {why(record)}" for record in some)

    wrong = [record for record in records if record.get("tile_excess", 0) > 1]
    unmeasured = [record for record in records if "unmeasured" in record]
    failed = [record for record in records if "error" in record]
    return [
        listed("beyond the tolerance of a tile", wrong, lambda record: f"{record['tile_excess']:.3g} of it"),
        listed("unmeasured", unmeasured, lambda record: str(record["unmeasured"])),
        listed("failed", failed, lambda record: str(record["error"])),
    ]


def title(record: Record) -> str:
    """Describes one problem in a few words."""
    size = "{m} x {k} x {n}".format(**record)
    if "window" in record:
        size = convolution(record)
    if "kv_heads" in record:
        size = attended(record)
    if record["pattern"] == semi24.PATTERN:
        return f"#{record['index']} {record['direction']} {record['dtype']} {size}, 2:4"
    block = "{} x {}".format(*record["block"])
    mask = f"density {record.get('stored', record['density']):.3f} {record['pattern']}"
    return f"#{record['index']} {record['direction']} {record['dtype']} {size}, blocks of {block}, {mask}"


def convolution(record: Record) -> str:
    """Describes the sizes of a convolution."""
    extents, steps = " x ".join(map(str, record["extents"])), record["window"]
    taps = f"{record['k']} to {record['n']} channels, {taps_of(record).replace('x', ' x ')} taps"
    more = [f"{name} {max(steps[name])}" for name in ("stride", "dilation") if max(steps[name]) > 1]
    return ", ".join([f"{record['m']} of {extents}", taps, *more])


def attended(record: Record) -> str:
    """Describes the sizes of an attention."""
    size = "{m} x {k} of {n}, {heads} heads on {kv_heads}".format(**record)
    more = [f"batch of {record['batch']}" + (", ragged" if record["lengths"] == "ragged" else "")]
    return ", ".join(
        [size, *(more if record["batch"] > 1 else []), *(["causal"] if record["causal"] else [])]
    )


def worst_texts(records: list[Record]) -> list[tuple[str, str]]:
    """Returns for each of the ten worst problems a title with the figures, and the plan's text."""
    found = []
    for record in worst(records, WORST):
        times = f"{record['us']['median']:.1f} us by {record['kernel']}, dense {record['dense_us']:.1f}"
        text = portable(str(record.get("plan", "")))
        found.append((f"{record['speedup']:.3f} of dense ({times}): {title(record)}", text))
    return found


def about(head: dict[str, Any]) -> str:
    """Says which sweep it was: seed, device, commit, date, versions."""
    families = {
        "semi24": "2:4 weights",
        "tiles": "tiles",
        "bsr_conv": "convolutions",
        "attention": "attention",
    }
    family = families.get(head.get("family", ""))
    kernel = f", {family}" if family else ""
    kernel += f", problems that {head['kernel']} takes" if head.get("kernel") else ""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(head.get("versions", {}).items()))
    chosen = head.get("choice", by_plan.__name__)  # the first records do not have it
    kernel += ", dense copies allowed" if head.get("dense_copy") else ""
    kernel += ", each timed beside busy processes too" if head.get("beside_busy") else ""
    kernel += "" if chosen == by_plan.__name__ else f", kernels chosen by {chosen}"
    return f"seed {head['seed']}{kernel}; {head['device']}; {commit(head)}, {head['date']}; {versions}"


def commit(head: dict[str, Any]) -> str:
    """Returns the short commit, and "-dirty" when the tree had changes of its own."""
    name, *changed = str(head["commit"]).split("-")
    return "-".join((f"commit {name[:12]}", *changed))
