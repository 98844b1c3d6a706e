"""Reads files and folders of other programs."""

from __future__ import annotations

import argparse
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ...errors import Error
from ..model_file import FORMAT
from . import matrix_market
from .dense import Dense, dense_entries

#: What torch.save writes, by the suffixes in use.
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_ZIP_OR_PICKLE = (b"PK\x03\x04", b"\x80")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: Where programs keep the state_dict among other things.
_INSIDE = ("state_dict", "model_state_dict", "model")
#: Ends of names that no ordinary state_dict has.
_MARKS = (".bitmask", "_orig", ".cols_a")
_LARGEST_HEADER = 100_000_000  # bytes, as in safetensors itself
_REPLACE = "take an undamaged copy"


def is_foreign(path: Path) -> bool:
    """Returns whether a path is a folder with weights, or a file of one of these programs. A safetensors file
    with neither our metadata nor entries of theirs is not."""
    try:
        if path.is_dir():
            return any(file.suffix in (".safetensors", *_PICKLED) for file in path.iterdir())
        if not path.is_file():  # a pipe can be read once
            return False
        with path.open("rb") as file:
            begin = file.read(8)
            if path.suffix == ".mtx" or (path.suffix in _PICKLED and begin.startswith(_ZIP_OR_PICKLE)):
                return True
            size = int.from_bytes(begin, "little")
            if size > min(_LARGEST_HEADER, os.fstat(file.fileno()).st_size):
                return False
            header = json.loads(file.read(size))
    except (OSError, ValueError, RecursionError):
        return False  # the reader of our files says what is wrong with it
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(metadata, dict) and metadata.get("format") == FORMAT:
        return False  # ours, of a model whose values torch prunes
    return isinstance(header, dict) and any(name.endswith(_MARKS) for name in header)


def read(path: Path, model: nn.Module) -> Dense:
    """Returns the dense entries of a file or a folder for a model. Raises Error for one that is incomplete,
    or that holds more than tensors."""
    if path.suffix == ".mtx":
        return _matrix(path, model)
    config: Any = {}
    if path.is_dir():
        config = _json(path / "config.json") if (path / "config.json").exists() else {}
        if not isinstance(config, Mapping):
            raise Error("load", "config.json as a JSON object", type(config).__name__, _REPLACE)
    state, arguments = dict[str, Any](), None
    for file in _files(path):
        tensors, arguments = _tensors(file)
        state |= tensors
    return dense_entries(state, config, str(path), arguments)


def _matrix(path: Path, model: nn.Module) -> Dense:
    """Reads the weight of a model that is one layer; its bias stays."""
    sizes = [getattr(model, side, None) for side in ("out_features", "in_features")]
    if not all(isinstance(size, int) for size in sizes):
        got, remedy = type(model).__name__, "pass the layer itself: load(path, model.get_submodule(name))"
        raise Error("load", "a linear layer for a Matrix Market file", got, remedy)
    shape = int(sizes[0] or 0), int(sizes[1] or 0)
    try:
        weight = matrix_market.read(path.read_bytes(), shape)
    except OSError as error:
        raise Error("load", f"to read {path}", error.strerror or str(error), "check the path") from error
    bias = getattr(model, "bias", None)
    return Dense({"weight": weight} | ({} if bias is None else {"bias": bias.detach()}), {})


def _files(path: Path) -> list[Path]:
    """Returns the files of the weights in a folder."""
    if not path.is_dir():
        return [path]
    for name in _WEIGHTS:
        if (path / name).exists():
            return [path / name]
        index = path / f"{name}.index.json"
        if index.exists():
            listed = _json(index)
            places = listed.get("weight_map") if isinstance(listed, Mapping) else None
            if not isinstance(places, Mapping) or any(not _is_plain(part) for part in places.values()):
                raise Error("load", f"{index.name} with a weight_map of files beside it", "others", _REPLACE)
            return [path / part for part in sorted(set(places.values()))]
    found = [file for suffix in (".safetensors", *_PICKLED) for file in sorted(path.glob(f"*{suffix}"))]
    if len(found) != 1:
        got = ", ".join(file.name for file in found[:5]) or "none"
        raise Error("load", f"one file of weights in {path}", got, "pass the path of the file itself")
    return found


def _is_plain(name: object) -> bool:
    """Returns whether a name is that of a file in the same folder."""
    return isinstance(name, str) and name == Path(name).name and name not in ("", ".", "..")


def _tensors(path: Path) -> tuple[dict[str, Any], Any]:
    """Returns the entries of a file, and the arguments that are saved with them, if any."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path), None
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Error("load", f"to read {path}", error.strerror or str(error), "check the path") from error
    except pickle.UnpicklingError as error:
        remedy = "load it with torch.load where its package is installed, and pass the state_dict as the path"
        raise Error("load", f"{path.name} to hold tensors alone", _first_line(error), remedy) from error
    except MemoryError:
        raise
    except Exception as error:  # what unpickling a damaged file raises is not listed anywhere
        raise Error("load", f"{path.name} to be complete", _first_line(error), _REPLACE) from error
    return state_in(loaded), loaded.get("args") if isinstance(loaded, Mapping) else None


def state_in(loaded: Any) -> dict[str, Any]:
    """Returns the state_dict in what torch.load returns. Raises Error if there is none."""
    if isinstance(loaded, Mapping):
        inner = next((loaded[key] for key in _INSIDE if isinstance(loaded.get(key), Mapping)), loaded)
        if inner and all(isinstance(name, str) for name in inner):
            return dict(inner)
    elif isinstance(loaded, Tensor):
        return {"weight": loaded}
    raise Error("load", "a state_dict", type(loaded).__name__, "save model.state_dict()")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise Error("load", f"{path.name} to be JSON", _first_line(error), _REPLACE) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
