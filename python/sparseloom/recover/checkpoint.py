"""Checkpoint: the state of a recovery in a file, so that a killed one goes on with the same bits."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Error
from ..nn.held.as_before import or_as_before

if TYPE_CHECKING:
    from .training import _Loop

_OP = "recover"
#: Seconds between two writes.
_EVERY = 60.0


class Checkpoint:
    """The file of a loop's state: values, optimizer, random numbers, steps, and the batches taken."""

    def __init__(self, path: Path, loop: _Loop, asked: str) -> None:
        self.path, self.loop, self.asked, self._saved = path, loop, asked, 0.0
        if not path.parent.is_dir():
            raise Error(_OP, f"a folder {path.parent}", "none", "make it first")

    def resume(self) -> None:
        """Takes up the state of the file, if there is one. Raises Error for a file of another recovery and
        for a damaged one, and leaves model and optimizer as they were."""
        if not self.path.is_file():
            return
        loop = self.loop
        remedy = "pass the model and arguments as before, or another file"
        random = torch.get_rng_state()
        try:
            with or_as_before(loop.model, [loop.optimizer], written=loop.model.modules()):
                self._take_up(self._read())
        except (Error, MemoryError):
            torch.set_rng_state(random)
            raise
        except Exception as error:  # what unpickling a damaged file raises is not listed anywhere
            torch.set_rng_state(random)
            raise Error(_OP, f"the state of this recovery in {self.path}", str(error), remedy) from error

    def _read(self) -> dict[str, Any]:
        with zipfile.ZipFile(self.path) as parts:  # torch.load compares no checksum
            if (damaged := parts.testzip()) is not None:
                raise ValueError(f"other bytes than were written in {damaged}")
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["asked"] != self.asked:
            remedy = "pass the model and arguments as before, or another file"
            raise Error(_OP, f"the state of this recovery in {self.path}", "one of another", remedy)
        return state

    def _take_up(self, state: dict[str, Any]) -> None:
        loop = self.loop
        loop.model.load_state_dict(state["model"])
        loop.optimizer.load_state_dict(state["optimizer"])
        if loop.method is not None:
            loop.method.load_state_dict(state["method"])
        loop.steps, loop.seconds = int(state["steps"]), float(state["seconds"])
        loop.batches.skip(int(state["taken"]))
        torch.set_rng_state(state["random"])
        if state["random_gpu"]:
            torch.cuda.set_rng_state_all(state["random_gpu"])
        self._saved = loop.seconds

    def save_if_due(self, seconds: float) -> None:
        """Writes the file once a minute; a file that is not whole never takes its place."""
        if seconds - self._saved < _EVERY:
            return
        self._saved, loop = seconds, self.loop
        state = {
            "asked": self.asked,
            "model": loop.model.state_dict(),
            "optimizer": loop.optimizer.state_dict(),
            "method": None if loop.method is None else loop.method.state_dict(),
            "steps": loop.steps,
            "seconds": seconds,
            "taken": loop.batches.taken,
            "random": torch.get_rng_state(),
            "random_gpu": torch.cuda.get_rng_state_all() if loop.batches.device.type == "cuda" else [],
        }
        part = self.path.with_name(self.path.name + ".part")
        torch.save(state, part)
        os.replace(part, self.path)

    def remove(self) -> None:
        """Removes the file of a recovery that came to its end."""
        self.path.unlink(missing_ok=True)
