"""Recovery: what a call of ``recover`` did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Recovery:
    """What ``recover`` did; prints as a few lines.

    ``losses`` are means over the steps between two entries, by the step that ends them. ``before`` and
    ``after`` are what ``evaluate`` returned, None without one. ``masked`` are the layers that trained a dense
    weight under their mask and are sparse again.
    """

    steps: int = 0
    seconds: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    before: float | None = None
    after: float | None = None
    masked: list[str] = field(default_factory=list)
    ended_by: str = ""  # "steps", "minutes" or "data"
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"recovered in {self.steps} steps, {self.seconds:.1f} s; ended by {self.ended_by}"]
        if self.losses:
            first, last = next(iter(self.losses.values())), list(self.losses.values())[-1]
            lines[0] += f"; loss {first:.4g} -> {last:.4g}"
        if self.before is not None and self.after is not None:
            lines.append(f"evaluated {self.before:.6g} before, {self.after:.6g} after")
        if self.masked:
            layers = "1 layer" if len(self.masked) == 1 else f"{len(self.masked)} layers"
            lines.append(f"{layers} trained a dense weight under the mask, and are sparse again")
        return "\n".join([*lines, *self.notes])
