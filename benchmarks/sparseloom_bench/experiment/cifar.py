"""Reads CIFAR-10 from one archive, without unpacking it to disk."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import pickle
import re
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from sparseloom.errors import Error

_OP = "experiment"
SIDE, CLASSES = 32, 10
#: Images of each class in the two parts.
TRAIN, TEST = 5000, 1000
_IMAGE = re.compile(r"(?:.*/)?(train|test)/([^/]+)/[^/]+\.(?:jpe?g|png)")
_BATCH = re.compile(r"(?:.*/)?(?:data_batch_\d|test_batch)")
#: What a damaged archive raises, by its compression; OSError also stands for BadGzipFile.
_DAMAGED = (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error, pickle.UnpicklingError)


class Images(NamedTuple):
    """Pixels uint8 [images, 3, 32, 32] and labels int64 [images] of the two parts."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: torch.device) -> Images:
        """Returns them on a device."""
        return Images(*(each.to(device) for each in self))


def digest(path: Path) -> str:
    """Returns the SHA-256 of an archive. Raises Error where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        remedy = "pass --data with cifar-10-python.tar.gz, or a tar of train/CLASS/*.jpg and test/CLASS/*.jpg"
        raise Error(_OP, "a CIFAR-10 archive", f"none at {path}", remedy) from error


def load(path: Path, whole: bool = True) -> Images:
    """Returns the images of an archive: the published "python version", or any tar of images
    ``train/CLASS/NAME.jpg`` and ``test/CLASS/NAME.jpg`` (or .png), whose classes are numbered by name.

    ``whole`` asks for all 60,000 of them. Raises Error for an archive that is missing, damaged or of other
    content, and without NumPy or Pillow. The decoded images, 184 MB, lie in the folder for temporary files
    until the system empties it: every arm reads them, and to decode 60,000 JPEG files takes 25 s on one core.
    """
    name = digest(path)
    keep = _temporary() / f"cifar-{name[:16]}.pt"
    if keep.exists():
        kept = torch.load(keep, weights_only=True)
        if kept["archive"] == name:
            return _checked(path, Images(*kept["images"]), whole)
    try:
        with tarfile.open(path, "r:*") as tar:
            parts = _read(tar)
    except _DAMAGED as error:
        got = f"{path}, which cannot be read ({error or type(error).__name__})"
        raise Error(_OP, "a whole tar archive", got, "copy or download it again") from error
    images = _checked(path, _joined(parts), whole)
    handle, temporary = tempfile.mkstemp(dir=keep.parent)  # several arms may start side by side
    with os.fdopen(handle, "wb") as file:
        torch.save({"archive": name, "images": tuple(images)}, file)
    os.replace(temporary, keep)
    return images


def _temporary() -> Path:
    """Returns a folder that no other user writes to."""
    folder = Path(tempfile.gettempdir()) / f"sparseloom-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise Error(_OP, f"{folder} to be yours", "one of another user", "set TMPDIR to a folder of yours")
    return folder


#: part -> (pixels [images, 3, 32, 32], labels) in pieces
_Parts = dict[str, list[tuple[Tensor, list[int]]]]


def _read(tar: tarfile.TarFile) -> _Parts:
    parts: _Parts = {"train": [], "test": []}
    labels: dict[str, int] = {}
    named: list[tuple[str, str, Tensor]] = []
    for member in tar:
        if not member.isfile():
            continue
        image, batch = _IMAGE.fullmatch(member.name), _BATCH.fullmatch(member.name)
        if image is None and batch is None:
            continue
        file = tar.extractfile(member)
        assert file is not None  # it is a file
        if image is not None:
            named.append((image[1], image[2], _decoded(file, member.name)))
        else:
            part = "test" if member.name.endswith("test_batch") else "train"
            parts[part].append(_unpickled(file, member.name))
    for number, name in enumerate(sorted({name for _, name, _ in named})):
        labels[name] = number
    for part in parts:
        mine = [(pixels, labels[name]) for where, name, pixels in named if where == part]
        if mine:
            parts[part].append((torch.stack([pixels for pixels, _ in mine]), [label for _, label in mine]))
    return parts


def _decoded(file: IO[bytes], name: str) -> Tensor:
    try:
        import numpy
        from PIL import Image
    except ModuleNotFoundError as error:
        raise Error(_OP, "Pillow and NumPy", f"no {error.name}", "pip install pillow numpy") from error
    pixels = numpy.array(Image.open(io.BytesIO(file.read())).convert("RGB"))
    if pixels.shape != (SIDE, SIDE, 3):
        got = f"{name} of {pixels.shape[1]} x {pixels.shape[0]}"
        raise Error(_OP, "images of 32 x 32 pixels", got, "pass CIFAR-10 itself")
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class _Arrays(pickle.Unpickler):
    """Reads NumPy arrays in plain containers, and refuses every other class: a pickle could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            module = module.replace("numpy.core", "numpy._core")  # its name before NumPy 2
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _unpickled(file: IO[bytes], name: str) -> tuple[Tensor, list[int]]:
    try:
        found = _Arrays(file, encoding="bytes").load()
        pixels, labels = torch.from_numpy(found[b"data"]), [int(each) for each in found[b"labels"]]
        return pixels.view(-1, 3, SIDE, SIDE), labels
    except (KeyError, TypeError, ValueError, AttributeError, ImportError, RuntimeError) as error:
        raise pickle.UnpicklingError(f"{name} is no batch of CIFAR-10") from error


def _joined(parts: _Parts) -> Images:
    tensors: list[Tensor] = []
    for pieces in parts.values():
        pixels = [some for some, _ in pieces] or [torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)]
        labels = [label for _, some in pieces for label in some]
        tensors += [torch.cat(pixels), torch.tensor(labels, dtype=torch.int64)]
    return Images(*tensors)


def _checked(path: Path, images: Images, whole: bool) -> Images:
    """Returns the images, if each part has ten classes, of the published numbers where ``whole``."""
    for part, labels, each in (("train", images.y, TRAIN), ("test", images.test_y, TEST)):
        counts = labels.bincount(minlength=CLASSES).tolist()
        if len(counts) != CLASSES or min(counts) == 0 or (whole and set(counts) != {each}):
            expected = f"{each if whole else 'some'} images of each of {CLASSES} classes in the part {part}"
            raise Error(_OP, expected, f"{counts} in {path}", "pass the whole of CIFAR-10")
    return images
