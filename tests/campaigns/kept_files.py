"""Damaged files that the library keeps for itself: the machine's rates, and the checkpoints of prune_ and
recover. Rates are measured anew, of a file of any kind; a checkpoint is refused, or what it says is right."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from sparseloom import Error, Semi24, prune_, recover

from . import damage

#: Answers each folder on its standard input with what a process knows that starts with it as its cache: rates
#: are read once in a process.
_ASKED = """
import json, os, sys
from sparseloom import ops
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.environ["SPARSELOOM_CACHE"] = line[:-1]
        told = ops.info()
        print(json.dumps([told["rates"], told["rates_origin"]]), flush=True)
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        print(json.dumps([None, f"the process ended with {status}"]), flush=True)
"""


class _Processes:
    """Processes that start with a folder as their cache."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", _ASKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, folder: Path) -> tuple[dict[str, float] | None, str]:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(f"{folder}\n")
        self.child.stdin.flush()
        rates, origin = json.loads(self.child.stdout.readline())
        return rates, origin


@functools.cache
def _processes(of: int) -> _Processes:
    """``of``: this process, since a fork shares its parent's pipes."""
    return _Processes()


def _signed(text: str, rng: random.Random) -> str:
    """Returns a table with other rates or lines, and a sum that fits."""
    lines = text.splitlines()[:-1]
    at = rng.randrange(len(lines))
    name, _, value = lines[at].partition(" ")
    told = rng.choice(("nan", "inf", "-1", "1e400", "0x10", "1e17", "-0", "1e", "", value, "9" * 5000, "\0"))
    other = rng.choice(
        (f"{name} {told}", f"x {value}", name, lines[at] + "\r", lines[rng.randrange(len(lines))])
    )
    lines[at : at + rng.choice((0, 1, 1, 1))] = [other]
    signed = "".join(line + "\n" for line in lines)
    total = 0xCBF29CE484222325
    for byte in signed.encode():
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return f"{signed}sum {total:016x}\n"


def _put(path: Path, good: bytes, rng: random.Random) -> bool:
    """Puts something in the place of a good file. Returns whether it may be read, a well signed one."""
    kind = rng.randrange(10)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        target = path.with_name("elsewhere")
        if rng.random() < 0.5:
            target.write_bytes(good)
        path.symlink_to(target)
    elif kind == 3:
        with path.open("wb") as file:
            file.truncate(rng.choice((0, 1 << 16, 1 << 33)))
    elif kind == 4:
        path.write_bytes(good)
        path.chmod(rng.choice((0o666, 0o620, 0o602)))
    elif kind < 8:
        path.write_bytes(_signed(good.decode(), rng).encode())
        return True
    else:
        path.write_bytes(damage.of_bytes(good, rng))
    return False


def rates(rng: random.Random, room: Path) -> str:
    """A process starts with a damaged file of rates, and another one after it."""
    known = _processes(os.getpid())
    with tempfile.TemporaryDirectory(dir=room) as name:
        folder = Path(name)
        first, _ = known(folder)
        (path,) = folder.iterdir()
        good = path.read_bytes()
        path.unlink()
        signed = _put(path, good, rng)
        plain = path.is_file() and not path.is_symlink()
        unchanged = plain and path.stat().st_size == len(good) and path.read_bytes() == good
        got, origin = known(folder)
        if got is None or first is None or got.keys() != first.keys():
            return f"rates {got}: {origin}"
        if origin.startswith("read from") and not (signed or unchanged):
            return f"a damaged file was {origin}"
        for rate, value in got.items():
            measured = first[rate]
            if not math.isfinite(value) or value < 0 or (value > 0) != (measured > 0) or value > 1e18:
                return f"{rate} of {value}, where {measured} was measured; {origin}"
        if not path.is_dir() and not known(folder)[1].startswith("read from"):
            return "the file was not replaced by a whole one"
    return ""


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2)), nn.Linear(16, 4))


