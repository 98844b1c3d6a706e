"""Reads text for the demo: bytes in three parts (train, validation, held-out), and the batches cut from them.

The default text is the Python standard library's own sources: it is real, on every machine, and needs no
download. Its bytes differ between Python versions, so the SHA-256 is printed beside every result.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

# A run reads a few MB of text at most; when there is more, a folder was most likely named by mistake.
MAX_BYTES = 256 << 20
# Shares of the files (by hash), or of the bytes where files are too few. The validation part draws the curves
# and picks the learning rate; the held-out part is scored once, at the end.
HELD_OUT_SHARE = 0.05
VALIDATION_SHARE = 0.05
# These are not sources a person would read: other people's packages, test suites and their data, and files
# made by the build.
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "pydoc_data",
    "__pycache__",
    "lib-dynload",
}
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")


class DemoError(Exception):
    """Reports something that the user can put right; printed as one line, without a traceback.

    code: the exit status, 2 for wrong arguments.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Text:
    """The three parts of a text; each a uint8 tensor [bytes]."""

    name: str
    sha256: str
    files: int
    split: str
    train: torch.Tensor
    validation: torch.Tensor
    held_out: torch.Tensor

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{part} {getattr(self, part).numel():,}" for part in ("train", "validation", "held_out")
        )
        return (
            f"{self.name}: {self.files} files, {sizes} bytes, split by "
            f"{self.split}, sha256 {self.sha256[:16]}"
        )


def load_text(source: Path | None, window: int) -> Text:
    """Reads `source` (file, folder, or None for the standard library's sources) and splits it.

    window: the least number of bytes each part must hold. Raises DemoError when the text is missing,
    unreadable, empty, shorter than three parts of `window` bytes allow, or larger than MAX_BYTES.
    """
    if source is None:
        root = Path(sysconfig.get_path("stdlib"))
        name, paths = "Python standard library", _source_files(root)
        if not paths:
            raise DemoError(
                f"no .py source in the standard library's folder {root}: "
                "name a text with --text FILE_OR_FOLDER"
            )
    else:
        name, root = str(source), source
        try:
            if source.is_dir():
                paths = _all_files(source)
            elif source.exists():
                paths = [source]
            else:
                raise DemoError(f"--text {source}: no such file or folder", 2)
        except OSError as error:
            raise DemoError(f"--text {source}: cannot read it: {error.strerror}") from error
    contents = _read(root, paths)
    total = sum(len(content) for _, content in contents)
    if total == 0:
        raise DemoError(f"the text {name} is empty: name another with --text FILE_OR_FOLDER")
    digest = hashlib.sha256()
    for relative, content in contents:
        digest.update(f"{relative}\0{len(content)}\0".encode())
        digest.update(content)
    split, parts = "file", _split_by_file(contents)
    if min(len(part) for part in parts) < window:
        split, parts = "position", _split_by_position(b"".join(content for _, content in contents))
    if min(len(part) for part in parts) < window:
        least = int(window / min(HELD_OUT_SHARE, VALIDATION_SHARE)) + 1
        raise DemoError(f"the text {name} is too short: {total:,} bytes, at least {least:,} are needed")
    train, validation, held_out = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    return Text(name, digest.hexdigest(), len(contents), split, train, validation, held_out)


def batch_offsets(part: torch.Tensor, steps: int, batch: int, context: int, seed: int) -> torch.Tensor:
    """Draws where the windows of every step begin: int64 [steps, batch].

    All are drawn at once, so that a resumed run needs no generator state and two models of one seed see the
    same bytes.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(part.numel() - context, (steps, batch), generator=generator)


def windows(part: torch.Tensor, offsets: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and targets (the next byte), int64 [windows, context] each."""
    rows = part[offsets[:, None] + torch.arange(context + 1)].long()
    return rows[:, :-1], rows[:, 1:]


def even_offsets(part: torch.Tensor, count: int, context: int) -> torch.Tensor:
    """Returns offsets of at most `count` windows spread evenly over the part, none overlapping; int64."""
    fitting = (part.numel() - 1) // context
    count = min(count, fitting)
    return (torch.arange(count) * ((part.numel() - 1 - context) / max(count - 1, 1))).long()


def _source_files(root: Path) -> list[Path]:
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in SKIPPED_FOLDERS and not name.startswith(SKIPPED_PREFIXES)
        ]
        found += [
            Path(folder, name)
            for name in files
            if name.endswith(".py") and not name.startswith(SKIPPED_PREFIXES)
        ]
    return found


def _all_files(root: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise error

    found = []
    for folder, subfolders, files in os.walk(root, onerror=fail):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name != "__pycache__"]
        found += [Path(folder, name) for name in files if not name.startswith(".")]
    return found


def _read(root: Path, paths: list[Path]) -> list[tuple[str, bytes]]:
    """Returns (relative path, content), sorted by path. Leaves out binary files of a folder (those with a
    zero byte)."""
    contents, total = [], 0
    for path in paths:
        relative = path.name if path == root else path.relative_to(root).as_posix()
        try:
            total += path.stat().st_size
            if total > MAX_BYTES:
                raise DemoError(
                    f"the text {root} is larger than {MAX_BYTES >> 20} MiB: name a smaller one with --text"
                )
            content = path.read_bytes()
        except OSError as error:
            raise DemoError(f"cannot read {path}: {error.strerror}") from error
        if path == root or b"\0" not in content:
            contents.append((relative, content))
    return sorted(contents)


def _split_by_file(contents: list[tuple[str, bytes]]) -> tuple[bytes, bytes, bytes]:
    """Splits files into parts by their relative paths alone, so that a file stays in its part when others
    come and go."""
    parts: tuple[list[bytes], ...] = ([], [], [])
    for relative, content in contents:
        place = int.from_bytes(hashlib.sha256(relative.encode()).digest()[:8], "big") / 2**64
        part = 2 if place < HELD_OUT_SHARE else 1 if place < HELD_OUT_SHARE + VALIDATION_SHARE else 0
        parts[part].append(content)
    train, validation, held_out = (b"".join(part) for part in parts)
    return train, validation, held_out


def _split_by_position(content: bytes) -> tuple[bytes, bytes, bytes]:
    held_out = int(len(content) * (1 - HELD_OUT_SHARE))
    validation = int(len(content) * (1 - HELD_OUT_SHARE - VALIDATION_SHARE))
    return content[:validation], content[validation:held_out], content[held_out:]
