"""What permute_channels_ changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..patch.result import Skip, aligned


@dataclass(frozen=True)
class Reordered:
    """One layer whose inputs have another order. ``before`` and ``after`` are the shares of sum |w| that 2:4
    keeps; ``most`` is the share of the larger half of each row, which no order exceeds. With blocks they are
    those of the layer and its producers together, and ``most`` that of as many single elements."""

    consumer: str
    producers: tuple[str, ...]
    shape: tuple[int, int]
    heads: int
    before: float
    after: float
    most: float


@dataclass(repr=False)
class Permuted:
    """The layers whose inputs were reordered, and the chains that stayed with the reason; prints as a
    table."""

    changed: list[Reordered] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    kept: str = "2:4"  # what the shares are of

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        layers = "1 layer" if len(self.changed) == 1 else f"{len(self.changed)} layers"
        lines = [f"the inputs of {layers} were reordered; {self.kept} keeps of sum |w|:"]
        lines += aligned([
            [
                change.consumer,
                f"{change.shape[0]} x {change.shape[1]}",
                f"{change.heads} heads" if change.heads > 1 else "",
                f"{100 * change.before:.2f} -> {100 * change.after:.2f} %",
                f"of at most {100 * change.most:.2f} %",
                f"outputs of {', '.join(change.producers)}",
            ]
            for change in self.changed
        ])  # fmt: skip
        lines += [f"  skipped {skip.name}: {skip.reason}" for skip in self.skipped]
        return "\n".join(lines)