def _data() -> list[Tensor]:
    return [torch.randn(24, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]


def _prune(model: nn.Module, folder: Path) -> None:
    prune_(model, {".*": Semi24()}, data=_data(), checkpoint=folder, exchange=False, progress=False)


@functools.cache
def _pruned() -> tuple[dict[str, bytes], dict[str, Tensor]]:
    """Returns the files of a finished run, and the model's entries."""
    model = _net()
    with tempfile.TemporaryDirectory() as folder:
        _prune(model, Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}, model.state_dict()


def _rewritten(data: bytes, rng: random.Random) -> bytes:
    """Returns a safetensors file with other tensors or metadata."""
    size = int.from_bytes(data[:8], "little")
    tensors = safetensors.torch.load(data)
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    if rng.random() < 0.5:
        name = rng.choice(sorted(tensors))
        tensors[name] = damage.of_tensor(tensors[name], rng)
    else:
        metadata["facts"] = damage.of_text_of_json(metadata["facts"], rng)
    try:
        return safetensors.torch.save(tensors, metadata)
    except (safetensors.SafetensorError, ValueError, TypeError):
        return data[:-1]


def prune_checkpoint(rng: random.Random, room: Path) -> str:
    """A run of prune_ that finds a damaged stage."""
    from .files import entries, same

    files, finished = _pruned()
    folder = room / "stages"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    broken = rng.choice(sorted(files))
    for name, data in files.items():
        if name == broken:
            data = _rewritten(data, rng) if rng.random() < 0.5 else damage.of_bytes(data, rng)
        (folder / name).write_bytes(data)
    model = _net()
    before, modules = entries(model), [type(each) for each in model.modules()]
    try:
        _prune(model, folder)
    except Error:
        changed = same(before, model)
        if changed or [type(each) for each in model.modules()] != modules:
            return f"an Error, and {changed or 'another kind of module'} changed"
        return ""
    wrong = same({name: tensor.detach() for name, tensor in finished.items()}, model)
    return f"a damaged stage was taken, with another {wrong}" if wrong else ""


class _Stop(Exception):
    pass


def _recover(model: nn.Module, path: Path, stop: bool) -> None:
    seen = 0

    def loss(student: nn.Module, x: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        if stop and seen == 4:
            raise _Stop
        return student(x).square().mean()

    recover(model, loss, _data(), steps=6, checkpoint=path)


@functools.cache
def _recovering() -> bytes:
    """Returns the state of a recovery that was stopped."""
    state = importlib.import_module("sparseloom.recover.checkpoint")
    every, state._EVERY = state._EVERY, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        try:
            _recover(_net(), path, True)
        except _Stop:
            return path.read_bytes()
        finally:
            state._EVERY = every
    raise AssertionError("the recovery did not stop")


def recover_checkpoint(rng: random.Random, room: Path) -> str:
    """A recovery that finds a damaged state."""
    from .files import entries, same

    good, path = _recovering(), room / "state.pt"
    path.write_bytes(damage.of_bytes(good, rng))
    model, seed = _net(), torch.get_rng_state()
    before = entries(model)
    try:
        _recover(model, path, False)
    except Error:
        changed = same(before, model) or ("" if torch.equal(seed, torch.get_rng_state()) else "torch's seed")
        return f"an Error, and {changed} changed" if changed else ""
    finally:
        path.unlink(missing_ok=True)
    whole = _whole()
    wrong = same({name: tensor.detach() for name, tensor in whole.items()}, model)
    return f"a damaged state was taken, with another {wrong}" if wrong else ""


@functools.cache
def _whole() -> dict[str, Tensor]:
    model = _net()
    with tempfile.TemporaryDirectory() as folder:
        _recover(model, Path(folder) / "state.pt", False)
    return model.state_dict()


KEPT: dict[str, tuple[Callable[[random.Random, Path], str], Callable[[], object]]] = {
    "rates": (rates, lambda: None),
    "checkpoint of prune_": (prune_checkpoint, _pruned),
    "checkpoint of recover": (recover_checkpoint, lambda: (_recovering(), _whole())),
}
