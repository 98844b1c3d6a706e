"""Every kind of file that load reads, small: a valid one, and how a hostile writer would write another."""

from __future__ import annotations

import atexit
import copy
import functools
import io
import json
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, sparsify_
from sparseloom import nn as snn
from sparseloom.io.model_file import checksum, file_bytes

from . import damage

FOREIGN = Path(__file__).parents[1] / "python" / "foreign"


@dataclass
class Kind:
    """A kind of file: the model to load it into, an input of it, and the file's bytes and name. ``folder``:
    what lies beside the file, in a folder that is loaded as a whole. ``ours``: with a checksum.
    ``sparsify``: the dense model that becomes sparse as the file says. ``hostile``: returns what a writer
    makes who computes the checksum anew. ``read``: makes of the file what load takes, if not its path."""

    make: Callable[[], nn.Module]
    x: Tensor
    data: bytes
    name: str = "model.safetensors"
    folder: Path | None = None
    ours: bool = False
    sparsify: Callable[[], nn.Module] | None = None
    hostile: Callable[[random.Random], bytes] | None = None
    read: Callable[[Path], Any] | None = None


def _ours(model: nn.Module, x: Tensor, dense: Callable[[], nn.Module] | None = None) -> Kind:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sparseloom.save(model, path)
        data = path.read_bytes()
    hostile = functools.partial(_signed, data)
    return Kind(lambda: copy.deepcopy(model), x, data, ours=True, sparsify=dense, hostile=hostile)


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


def _masked() -> Kind:
    """A layer that trains under its mask."""
    mask = torch.rand(4, 8) < 0.5
    model = nn.Sequential(snn.MaskedLinear(64, 32, block=8, mask=mask))
    return _ours(model, torch.randn(3, 64), lambda: nn.Sequential(nn.Linear(64, 32)))


def _foreign(name: str, make: Callable[[], nn.Module], x: Tensor) -> Kind:
    path = FOREIGN / name
    if not path.is_dir():
        return Kind(make, x, path.read_bytes(), path.name)
    inside = next(f for f in sorted(path.iterdir()) if f.suffix in (".safetensors", ".pth"))
    data = inside.read_bytes()
    if inside.suffix != ".safetensors":
        return Kind(make, x, data, inside.name, path)
    hostile = functools.partial(_resaved, safetensors.torch.load(data), safetensors.torch.save)
    return Kind(make, x, data, inside.name, path, hostile=hostile)


def _nncf(name: str) -> Kind:
    from foreign_files import Inside

    return _foreign(name, Inside, torch.randn(3, 20))


def _pickle(state: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _resaved(state: Mapping[str, Any], save: Callable[[dict[str, Any]], bytes], rng: random.Random) -> bytes:
    """Returns the file of another program with one or two other entries."""
    changed = dict(state)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(changed))
        what = rng.random()
        if what < 0.75 and isinstance(changed[name], Tensor):
            changed[name] = damage.of_tensor(changed[name], rng)
        elif what < 0.83 and len(changed) > 1:
            del changed[name]
        elif what < 0.93:
            ends = ("x", "weight_mask", "weight_orig", "bitmask", "scores", "weight.cols_a", "weight_g")
            prefix = name.partition(".")[0]
            changed[rng.choice((rng.choice(ends), f"{prefix}.{rng.choice(ends)}"))] = changed[name]
        elif save is _pickle:
            changed[name] = rng.choice((None, 1, "x", [], {}, {"a": torch.ones(2)}, 2**70, torch.Size([2])))
    try:
        return save(changed)
    except (safetensors.SafetensorError, ValueError, TypeError, RuntimeError):
        return save(dict(state))[:-1]


def _pickled(state: dict[str, Tensor], make: Callable[[], nn.Module], x: Tensor) -> Kind:
    hostile = functools.partial(_resaved, state, _pickle)
    return Kind(make, x, _pickle(state), "model.pth", hostile=hostile)


def _pruned() -> Kind:
    masked = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8))
    for i in (0, 2):
        prune.l1_unstructured(masked[i], "weight", 0.5)
    return _pickled(
        masked.state_dict(),
        lambda: nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8)),
        torch.randn(3, 20),
    )


def _one_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32, bias=False))


def _blocks() -> Tensor:
    return torch.randn(32, 64) * torch.rand(2, 4).lt(0.5).repeat_interleave(16, 0).repeat_interleave(16, 1)


