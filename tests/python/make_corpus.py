"""Writes corpus/: one good file and the bad ones that load must refuse. Run it after a change of the format,
and commit the files.

PYTHONPATH=python python tests/python/make_corpus.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom.io.model_file import checksum, file_bytes
from sparseloom.nn import BlockSparseLinear

CORPUS = Path(__file__).parent / "corpus"
State = tuple[dict[str, Tensor], dict[str, str]]


def model() -> nn.Module:
    """The model that every file of the corpus was made for: ragged in both directions, a tied dense layer, a
    buffer."""
    generator = torch.Generator().manual_seed(0)
    sparse = BlockSparseLinear(20, 12, density=0.5, block=8, seed=generator)
    made = nn.Sequential(sparse, nn.Linear(12, 12), nn.Linear(12, 12), nn.BatchNorm1d(12))
    made[2].weight = made[1].weight
    with torch.no_grad():
        for parameter in made[1:].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def parts(data: bytes) -> State:
    """Tensors and metadata of a file."""
    size = int.from_bytes(data[:8], "little")
    return safetensors.torch.load(data), json.loads(data[8 : 8 + size])["__metadata__"]


def joined(tensors: dict[str, Tensor], metadata: dict[str, str], signed: bool = True) -> bytes:
    """A file of these parts; with a matching checksum when signed: what a hostile writer would do."""
    if signed:
        metadata = metadata | {"sha256": checksum(tensors, metadata)}
    return file_bytes(tensors, metadata)


def with_tensor(
    name: str, change: Callable[[Tensor], Tensor | None], signed: bool = True
) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        tensors, metadata = parts(data)
        changed = change(tensors[name].clone())
        tensors = {key: value for key, value in tensors.items() if key != name}
        return joined(tensors if changed is None else tensors | {name: changed}, metadata, signed)

    return apply


def with_metadata(signed: bool = True, **changes: str | None) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        tensors, metadata = parts(data)
        kept = {key: value for key, value in (metadata | changes).items() if value is not None}
        return joined(tensors, kept, signed)

    return apply


def entry(index: int, value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[index] = value
        return tensor

    return change


def header(text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: len(text).to_bytes(8, "little") + text


def flipped(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


#: file name -> (how it comes from the good one, what the error says)
BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "end inside the header"),
    "seven_bytes": (lambda data: data[:7], "end inside the header"),
    "truncated_in_header": (lambda data: data[:200], "end inside the header"),
    "truncated_in_data": (lambda data: data[:-100], "complete safetensors file"),
    "one_byte_short": (lambda data: data[:-1], "complete safetensors file"),
    "bytes_appended": (lambda data: data + b"\0" * 16, "complete safetensors file"),
    "huge_header_size": (lambda data: b"\xff" * 8 + data[8:], "end inside the header"),
    "flipped_value": (flipped(-5), "checksum"),
    "flipped_first_value": (lambda data: flipped(8 + int.from_bytes(data[:8], "little"))(data), "checksum"),
    "text": (
        lambda data: b"# Not a model, but text long enough to be read as one.\n" * 20,
        "end inside the header",
    ),
    "json_list": (header(b"[1, 2, 3]"), "header that is not one"),
    "json_null_metadata": (header(b'{"__metadata__": null}'), "header that is not one"),
    "deep_json": (header(b"[" * 20000), "header that is not one"),
    "not_utf8": (header(b'{"__metadata__": {"format": "\xff\xfe"}}'), "header that is not one"),
    "zip_of_torch_save": (lambda data: b"PK\x03\x04" + data, "end inside the header"),
    "foreign_safetensors": (lambda data: file_bytes(parts(data)[0], {}), "another program"),
    "foreign_metadata": (lambda data: file_bytes(parts(data)[0], {"format": "pt"}), "another program"),
    "newer_version": (with_metadata(format_version="2"), "newer sparseloom"),
    "newer_version_unknown_dtype": (
        header(
            b'{"__metadata__":{"format":"sparseloom","format_version":"3"},"a":{"dtype":"Q3","shape":[1],"data_offsets":[0,1]}}'
        ),
        "newer sparseloom",
    ),
    "version_zero": (with_metadata(format_version="0"), "format version 1"),
    "version_word": (with_metadata(format_version="one"), "format_version number"),
    "version_missing": (with_metadata(format_version=None), "format_version number"),
    "version_huge": (with_metadata(format_version="9" * 5000), "format_version number"),
    "checksum_missing": (lambda data: with_metadata(signed=False, sha256=None)(data), "checksum"),
    "checksum_of_another": (with_metadata(signed=False, sha256="0" * 64), "checksum"),
    "metadata_changed": (with_metadata(signed=False, writer="0.0.9"), "checksum"),
    "layers_missing": (with_metadata(layers=None), "complete safetensors file"),
    "layers_not_json": (with_metadata(layers="{"), "complete safetensors file"),
    "layers_a_list": (with_metadata(layers="[[1]]"), "layers as a JSON object, got list"),
    "layers_of_another_model": (with_metadata(layers='{"7": {}}'), "sparse layers"),
    "layer_block_changed": (
        with_metadata(layers='{"0": {"block": [16, 8], "in_features": 20, "out_features": 12}}'),
        "build the layer",
    ),
    "alias_to_nothing": (with_metadata(aliases='{"2.weight": "9.weight"}'), "2.weight shares its bytes with"),
    "alias_missing": (with_metadata(aliases="{}"), "missing: 2.weight"),
    "alias_of_another_shape": (with_metadata(aliases='{"2.weight": "1.bias"}'), "2.weight [12, 12]"),
    "untied": (
        lambda data: joined(
            parts(data)[0] | {"2.weight": torch.zeros(12, 12)}, parts(data)[1] | {"aliases": "{}"}
        ),
        "ties tensors",
    ),
    "entry_missing": (with_tensor("1.bias", lambda t: None), "1 missing: 1.bias"),
    "entry_unexpected": (
        lambda data: joined(parts(data)[0] | {"extra": torch.zeros(2)}, parts(data)[1]),
        "unexpected: extra",
    ),
    "dense_shape": (with_tensor("1.bias", lambda t: t[:5].clone()), "1.bias [12]"),
    "dense_dtype": (with_tensor("1.bias", lambda t: t.double()), "1.bias of torch.float32"),
    "values_dtype": (with_tensor("0.values", lambda t: t.half()), "0.values of torch.float32"),
    "values_block": (with_tensor("0.values", lambda t: t.reshape(3, 16, 4)), "values [3, 8, 8]"),
    "values_count": (with_tensor("0.values", lambda t: t[:2].clone()), "values [3, 8, 8]"),
    "values_flat": (with_tensor("0.values", lambda t: t.reshape(-1)), "values [3, 8, 8]"),
    "padding_nan": (with_tensor("0.values", lambda t: t.fill_(torch.nan)), "zero padding"),
    "col_negative": (with_tensor("0.col", entry(0, -1)), "col"),
    "col_beyond": (with_tensor("0.col", entry(0, 3)), "col"),
    "col_huge": (with_tensor("0.col", entry(2, 2**31 - 1)), "col"),
    "col_twice": (with_tensor("0.col", lambda t: t.fill_(1)), "col"),
    "crow_start": (with_tensor("0.crow", entry(0, 1)), "crow"),
    "crow_descending": (with_tensor("0.crow", entry(1, 4)), "crow"),
    "crow_end": (with_tensor("0.crow", entry(2, 2)), "crow"),
    "crow_negative": (with_tensor("0.crow", entry(1, -(2**31))), "crow"),
    "crow_long": (with_tensor("0.crow", lambda t: torch.cat([t, t[-1:]])), "crow"),
    "crow_empty": (with_tensor("0.crow", lambda t: t[:0].clone()), "crow"),
    "crow_int64": (with_tensor("0.crow", lambda t: t.long()), "0.crow of torch.int32"),
    "crow_float": (with_tensor("0.crow", lambda t: t.float()), "int32 or int64"),
}


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    good = CORPUS / "good.safetensors"
    sparseloom.save(model(), good)
    for name, (damage, _) in BAD.items():
        (CORPUS / f"{name}.safetensors").write_bytes(damage(good.read_bytes()))


if __name__ == "__main__":
    main()
