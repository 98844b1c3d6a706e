"""Damaged files of every kind that load reads. Each has to give our Error and leave the model as it was, or
load what the file says; never a crash, a hang or a model that is loaded by half. A case is one file."""

from __future__ import annotations

import copy
import functools
import io
import json
import logging
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, sparsify_
from sparseloom import nn as snn
from sparseloom.io.model_file import checksum, file_bytes

from . import damage
from .child import require_none, trials

FOREIGN = Path(__file__).parents[1] / "python" / "foreign"
#: Damaged files of one seed, which one child reads.
FILES = 200


@dataclass
class Kind:
    """A kind of file: the model to load it into, an input of it, and the file's bytes and name. ``folder``:
    what lies beside the file, in a folder that is loaded as a whole. ``ours``: with a checksum, which a
    hostile writer computes anew. ``sparsify``: the dense model that becomes sparse as the file says."""

    make: Callable[[], nn.Module]
    x: Tensor
    data: bytes
    name: str = "model.safetensors"
    folder: Path | None = None
    ours: bool = False
    sparsify: Callable[[], nn.Module] | None = None


def _ours(model: nn.Module, x: Tensor, dense: Callable[[], nn.Module] | None = None) -> Kind:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sparseloom.save(model, path)
        return Kind(lambda: copy.deepcopy(model), x, path.read_bytes(), ours=True, sparsify=dense)


def _layout(layout: str, **options: int) -> Kind:
    weight = torch.randn(32, 64) * (torch.rand(32, 64) < 0.5)
    if layout == "semi24":
        layer: nn.Module = snn.Semi24Linear.from_dense(_linear(weight), prune="magnitude")
    else:
        layer = snn.SparseLinear.from_dense(weight, layout, **options)
    dense = functools.partial(
        lambda: nn.Sequential(nn.Linear(64, 32, bias="bias" in dict(layer.named_parameters())))
    )
    return _ours(nn.Sequential(layer), torch.randn(3, 64), dense)


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight)
    return made


def _patched() -> Kind:
    def dense() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 72), nn.ReLU(), nn.Linear(72, 64), nn.ReLU(), nn.Linear(64, 8))

    model = dense()
    sparsify_(model, {"0": BlockSparse(8, 0.4), "2": Semi24(prune="magnitude")})
    return _ours(model, torch.randn(3, 64), dense)


def _foreign(name: str, make: Callable[[], nn.Module], x: Tensor) -> Kind:
    path = FOREIGN / name
    if path.is_dir():
        inside = next(f for f in sorted(path.iterdir()) if f.suffix in (".safetensors", ".pth"))
        return Kind(make, x, inside.read_bytes(), inside.name, path)
    return Kind(make, x, path.read_bytes(), path.name)


def _pickled(state: dict[str, Tensor], make: Callable[[], nn.Module], x: Tensor) -> Kind:
    file = io.BytesIO()
    torch.save(state, file)
    return Kind(make, x, file.getvalue(), "model.pth")


def _pruned() -> Kind:
    masked = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8))
    for i in (0, 2):
        prune.l1_unstructured(masked[i], "weight", 0.5)
    return _pickled(
        masked.state_dict(),
        lambda: nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8)),
        torch.randn(3, 20),
    )


def _bsr_of_torch() -> Kind:
    weight = torch.randn(32, 64) * torch.rand(2, 4).lt(0.5).repeat_interleave(16, 0).repeat_interleave(16, 1)
    return _pickled(
        {"0.weight": weight.to_sparse_bsr((16, 16))},
        lambda: nn.Sequential(nn.Linear(64, 32, bias=False)),
        torch.randn(3, 64),
    )


def _half_net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).half()


def _eight_bits() -> nn.Module:
    made = snn.QuantizedBlockSparseLinear.from_sparse(snn.BlockSparseLinear(64, 40, density=0.5, block=8))
    made.kernel = "reference"  # where no kernel of int8 is fast
    return made


def _corpus() -> nn.Module:
    from make_corpus import model

    return model()


