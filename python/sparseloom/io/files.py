"""Writes files completely or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from ..errors import Error

_SPECIAL = (
    (stat.S_ISFIFO, "a FIFO (named pipe)"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def write_whole(path: str | bytes | os.PathLike[str], data: bytes) -> None:
    """Writes a file at ``path`` completely or not at all, and flushes it to the disk. Raises Error that gives
    the system's reason.

    The new file keeps an older file's mode and, where the system allows it, its owner. An existing path that
    is not a regular file is refused: the rename would replace a pipe or /dev/null with a regular file.
    """
    target = Path(os.path.realpath(decoded("save", path)))
    temporary = None
    try:
        older = _older(target)
        # the prefix has no part of the target's name, which may be as long as the file system allows
        handle, temporary = tempfile.mkstemp(prefix=".saving-", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if older is None:
                # mkstemp made it 0600, which is meant for secrets
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            else:
                with contextlib.suppress(PermissionError):  # only root may give a file to another owner
                    os.fchown(file.fileno(), older.st_uid, older.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(older.st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
        folder = os.open(target.parent, os.O_RDONLY)  # flushing the folder writes the rename to disk
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        remedy = "choose a folder that exists, may be written and has room"
        raise Error("save", f"to write {target}", error.strerror or str(error), remedy) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _older(target: Path) -> os.stat_result | None:
    """Returns the status of the regular file to be replaced, or None if there is none. Raises Error for
    anything else except a folder, which the rename itself refuses."""
    try:
        older = os.lstat(target)
    except FileNotFoundError:
        return None
    kind = next((name for test, name in _SPECIAL if test(older.st_mode)), "")
    if kind:
        raise Error(
            "save",
            f"{target} to be a regular file or not to exist",
            kind,
            "write to a file, then copy it there",
        )
    return older


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def decoded(op: str, path: str | bytes | os.PathLike[str]) -> str:
    """Returns a path given as str, bytes or os.PathLike as str. Raises Error for anything else."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise Error(
            op, "a path as str, bytes or os.PathLike", type(path).__name__, "pass the file's name"
        ) from None
