"""Checkpoints in files of a bounded size: many places that keep files take small ones alone."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

#: Bytes of a file, at most.
LARGEST = 15 * 2**20


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a state as ``path``, which names its parts and their SHA-256, and the parts beside it. A stop in
    between leaves the checkpoint before whole: ``path`` is replaced last."""
    written = io.BytesIO()
    torch.save(state, written)
    content = written.getvalue()
    name = hashlib.sha256(content).hexdigest()
    parts = [f"{path.name}.{name[:8]}.{number}" for number in range(-(-len(content) // LARGEST))]
    before = _parts(path)
    for number, part in enumerate(parts):
        write_whole(path.with_name(part), content[number * LARGEST : (number + 1) * LARGEST])
    write_whole(path, json.dumps({"parts": parts, "sha256": name}).encode())
    for part in set(before) - set(parts):
        path.with_name(part).unlink(missing_ok=True)


def load(op: str, path: Path, device: torch.device | str) -> dict[str, Any]:
    """Returns a state. Raises Error where a part is missing or another one."""
    try:
        content = b"".join(path.with_name(name).read_bytes() for name in _parts(path))
        whole = hashlib.sha256(content).hexdigest() == digest(path)
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise Error(op, "a whole checkpoint", f"{path}, which cannot be read", "delete it, and begin again")
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return state


def digest(path: Path) -> str:
    """Returns the SHA-256 of a checkpoint that ``load`` has read."""
    return str(json.loads(path.read_text())["sha256"])


def remove(path: Path) -> None:
    """Removes a checkpoint, if there is one."""
    before = _parts(path)
    path.unlink(missing_ok=True)
    for name in before:
        path.with_name(name).unlink(missing_ok=True)


def _parts(path: Path) -> list[str]:
    """Returns the names of the parts of a checkpoint, none where it is missing or damaged."""
    try:
        return [str(name) for name in json.loads(path.read_text())["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
