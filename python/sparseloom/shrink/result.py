"""Reports what shrink_ did: printable, and as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..patch.result import aligned


@dataclass(frozen=True)
class Width:
    """One width of the model. ``needed`` is the smallest that keeps what the part computes; ``after`` is
    larger where a config has one width for all layers. ``reason`` says why no more went; "" if nothing
    could."""

    name: str
    kind: str  # what is counted
    before: int
    needed: int
    after: int
    reason: str = ""


@dataclass(repr=False)
class Shrunk:
    """The widths of all parts that could shrink, the numbers that changed in transformers' configs as {key:
    (before, after)}, and the model's parameter counts; prints as a table."""

    widths: list[Width] = field(default_factory=list)
    settings: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    parameters: tuple[int, int] = (0, 0)  # of the model, before and after
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        count = sum(width.after < width.before for width in self.widths)
        before, after = self.parameters
        lines = [f"{count} of {len(self.widths)} widths shrank; {before:,} parameters became {after:,}"]
        lines += aligned([_row(width) for width in self.widths])
        lines += [f"config: {key} {old} -> {new}" for key, (old, new) in self.settings.items()]
        return "\n".join([*lines, *self.notes])


def _row(width: Width) -> list[str]:
    return [width.name, width.kind, f"{width.before} -> {width.after}", width.reason]
