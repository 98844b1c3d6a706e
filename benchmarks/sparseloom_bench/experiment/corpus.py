"""The texts of `sparseloom experiment lm` in one small file: read from the archives that they are handed out
in, split by document, and packed.

A document is a review, a speech, a sentence of the sets that have one a line, or a piece of Shakespeare. It
is held out where the number that its SHA-1 begins with divides by HELD_OUT; exact copies count once.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import reviews

_OP = "experiment lm"
#: One document of so many is held out.
HELD_OUT = 20
#: Bytes of a piece of Shakespeare, at least; pieces end between two speeches.
PIECE = 20_000


class Corpus(NamedTuple):
    """Bytes [n] to learn from and those held out, what they are, and the SHA-256 of the file."""

    train: Tensor
    held: Tensor
    sources: dict[str, dict[str, int]]
    digest: str

    def to(self, device: torch.device) -> Corpus:
        """Returns it on a device."""
        return self._replace(train=self.train.to(device), held=self.held.to(device))


def _imdb(path: Path) -> Iterator[bytes]:
    for part in reviews.imdb(path):
        yield from (text.content for text in part)


def _pieces(path: Path) -> Iterator[bytes]:
    piece = b""
    for speech in lzma.decompress(path.read_bytes()).split(b"\n\n"):
        piece += speech + b"\n\n"
        if len(piece) >= PIECE:
            yield piece
            piece = b""
    yield piece


def _files(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("/") and not re.search("readme", name, re.IGNORECASE):
                yield archive.read(name)


def _lines(path: Path) -> Iterator[bytes]:
    for content in _files(path):
        yield from content.splitlines()


#: source -> its file, and what reads documents from it
SOURCES: dict[str, tuple[str, Callable[[Path], Iterator[bytes]]]] = {
    "IMDB's reviews": ("imdb50k.tsv.xz", _imdb),
    "Shakespeare": ("tinyshakespeare.txt.xz", _pieces),
    "movie reviews": ("movie_reviews.zip", _files),
    "sentence polarity": ("sentence_polarity.zip", _lines),
    "subjectivity": ("subjectivity.zip", _lines),
    "product reviews 1": ("product_reviews_1.zip", _lines),
    "product reviews 2": ("product_reviews_2.zip", _lines),
    "State of the Union": ("state_union.zip", _files),
}


def prepare(folder: Path, path: Path) -> dict[str, dict[str, int]]:
    """Packs the texts of a folder into a file, and returns the documents and bytes of each source. Raises
    Error where one is missing or damaged. Minutes: the file is to be small."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    sources: dict[str, dict[str, int]] = {}
    seen: set[bytes] = set()
    for source, (name, documents) in SOURCES.items():
        counts = {"train": 0, "held": 0, "train_bytes": 0, "held_bytes": 0}
        try:
            for document in documents(folder / name):
                digest = hashlib.sha1(document, usedforsecurity=False).digest()
                if not document.strip() or digest in seen:
                    continue
                seen.add(digest)
                held = int.from_bytes(digest[:4], "big") % HELD_OUT == 0
                parts[held].append(document)
                counts["held" if held else "train"] += 1
                counts["held_bytes" if held else "train_bytes"] += len(document) + 1
        except (OSError, lzma.LZMAError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            remedy = "pass the folder of all texts"
            raise Error(_OP, f"{name} in the folder of texts", f"{error}", remedy) from error
        sources[source] = counts
    texts = [b"".join(document + b"\n" for document in part) for part in parts]
    head = {"train": len(texts[0]), "held": len(texts[1]), "sources": sources}
    content = json.dumps(head).encode() + b"\n" + b"".join(texts)
    write_whole(path, lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    return sources


def unpack(path: Path, plain: Path) -> None:
    """Writes what ``prepare`` has packed as a file that ``load`` reads at once: many processes would take
    seconds of a core each. Raises Error where it cannot be read."""
    try:
        write_whole(plain, lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise _unread(path, error) from error


def load(path: Path) -> Corpus:
    """Returns what ``prepare`` or ``unpack`` has written. Raises Error for another file."""
    try:
        packed = path.read_bytes()
        whole = packed if packed.startswith(b"{") else lzma.decompress(packed)
        head, _, content = whole.partition(b"\n")
        found: dict[str, Any] = json.loads(head)
        train, held = content[: found["train"]], content[found["train"] :]
        if len(held) != found["held"]:
            raise ValueError("another length")
    except (OSError, lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise _unread(path, error) from error
    return Corpus(_bytes(train), _bytes(held), found["sources"], hashlib.sha256(packed).hexdigest())


def _unread(path: Path, error: Exception) -> Error:
    got, remedy = f"{path}, which cannot be read ({error})", "make it with --prepare FOLDER"
    return Error(_OP, "a file of packed texts", got, remedy)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises Error where there is none."""
    return reviews.digest(path)


def invented() -> Corpus:
    """Returns invented reviews, for a look without any file."""
    parts = reviews.invented(600)
    train, held = (b"\n".join(text.content for text in part) for part in (parts.train, parts.val))
    return Corpus(_bytes(train), _bytes(held), {}, "")


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def windows(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """Returns int64 [starts, length]: the bytes of a text from each start on, without waiting for a
    device."""
    return text[starts[:, None] + torch.arange(length, device=text.device)].long()


def spread(text: Tensor, count: int, length: int) -> Tensor:
    """Returns at most ``count`` windows of a text at equal distances, int64 [windows, length]."""
    last = len(text) - length
    starts = torch.linspace(0, last, min(count, max(1, last)), dtype=torch.float64).long()
    return windows(text, starts.to(text.device), length)
