"""Keeps what a flow has pruned in a folder, so that a killed one goes on where it was, to the same bits."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from ..errors import Error
from ..io.files import write_whole
from ..io.model_file import checksum
from ..recover.fingerprint import digest

_OP = "prune_"
#: The remedy for a damaged file.
_DELETE = "delete it: its stage runs again"


class Checkpoint:
    """A folder with a file for each finished stage (a block), which appears complete or not at all.

    ``key`` is the fingerprint of everything that decides the result; each file has that of the weights, too,
    that its stage began with. Raises Error for a folder of another run, and for a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self._folder = Path(folder)
        self._key = key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            got, remedy = f"{folder} ({error.strerror})", "choose a folder that may be written"
            raise Error(_OP, "a folder for the checkpoint", got, remedy) from error

    def also(self, part: object) -> None:
        """Makes ``part``, which was not known at first, decide as well."""
        self._key = digest([self._key, part])

    def load(self, stage: int, weights: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns the tensors and the facts of a finished stage, None if it is not finished."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if "sha256" not in metadata:
                raise ValueError("one without a checksum, as of an older version")
            if metadata["sha256"] != checksum(tensors, metadata):
                raise ValueError("other contents than were written")
            facts = json.loads(metadata["facts"])
        except MemoryError:
            raise
        except Exception as error:  # safetensors, torch and json raise others for bytes that they cannot read
            raise Error(_OP, f"a checkpoint in {path}", f"{error}", _DELETE) from error
        if metadata.get("key") != self._key or metadata.get("weights") != digest(weights):
            got = "one of another model, other data or other options"
            raise Error(_OP, f"a checkpoint of this run in {path}", got, "choose an empty folder")
        return tensors, facts

    def save(self, stage: int, weights: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Writes a finished stage. ``weights`` is the digest of those that it began with."""
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"key": self._key, "weights": weights, "facts": json.dumps(facts)}
        metadata["sha256"] = checksum(stored, metadata)
        write_whole(self._path(stage), safetensors.torch.save(stored, metadata))

    def _path(self, stage: int) -> Path:
        return self._folder / f"stage-{stage:05}.safetensors"
