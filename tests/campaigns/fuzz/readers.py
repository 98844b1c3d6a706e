"""libFuzzer, by the package atheris, over what Python reads: safetensors files, ours and those of
compressed-tensors, Matrix Market files and recipe files. In a folder of its own:

    PYTHONPATH=ROOT/python:ROOT/tests python ROOT/tests/campaigns/fuzz/readers.py -max_total_time=600 corpus

An input's first byte names the reader; valid files begin the corpus. A file either is loaded, and its model
then runs, or gives our Error and leaves the model as it was."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import safetensors.torch
import torch

with atheris.instrument_imports(include=["sparseloom.io", "sparseloom.nn.held", "sparseloom.layouts"]):
    import sparseloom
    from sparseloom.io.foreign import matrix_market
    from sparseloom.prune import recipe_file

from campaigns import damage
from campaigns.file_kinds import FOREIGN, kind_of
from campaigns.files import entries, same

from sparseloom import Error
from sparseloom.io.model_file import checksum, file_bytes

#: Kinds of campaigns/file_kinds.py that are safetensors files, small.
_KINDS = ("blocks", "csr", "bitmap", "nm", "nmg", "semi24", "masked", "eight bits", "gru", "sparse-bitmask")
_ROOM = Path(tempfile.mkdtemp(prefix="fuzz-readers-", dir="/dev/shm"))


def _signed(data: bytes) -> bytes:
    """Returns a file whose header and tensors are those of ``data``, with the checksum that belongs to them;
    ``data`` itself where it has none."""
    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        tensors = safetensors.torch.load(data)
        metadata["sha256"] = checksum(tensors, metadata)
        return file_bytes(tensors, metadata)
    except Exception:  # whatever it is, the reader is to say so
        return data


def _model(name: str, data: bytes) -> None:
    """The input is the header's text and, behind a zero byte, the tensors: its size always fits."""
    kind = kind_of(name)
    header, _, tensors = data.partition(b"\0")
    header += b" " * (-len(header) % 8)
    file = len(header).to_bytes(8, "little") + header + tensors
    path = _ROOM / kind.name
    path.write_bytes(_signed(file) if kind.ours else file)
    model = kind.make()
    before, modules = entries(model), [type(each) for each in model.modules()]
    try:
        sparseloom.load(path, model)
    except Error:
        assert [type(each) for each in model.modules()] == modules and not same(before, model)
        return
    with torch.no_grad():
        model(kind.x)


def _header_first(data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size].rstrip() + b"\0" + data[8 + size :]


def _matrix(data: bytes) -> None:
    with contextlib.suppress(Error):
        weight = matrix_market.read(data, (5, 7))
        assert weight.shape == (5, 7) and weight.dtype == torch.float32


def _square(data: bytes) -> None:
    with contextlib.suppress(Error):
        assert matrix_market.read(data, (3, 3)).shape == (3, 3)


def _recipe(data: bytes) -> None:
    path = _ROOM / "recipe.cfg"
    path.write_bytes(data)
    kinds = {"model": str, "steps": int, "density": float, "quantize": bool}
    with contextlib.suppress(Error):
        assert set(recipe_file.section("fuzz", path, "prune", kinds, ["model"])) <= set(kinds)


_TEXTS: tuple[tuple[Callable[[bytes], None], bytes], ...] = (
    (_matrix, (FOREIGN / "weight.mtx").read_bytes()),
    (_square, b"%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 1.5D0\n3 1 -2e1\n"),
    (_square, b"%%MatrixMarket matrix array integer symmetric\n%\n3 3\n1\n2\n3\n4\n5\n6\n"),
    (_recipe, b"[prune]\nmodel = a:b\nsteps = 5\ndensity = 0.5\nquantize = yes\n"),
)


_ALL = len(_KINDS) + len(_TEXTS)


def one(data: bytes) -> None:
    if not data:
        return
    at = data[0] % _ALL
    if at < len(_KINDS):
        _model(_KINDS[at], data[1:])
    else:
        _TEXTS[at - len(_KINDS)][0](data[1:])


def _changed(data: bytes, most: int, seed: int) -> bytes:
    """Returns libFuzzer's change of an input, or, of a safetensors file, one that leaves it one: of a value
    in the header or in its metadata, or of the tensors' bytes."""
    rng = random.Random(seed)
    what = rng.randrange(4)
    header, _, tensors = data[1:].partition(b"\0")
    told: Any = None
    if what and data[0] % _ALL < len(_KINDS):
        with contextlib.suppress(ValueError, RecursionError):
            told = json.loads(header)
    if not isinstance(told, dict):
        return atheris.Mutate(data, most)
    metadata = told.get("__metadata__")
    if what == 1:
        head = data[: len(data) - len(tensors)]
        return head + atheris.Mutate(tensors, most - len(head)) if tensors else data
    if what == 2 and isinstance(metadata, dict) and metadata:
        key = rng.choice(sorted(metadata))
        metadata[key] = damage.of_text_of_json(str(metadata[key]), rng)
    else:
        told = damage.of_json(told, rng)
    changed = data[:1] + json.dumps(told).encode() + b"\0" + tensors
    return changed if len(changed) <= most else data


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("sparseloom").setLevel(logging.ERROR)  # load says what it changes
    torch.set_num_threads(1)
    corpus = next((Path(each) for each in sys.argv[1:] if not each.startswith("-")), None)
    if corpus is not None and not corpus.is_file():
        corpus.mkdir(parents=True, exist_ok=True)
        files = [_header_first(kind_of(name).data) for name in _KINDS] + [text for _, text in _TEXTS]
        for at, data in enumerate(files):
            (corpus / f"seed-{at}").write_bytes(bytes([at]) + data)
    atheris.Setup(sys.argv, one, custom_mutator=_changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