KINDS: dict[str, Callable[[], Kind]] = {
    "corpus": lambda: _ours(_corpus(), torch.randn(3, 20)),
    "patched": _patched,
    "csr": lambda: _layout("csr"),
    "coo": lambda: _layout("coo"),
    "nm": lambda: _layout("nm", n=2, m=8),
    "nmg": lambda: _layout("nmg", n=1, m=8, g=2),
    "semi24": lambda: _layout("semi24"),
    "conv": lambda: _ours(snn.BlockSparseConv2d(24, 20, 3, density=0.5, block=8), torch.randn(1, 24, 5, 5)),
    "lstm": lambda: _ours(snn.BlockSparseLSTM(16, 16, density=0.5, block=8), torch.randn(3, 2, 16)),
    "eight bits": lambda: _ours(_eight_bits(), torch.randn(3, 64)),
    "sparse-bitmask": lambda: _foreign("sparse-bitmask", _half_net, torch.randn(3, 20).half()),
    "sparse-24-bitmask": lambda: _foreign("sparse-24-bitmask", _half_net, torch.randn(3, 20).half()),
    "supermask": lambda: _foreign(
        "supermask", lambda: nn.Sequential(nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 4)), torch.randn(3, 24)
    ),
    "matrix market": lambda: _foreign("weight.mtx", lambda: nn.Linear(7, 5), torch.randn(3, 7)),
    "masks of torch": _pruned,
    "bsr of torch": _bsr_of_torch,
}  # fmt: skip


@functools.cache
def kind_of(name: str) -> Kind:
    torch.manual_seed(0)
    return KINDS[name]()


def _signed(kind: Kind, rng: random.Random) -> bytes:
    """Returns the file with wrong contents and a checksum that fits them."""
    size = int.from_bytes(kind.data[:8], "little")
    tensors = safetensors.torch.load(kind.data)
    metadata = json.loads(kind.data[8 : 8 + size])["__metadata__"]
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.6 and tensors:
            name = rng.choice(sorted(tensors))
            what = rng.random()
            if what < 0.85:
                tensors[name] = damage.of_tensor(tensors[name], rng)
            elif what < 0.9:
                del tensors[name]
            else:
                tensors[rng.choice(("x", name + ".values", name.replace("0", "1")))] = tensors[name].clone()
        else:
            key = rng.choice(sorted(metadata))
            metadata[key] = damage.of_text_of_json(metadata[key], rng)
    try:
        metadata["sha256"] = checksum(tensors, metadata)
        return file_bytes(tensors, metadata)
    except (Error, ValueError, TypeError):  # not even a file: surrogates, say
        return kind.data[:-1]


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


def _one(kind: Kind, name: str, seed: int, room: Path) -> str:
    """Loads one damaged file. Returns what is wrong."""
    rng = random.Random(seed)
    signed = kind.ours and rng.random() < 0.6
    data = _signed(kind, rng) if signed else damage.of_bytes(kind.data, rng)
    path = room / kind.name
    path.write_bytes(data)
    sparsify = (kind.sparsify is not None and rng.random() < 0.5) or (not kind.ours and rng.random() < 0.3)
    model = kind.sparsify() if sparsify and kind.sparsify is not None else kind.make()
    before, modules = entries(model), [type(each) for each in model.modules()]
    target = room if kind.folder is not None else path
    try:
        sparseloom.load(target, model, sparsify=sparsify)
    except Error:
        if [type(each) for each in model.modules()] != modules:
            return "an Error, and another kind of module in the model"
        changed = same(before, model)
        return f"an Error, and {changed} changed" if changed else ""
    except MemoryError:
        return ""
    if kind.ours and not signed and data != kind.data:
        whole = same(entries(kind.make()), model) if not sparsify else ""
        if whole and len(data) == len(kind.data):
            return f"a damaged file was loaded, with another {whole}"
    if signed and not sparsify:
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
    name = sorted(KINDS)[seed % len(KINDS)]
    kind = kind_of(name)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        room = Path(folder)
        if kind.folder is not None:
            for file in kind.folder.iterdir():
                shutil.copy(file, room)
        require_none(name, trials(FILES, lambda at: _one(kind, name, seed * FILES + at, room)))
    return {name: FILES}
