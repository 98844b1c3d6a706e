"""The bytes of a model's file: a safetensors file whose metadata has the format's version, the sparse layers,
the entries that share memory, and a checksum over everything. docs/formats.md describes the format."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .. import ops
from ..errors import Error
from ..nn.held.fusions import NONE, Fusions
from .files import decoded

FORMAT = "sparseloom"
FORMAT_VERSION = 1

#: The remedy where a file is damaged.
REPLACE = "save the model again, or take an undamaged copy"


def file_of(
    tensors: dict[str, Tensor],
    layers: dict[str, Any],
    aliases: dict[str, str],
    fusions: Fusions = NONE,
    pruning: dict[str, Any] | None = None,
) -> bytes:
    """Returns the bytes of a file with these entries, the descriptions of sparse layers by name, further
    names of entries (``aliases``: name -> name in ``tensors``), the layers' fusions, and what prune_ noted
    about the model."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "writer": str(ops.info()["version"]),
        "layers": json.dumps(layers, sort_keys=True),
        "aliases": json.dumps(aliases, sort_keys=True),
    }
    metadata |= {key: json.dumps(names) for key, names in fusions.told().items()}
    if pruning is not None:
        metadata["pruning"] = json.dumps(pruning, sort_keys=True)
    metadata["sha256"] = checksum(tensors, metadata)
    return file_bytes(tensors, metadata)


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Returns the SHA-256 over the metadata and every tensor's name, dtype, shape and bytes, in the order of
    names."""
    digest = hashlib.sha256()
    hashed = {key: value for key, value in metadata.items() if key != "sha256"}
    digest.update(json.dumps(hashed, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Returns the bytes of the file, deterministic for the same contents: safetensors itself writes metadata
    in a random order."""
    try:
        data = safetensors.torch.save(tensors, metadata)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Error(
            "save", "tensors that safetensors can store", str(error), "convert them to a plain dtype first"
        ) from error
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def read_file(path: str | bytes | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any], Fusions]:
    """Returns all entries of a file (shared ones under each name), the descriptions of its sparse layers, and
    their fusions. Raises Error when the file is incomplete or not ours."""
    try:
        # We read the file once, so that we load the same bytes that we check, even if the file changes.
        data = Path(decoded("load", path)).read_bytes()
    except OSError as error:
        raise Error(
            "load", f"to read {os.fsdecode(path)}", error.strerror or str(error), "check the path"
        ) from error
    metadata = _metadata(data)
    try:
        tensors = safetensors.torch.load(data)
        if metadata.get("sha256") != checksum(tensors, metadata):
            raise Error("load", "contents that match the checksum", "a damaged file", REPLACE)
        layers, aliases = (json.loads(metadata[key]) for key in ("layers", "aliases"))
        fusions = {key: json.loads(metadata.get(key, "[]")) for key in Fusions._fields}
        _require_told(layers, aliases, tensors)
        entries = tensors | {alias: tensors[name] for alias, name in aliases.items()}
        return entries, layers, Fusions.read("load", fusions, REPLACE)
    except (Error, MemoryError):
        raise
    # safetensors, torch and json raise others for bytes that they cannot read.
    except Exception as error:
        raise Error(
            "load", "a complete safetensors file", f"{type(error).__name__}: {error}", REPLACE
        ) from error


def _require_told(layers: Any, aliases: Any, tensors: dict[str, Tensor]) -> None:
    """Raises Error unless ``layers`` describes each layer by an object, and ``aliases`` names entries."""
    for key, value in (("layers", layers), ("aliases", aliases)):
        if not isinstance(value, dict):
            raise Error("load", f"{key} as a JSON object", type(value).__name__, REPLACE)
    for name, described in layers.items():
        if not isinstance(described, dict):
            expected = f"a JSON object that describes {name or 'the layer'}"
            raise Error("load", expected, type(described).__name__, REPLACE)
    for alias, name in aliases.items():
        if not isinstance(name, str) or name not in tensors or alias in tensors:
            raise Error("load", f"an entry that {alias} shares its bytes with", repr(name), REPLACE)


def _metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise Error("load", "a safetensors file", f"{len(data)} bytes that end inside the header", REPLACE)
    try:
        header = json.loads(data[8 : 8 + size])
        metadata = header.get("__metadata__", {})
        ours = metadata.get("format") == FORMAT
    except (ValueError, AttributeError, RecursionError) as error:
        raise Error("load", "a safetensors file", f"a header that is not one ({error})", REPLACE) from error
    if not ours:
        remedy = (
            "this file is of another program: load it with safetensors.torch.load_file and load_state_dict"
        )
        raise Error("load", f'metadata with "format": "{FORMAT}"', "none", remedy)
    version = metadata.get("format_version")
    if not isinstance(version, str) or not version.isascii() or not version.isdecimal() or len(version) > 9:
        raise Error("load", "a format_version number", repr(version), REPLACE)
    if int(version) != FORMAT_VERSION:
        remedy = f"install a newer sparseloom than {ops.info()['version']}"
        raise Error("load", f"format version {FORMAT_VERSION}", version, remedy if int(version) else REPLACE)
    return dict(metadata)
