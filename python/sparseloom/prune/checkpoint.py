"""Keeps what a flow has pruned in a folder, so that a killed one goes on where it was, to the same bits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ..errors import Error
from ..io.files import write_whole

_OP = "prune_"


class Checkpoint:
    """A folder with a file for each finished stage (a block), which appears complete or not at all.

    ``key`` is the fingerprint of everything that decides the result but the weights; each file has that of
    the weights that its stage began with. Raises Error for a folder of another run, and for a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self._folder = Path(folder)
        self._key = key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            got, remedy = f"{folder} ({error.strerror})", "choose a folder that may be written"
            raise Error(_OP, "a folder for the checkpoint", got, remedy) from error

    def load(self, stage: int, weights: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns the tensors and the facts of a finished stage, None if it is not finished."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            remedy = "delete it: its stage runs again"
            raise Error(_OP, f"a checkpoint in {path}", str(error), remedy) from error
        if metadata.get("key") != self._key or metadata.get("weights") != digest(weights):
            got = "one of another model, other data or other options"
            raise Error(_OP, f"a checkpoint of this run in {path}", got, "choose an empty folder")
        return tensors, json.loads(metadata["facts"])

    def save(self, stage: int, weights: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Writes a finished stage. ``weights`` is the digest of those that it began with."""
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"key": self._key, "weights": weights, "facts": json.dumps(facts)}
        write_whole(self._path(stage), safetensors.torch.save(stored, metadata))

    def _path(self, stage: int) -> Path:
        return self._folder / f"stage-{stage:05}.safetensors"


def digest(parts: Iterable[object]) -> str:
    """Returns a SHA-256 over tensors, by dtype, shape and bytes, and over the text of anything else."""
    summed = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            summed.update(f"{part.dtype} {list(part.shape)}".encode())
            plain = part.detach().cpu().contiguous().reshape(-1)
            summed.update(plain.view(torch.uint8).numpy().data)
        else:
            summed.update(repr(part).encode())
    return summed.hexdigest()


def digest_of_data(batches: Sequence[Any]) -> str:
    """Returns the digest of the batches' tensors and other leaves that print the same in every process."""
    leaves = []
    for batch in batches:
        leaves += [
            leaf if isinstance(leaf, (Tensor, int, float, str, bool)) else type(leaf).__name__
            for leaf in tree_flatten(batch)[0]
        ]
    return digest(leaves)
