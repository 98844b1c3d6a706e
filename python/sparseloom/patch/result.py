"""Reports what sparsify_ and densify_ did: printable, and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from ..errors import Error, MissingAttribute

if TYPE_CHECKING:
    from ..sparsify import Run

_NUMBER = re.compile(r"(?<![^.])\d+(?=[. ])")  # a number that is a whole part of a module's name


_IN_PLACE = "sparsify_ changes the model in place: call model(x), and keep what it returns for its report"


@dataclass(frozen=True)
class Change:
    """One layer that changed. ``names`` are all its names in the model; ``parameters`` are its counts
    (before, after)."""

    names: tuple[str, ...]
    kind: str
    shape: tuple[int, int]  # out features, in features
    block: tuple[int, int] | None  # None: the weight lay in another layout
    density: float
    blocks: int  # stored blocks; 0 without
    parameters: tuple[int, int]
    layout: str = "bsr"  # of the sparse weight
    #: The sum of |w| over the stored elements, divided by that of the dense weight; None if it was not
    #: computed (a weight without values, or with NaN or Inf; a layer from a file, or one that became dense).
    kept: float | None = None
    zero_blocks: int = 0  # stored blocks that were all zero in the dense weight
    activation: str = ""  # the model's activation that the layer applies now
    unfused: str = ""  # why the activation after the layer was not fused; "" if none follows
    merged: tuple[str, ...] = ()  # the other layers in the same merged product


@dataclass(frozen=True)
class Skip:
    """One layer that stayed as it was, and why."""

    name: str
    kind: str
    reason: str


@dataclass(repr=False)
class Patched:
    """The changed layers, the skipped ones with their reasons, and the model's parameter counts; prints as a
    table."""

    changed: list[Change] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    parameters: tuple[int, int] = (0, 0)  # of the model, before and after
    became: str = "block-sparse"
    notes: list[str] = field(default_factory=list)
    run: Run | None = None  # the run of the recipes' methods

    @property
    def method(self) -> Run:
        """The run of the recipes' methods. Raises Error if no recipe has one."""
        if self.run is None:
            remedy = "pass BlockSparse(method=...)"
            raise Error("sparsify_", "a pattern with a method", "none", remedy)
        return self.run

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Raises Error: the model that was passed has changed, and is called as before."""
        raise Error("sparsify_", "a call of the model", "one of what sparsify_ returned", _IN_PLACE)

    def __getattr__(self, name: str) -> NoReturn:
        """Raises Error for what a model would have, such as ``parameters``."""
        if not name.startswith("_") and hasattr(nn.Module, name):
            got = f"{name} of what sparsify_ returned"
            raise MissingAttribute("sparsify_", "the model itself", got, _IN_PLACE)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        data = asdict(replace(self, run=None))
        del data["run"]
        return data

    def __repr__(self) -> str:
        # one line, because sparsify_ has already printed the table when a notebook shows this
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        layers = "1 layer" if len(self.changed) == 1 else f"{len(self.changed)} layers"
        before, after = self.parameters
        counts = f"{before:,} parameters" + ("" if before == after else f" became {after:,}")
        lines = [f"{layers} became {self.became}; {counts}"]
        if not self.changed and self.notes:  # methods ended where nothing had to be exchanged
            return "\n".join([f"{self.notes[0]}; {counts}", *self.notes[1:]])
        lines += aligned([_row(change) for change in self.changed])
        reasons = dict.fromkeys(skip.reason for skip in self.skipped)
        if reasons:
            lines.append(f"skipped {len(self.skipped)}:")
        for reason in reasons:
            names = folded([f"{skip.name} ({skip.kind})" for skip in self.skipped if skip.reason == reason])
            lines.append(f"  {reason}: {', '.join(names)}")
        for reason in dict.fromkeys(change.unfused for change in self.changed if change.unfused):
            names = folded([each.names[0] for each in self.changed if each.unfused == reason])
            lines.append(f"activation not fused, {reason}: {', '.join(names)}")
        return "\n".join([*lines, *self.notes])


def _row(change: Change) -> list[str]:
    shared = f" (shared as {', '.join(change.names[1:])})" if len(change.names) > 1 else ""
    (rows, cols), block, (before, after) = change.shape, change.block, change.parameters
    return [
        change.names[0] + shared,
        change.kind,
        f"{rows} x {cols}",
        f"block {block[0]} x {block[1]}" if block else f"layout {change.layout}",
        f"{change.blocks} blocks" + (f" ({change.zero_blocks} zero)" if change.zero_blocks else "")
        if block
        else "",
        f"density {change.density:.3g}",
        f"{before:,} -> {after:,}",
        "" if change.kept is None else f"keeps {_percent(change.kept)} of sum |w|",
        f"{change.activation} fused" if change.activation else "",
        f"one product with {', '.join(change.merged)}" if change.merged else "",
    ]


def _percent(share: float) -> str:
    """Returns a share in percent. A share below 1 is never shown as 100 %."""
    percent = f"{share:.1%}".replace("%", " %")
    return "above 99.9 %" if percent == "100.0 %" and share < 1 else percent


def folded(names: list[str]) -> list[str]:
    """Folds three names or more that differ in one number into one: layer.0-5.dense, layer.0,2,5.dense. The
    list of a deep model would be unreadable otherwise."""
    groups: dict[str, list[int | None]] = {}
    for name in names:
        numbers_in = _NUMBER.findall(name)
        key = _NUMBER.sub("{}", name) if len(numbers_in) == 1 and "{" not in name else name
        groups.setdefault(key, []).append(int(numbers_in[0]) if key != name else None)
    folded = []
    for key, members in groups.items():
        numbers = sorted(number for number in members if number is not None)
        if len(numbers) < 3:
            folded += [key.format(number) for number in numbers] if numbers else [key] * len(members)
        elif numbers[-1] - numbers[0] == len(numbers) - 1:
            folded.append(key.format(f"{numbers[0]}-{numbers[-1]}"))
        else:
            folded.append(key.format(",".join(map(str, numbers))))
    return folded


def aligned(rows: Iterable[list[str]]) -> list[str]:
    """Returns rows of cells as lines of a table."""
    table = list(rows)
    if not table:
        return []
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
