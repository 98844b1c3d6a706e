"""Damaged files of every kind that load reads, and of those that the library keeps for itself. Each has to
give our Error and leave the model as it was, or load what the file says; never a crash, a hang or a model
that is loaded by half. A case is one file."""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import Error

from . import damage
from .child import require_none, trials
from .file_kinds import KINDS, Kind, kind_of
from .kept_files import KEPT

#: Damaged files of one seed, which one child reads: its start costs as much as some dozen files.
FILES = 200


def entries(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same(before: dict[str, Tensor], model: nn.Module) -> str:
    """Returns "" where the model's entries are bitwise as before, else the name of one that is not."""
    after = model.state_dict()
    if after.keys() != before.keys():
        return "the names of the entries"
    for name, tensor in before.items():
        now = after[name].detach()
        equal = now.dtype == tensor.dtype and now.shape == tensor.shape and now.device == tensor.device
        if not equal or not torch.equal(_bits(now), _bits(tensor)):
            return name
    return ""


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _one(kind: Kind, rng: random.Random, room: Path) -> str:
    """Loads one damaged file. Returns what is wrong."""
    hostile = kind.hostile is not None and rng.random() < 0.6
    data = kind.hostile(rng) if hostile and kind.hostile is not None else damage.of_bytes(kind.data, rng)
    path = room / kind.name
    path.write_bytes(data)
    sparsify = (kind.sparsify is not None and rng.random() < 0.5) or (not kind.ours and rng.random() < 0.3)
    model = kind.sparsify() if sparsify and kind.sparsify is not None else kind.make()
    before, modules = entries(model), [type(each) for each in model.modules()]
    target: Any = room if kind.folder is not None else path
    if kind.read is not None:
        try:
            target = kind.read(path)
        except Exception:  # another package's reader, which says so in its own words
            return ""
    try:
        sparseloom.load(target, model, sparsify=sparsify)
    except Error:
        if [type(each) for each in model.modules()] != modules:
            return "an Error, and another kind of module in the model"
        changed = same(before, model)
        return f"an Error, and {changed} changed" if changed else ""
    except MemoryError:
        return ""
    if kind.ours and not hostile and data != kind.data:
        whole = same(entries(kind.make()), model) if not sparsify else ""
        if whole and len(data) == len(kind.data):
            return f"a damaged file was loaded, with another {whole}"
    if kind.ours and hostile and not sparsify:
        told = safetensors.torch.load(data)
        state = model.state_dict()
        for key in told.keys() & state.keys():
            fits = told[key].shape == state[key].shape and told[key].dtype == state[key].dtype
            if fits and not torch.equal(_bits(told[key]), _bits(state[key])):
                return f"{key} is not what the file says"
    try:
        with torch.no_grad():
            model(kind.x)
    except Error as error:
        return f"a file was loaded whose model then says {error}"
    return ""


def case(seed: int) -> dict[str, int]:
    """Reads FILES damaged files of one kind."""
    warnings.simplefilter("ignore")
    logging.getLogger("sparseloom").setLevel(logging.ERROR)  # load says what it changes
    names = sorted({*KINDS, *KEPT})
    name = names[seed % len(names)]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        room = Path(folder)

        def rng(at: int) -> random.Random:
            return random.Random(f"{name} {seed} {at}")

        if name in KEPT:
            one, prepare = KEPT[name]
            prepare()
            require_none(name, trials(FILES, lambda at: one(rng(at), room)))
            return {name: FILES}
        kind = kind_of(name)
        if kind.folder is not None:
            for file in kind.folder.iterdir():
                shutil.copy(file, room)
        require_none(name, trials(FILES, lambda at: _one(kind, rng(at), room)))
    return {name: FILES}