def _of_torch(layout: str) -> Kind:
    sides = [(16, 16)] if layout in ("bsr", "bsc") else []
    weight = getattr(_blocks(), f"to_sparse_{layout}")(*sides)
    return _pickled({"0.weight": weight}, _one_layer, torch.randn(3, 64))


class _Rebuilt:
    """Pickled as the call that makes a SparseTensor of a file's parts."""

    def __init__(self, call: Any, parts: tuple[Any, ...]) -> None:
        self.call, self.parts = call, parts

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.parts


def _sparse_tensor(layout: str, **options: int) -> Kind:
    """A SparseTensor in a pickle; a hostile one says other parts."""
    layer = snn.SparseLinear.from_dense(_blocks(), layout, **options)
    made = sparseloom.SparseTensor(layer.layout, layer.values.detach(), (32, 64))
    call, parts = made.__reduce_ex__(2)[:2]
    (name, rows, cols, fields, strict), *rest = parts

    def hostile(rng: random.Random) -> bytes:
        told = [name, rows, cols, dict(fields), strict, *rest]
        at = rng.randrange(len(told))
        if isinstance(told[at], dict):
            key = rng.choice(sorted(fields))
            is_tensor = isinstance(fields[key], Tensor)
            told[at][key] = damage.of_tensor(fields[key], rng) if is_tensor else rng.choice(damage.VALUES)
            if rng.random() < 0.1:
                del told[at][key]
        elif isinstance(told[at], Tensor):
            told[at] = damage.of_tensor(told[at], rng)
        else:
            told[at] = rng.choice(damage.VALUES)
        return _pickle({"0.weight": _Rebuilt(call, (tuple(told[:5]), *told[5:]))})

    return Kind(_one_layer, torch.randn(3, 64), _pickle({"0.weight": made}), "model.pth", hostile=hostile)


def _pytorch_block_sparse() -> Kind:
    from foreign_files import pytorch_block_sparse_entries

    made = sparseloom.pattern.random(64, 96, 32, 0.5, 3)
    weight = torch.randn(64, 96) * made.mask.repeat_interleave(32, 0).repeat_interleave(32, 1)
    entries = {f"0.{name}": tensor for name, tensor in pytorch_block_sparse_entries(weight, made).items()}
    return _pickled(entries, lambda: nn.Sequential(nn.Linear(96, 64)), torch.randn(3, 96))


