"""Written: whether what was made from some tensors is still theirs."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Written:
    """Some tensors, and how often torch had counted a write in place to each; of an inference tensor it
    counts none.

    It holds the tensors. By ``id`` a new tensor would be the old one wherever Python gives it the old one's
    address, as it does with the second tensor that replaces one.
    """

    def __init__(self, tensors: Iterable[Tensor | None] = ()) -> None:
        self._states = [(each, _count(each)) for each in tensors if each is not None]

    def still(self, tensors: Iterable[Tensor | None]) -> bool:
        """Returns whether these are the same tensors, in the same order, and none was written to since."""
        now = [each for each in tensors if each is not None]
        return len(now) == len(self._states) and all(
            each is was and _count(each) == count
            for each, (was, count) in zip(now, self._states, strict=True)
        )


def _count(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
