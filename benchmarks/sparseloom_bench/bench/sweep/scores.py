"""Computes block magnitudes of the demo's own trained weights, of which the demo's masks keep the largest;
the weights are trained once, then cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from functools import cache
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sparseloom import ops
from sparseloom.errors import Error
from sparseloom.io.files import write_whole
from sparseloom.io.model_file import checksum

from ...demo.data import batch_offsets, load_text, windows
from ...demo.train import Settings, Trainer

#: The sweep trains the demo's dense model, twice as wide as its preset for CPUs so that a layer is worth a
#: kernel, for few steps: by then the largest fifth of the blocks is spread so unevenly that rows hold up to
#: three times the mean. (Twice as wide again, 100 steps cost four times as much and leave rows as even as
#: chance does.)
WIDTH, DEPTH, STEPS = 512, 2, 100
SETTINGS = Settings(steps=STEPS, width=WIDTH, layers=DEPTH, context=64)
#: Magnitudes are kept for cells of this side, 100 KB instead of 25 MB: every side of a block is a multiple of
#: it, and a block's l1 norm is the sum of its cells'.
CELL = 16
#: Layer -> (in features, out features).
LAYERS = {
    f"layers.{depth}.{name}": shape
    for depth in range(DEPTH)
    for name, shape in {
        "attention.qkv": (WIDTH, 3 * WIDTH),
        "attention.out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }.items()
}


def cache_folder() -> Path | None:
    """Returns the folder where the library keeps its rates, by the rules of runtime/cache_file.h; None where
    it keeps nothing."""
    own = os.environ.get("SPARSELOOM_CACHE")
    if own:
        return None if own == "off" else Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg, "sparseloom")
    return Path(os.environ["HOME"], ".cache", "sparseloom") if os.environ.get("HOME") else None


def demo_scores(layer: str, block: tuple[int, int]) -> Tensor:
    """Returns each block's sum of |w|: fp32 [block rows, block columns].

    Raises Error on a layer that the demo's model does not have.
    """
    cells = magnitudes().get(layer)
    if cells is None:
        raise Error(
            "bench sweep", f"a layer of the demo ({', '.join(LAYERS)})", repr(layer), "name one of them"
        )
    high, wide = block[0] // CELL, block[1] // CELL
    return cells.reshape(cells.shape[0] // high, high, cells.shape[1] // wide, wide).sum((1, 3))


def digest() -> str:
    """Returns 16 digits of the magnitudes' SHA-256: where they are the same, so are the demo's masks."""
    found = hashlib.sha256()
    for name, cells in sorted(magnitudes().items()):
        found.update(name.encode() + cells.numpy().tobytes())
    return found.hexdigest()[:16]


@cache
def magnitudes() -> dict[str, Tensor]:
    """Returns layer -> fp32 [out / CELL, in / CELL], sums of |w|, from the cache; else trains the model now
    and caches them."""
    key = hashlib.sha256(repr(SETTINGS).encode()).hexdigest()[:16]
    folder = cache_folder()
    path = folder / f"demo-scores-{key}.safetensors" if folder else None
    if path is not None and _own(path) and (kept := _read(path)) is not None:
        return kept
    made = train()
    if path is not None:
        with contextlib.suppress(
            OSError, Error
        ):  # when the folder cannot be written, each process trains for itself
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, safetensors.torch.save(made, {"sha256": checksum(made, {})}))
    return made


def _read(path: Path) -> dict[str, Tensor] | None:
    """Returns the magnitudes of a file, None of a damaged one, which is then replaced."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get("sha256")
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return None
    return found if told == checksum(found, {}) else None


def _own(path: Path) -> bool:
    """Returns whether it is a regular file of this user or of root, as the library's own cache asks."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0)


def train() -> dict[str, Tensor]:
    """Trains the demo's dense model on the CPU as the demo does, and returns the magnitudes of its layers."""
    text = load_text(None, SETTINGS.context + 1)
    trainer = Trainer("dense", SETTINGS)
    with torch.enable_grad():
        for offsets in batch_offsets(
            text.train, SETTINGS.steps, SETTINGS.batch, SETTINGS.context, SETTINGS.seed
        ):
            trainer.step(*windows(text.train, offsets, SETTINGS.context))
    weights = {name: trainer.model.get_parameter(f"{name}.weight").detach() for name in LAYERS}
    return {name: ops.call("block_scores", weight, CELL, CELL, "l1") for name, weight in weights.items()}