class _Layers(nn.Module):
    """The names of BERT's layers, of which config.json says what heads are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([nn.ModuleDict({"attention": nn.ModuleDict(
            {"self": nn.ModuleDict({name: nn.Linear(16, 16) for name in ("query", "key", "value")}),
             "output": nn.ModuleDict({"dense": nn.Linear(16, 16)})})}) for _ in range(2)])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer["attention"]["output"]["dense"](layer["attention"]["self"]["query"](x))
        return x


def _pruned_heads() -> Kind:
    """config.json is what is damaged; the weights lie beside it."""
    state = {}
    for name, tensor in _Layers().state_dict().items():
        axis = 1 if ".output." in name else 0
        bias = tensor.dim() <= axis
        state[name] = tensor.clone() if bias else tensor.narrow(axis, 0, 12).clone()
    told = {"num_attention_heads": 4, "hidden_size": 16, "pruned_heads": {"0": [1], "1": [3]}}
    folder = Path(tempfile.mkdtemp(prefix="campaign-heads-"))
    atexit.register(shutil.rmtree, folder, True)
    (folder / "model.safetensors").write_bytes(safetensors.torch.save(state))
    data = json.dumps(told)
    hostile = lambda rng: damage.of_text_of_json(data, rng).encode("utf8", "surrogatepass")  # noqa: E731
    return Kind(_Layers, torch.randn(3, 16), data.encode(), "config.json", folder, hostile=hostile)


def _sharded() -> Kind:
    """An index of two files; it is what is damaged."""
    net = _half_net()
    folder = Path(tempfile.mkdtemp(prefix="campaign-sharded-"))
    atexit.register(shutil.rmtree, folder, True)
    masked = {**net.state_dict(), "0.weight_mask": torch.ones(12, 20).half()}
    masked["0.weight_orig"] = masked.pop("0.weight")
    places = {}
    for part, prefix in (("a.safetensors", "0."), ("b.safetensors", "2.")):
        inside = {name: tensor for name, tensor in masked.items() if name.startswith(prefix)}
        (folder / part).write_bytes(safetensors.torch.save(inside))
        places |= dict.fromkeys(inside, part)
    data = json.dumps({"metadata": {"total_size": 1}, "weight_map": places})
    name = "model.safetensors.index.json"
    hostile = lambda rng: damage.of_text_of_json(data, rng).encode("utf8", "surrogatepass")  # noqa: E731
    return Kind(_half_net, torch.randn(3, 20).half(), data.encode(), name, folder, hostile=hostile)


def _npz(arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _scipys(path: Path) -> dict[str, Any]:
    """Returns the matrix of a file: by SciPy's reader, or, where the file says so, by attributes that SciPy
    does not look at."""
    from scipy import sparse

    if zlib.crc32(path.read_bytes()) % 2:
        return {"0.weight": sparse.load_npz(path)}
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    form = found.pop("format").item().decode()
    matrix = getattr(sparse, f"{form}_matrix")((32, 64))
    matrix._shape = tuple(found.pop("shape").tolist())
    for name, array in found.items():
        setattr(matrix, name, array)
    return {"0.weight": matrix}


def _scipy(form: str) -> Kind:
    from scipy import sparse

    file = io.BytesIO()
    sparse.save_npz(file, getattr(sparse, f"{form}_matrix")(_blocks().numpy()), compressed=False)
    with np.load(io.BytesIO(file.getvalue())) as read:
        arrays = {name: read[name] for name in read.files}

    def hostile(rng: random.Random) -> bytes:
        changed = dict(arrays)
        name = rng.choice(sorted(set(changed) - {"format"}))
        changed[name] = damage.of_tensor(torch.from_numpy(changed[name]), rng)
        if changed[name].dtype in (torch.bfloat16, torch.float8_e4m3fn):
            changed[name] = changed[name].float()
        changed[name] = changed[name].numpy()
        return _npz(changed)

    made = Kind(_one_layer, torch.randn(3, 64), file.getvalue(), "weight.npz", hostile=hostile, read=_scipys)
    return made


def _half_net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).half()


def _eight_bits() -> nn.Module:
    made = snn.QuantizedBlockSparseLinear.from_sparse(snn.BlockSparseLinear(64, 40, density=0.5, block=8))
    made.kernel = "reference"  # where no kernel of int8 is fast
    return made


def _corpus() -> nn.Module:
    from make_corpus import model

    return model()


_SPARSE = ("bsr", "bsc", "csr", "csc", "coo")
KINDS: dict[str, Callable[[], Kind]] = {
    "corpus": lambda: _ours(_corpus(), torch.randn(3, 20)),
    "patched": _patched,
    "csr": lambda: _layout("csr"),
    "coo": lambda: _layout("coo"),
    "bitmap": lambda: _layout("bitmap"),
    "gru": lambda: _ours(snn.BlockSparseGRU(16, 16, density=0.5, block=8), torch.randn(3, 2, 16)),
    "nm": lambda: _layout("nm", n=2, m=8),
    "nmg": lambda: _layout("nmg", n=1, m=8, g=2),
    "semi24": lambda: _layout("semi24"),
    "tiles": lambda: _ours(
        nn.Sequential(snn.SparseLinear.from_dense(torch.randn(130, 130), "tiles", density=0.4)),
        torch.randn(3, 130), lambda: nn.Sequential(nn.Linear(130, 130, bias=False)),
    ),
    "blocks": lambda: _layout("blocks", block=16),
    "masked": _masked,
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
    **{f"{form} of torch": functools.partial(_of_torch, form) for form in _SPARSE},
    **{f"{form} of scipy": functools.partial(_scipy, form) for form in ("bsr", "csr", "csc", "coo", "dia")},
    "tensor of blocks": lambda: _sparse_tensor("blocks", block=16),
    "tensor of csr": lambda: _sparse_tensor("csr"),
    "pytorch_block_sparse": _pytorch_block_sparse,
    "masks of nncf": functools.partial(_nncf, "nncf"),
    "trained masks of nncf": functools.partial(_nncf, "nncf-trained"),
    "pruned heads": _pruned_heads,
    "sharded": _sharded,
}  # fmt: skip


@functools.cache
def kind_of(name: str) -> Kind:
    torch.manual_seed(0)
    return KINDS[name]()


def _signed(data: bytes, rng: random.Random) -> bytes:
    """Returns the file with wrong contents and a checksum that fits them."""
    size = int.from_bytes(data[:8], "little")
    tensors = safetensors.torch.load(data)
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
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
        return data[:-1]
