"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from .errors import Error

_SPECIAL = (
    (stat.S_ISFIFO, "a FIFO (named pipe)"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def write_whole(path: str | bytes | os.PathLike[str], data: bytes) -> None:
    """Writes a file under ``path`` complete or not at all, flushed to the disk. Raises Error naming the
    system's reason.

    An older file's mode and, where the system allows it, owner are kept. What is there and is no regular file
    is refused: the rename would put a regular file in the place of a pipe or of /dev/null.
    """
    target = Path(os.path.realpath(decoded("save", path)))
    temporary = None
    try:
        older = _older(target)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if older is None:
                os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp's 0600 is for secrets
            else:
                with contextlib.suppress(PermissionError):  # only root gives files away
                    os.fchown(file.fileno(), older.st_uid, older.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(older.st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
        folder = os.open(target.parent, os.O_RDONLY)  # the rename itself is on the disk once its folder is
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
    """The regular file that is to be replaced; None where there is none. Raises Error for anything else but a
    folder, which the rename itself refuses."""
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
    """A path of str, bytes or os.PathLike as str. Raises Error on anything else."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise Error(
            op, "a path as str, bytes or os.PathLike", type(path).__name__, "pass the file's name"
        ) from None
