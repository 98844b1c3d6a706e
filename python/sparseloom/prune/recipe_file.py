"""Reads recipe files: sections of ``key = value`` lines for the commands prune and deploy."""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Error

_BOOLS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
#: What a value has to be, in words.
_WORDS = {int: "a whole number", float: "a number", bool: "yes or no", str: "a text"}


def sections(op: str, path: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Returns the sections of these names. Raises Error for a file that cannot be read or lacks one."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # regexes keep their case
    try:
        parser.read_string(path.read_text(), str(path))
        return [dict(parser[name]) for name in names]
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as error:
        expected = f"a recipe with {' and '.join(f'[{name}]' for name in names)} in {path}"
        raise Error(op, expected, str(error).replace("\n", " "), "see docs/pruning.md") from error


def section(
    op: str, path: Path, name: str, keys: Mapping[str, type], needed: Sequence[str]
) -> dict[str, Any]:
    """Returns the values of one section, each of its key's type. Raises Error for a key that is unknown or
    missing, and for a value of another type."""
    (found,) = sections(op, path, [name])
    return checked(op, name, found, keys, needed)


def checked(
    op: str, name: str, found: Mapping[str, str], keys: Mapping[str, type], needed: Sequence[str]
) -> dict[str, Any]:
    """Does what ``section`` does with one that was read already."""
    unknown = [key for key in found if key not in keys]
    missing = [key for key in needed if not found.get(key)]
    if unknown or missing:
        got = ", ".join([*(f"{key} unknown" for key in unknown), *(f"{key} missing" for key in missing)])
        raise Error(op, f"the keys {', '.join(keys)} in [{name}]", got, f"{' and '.join(needed)} are needed")
    values: dict[str, Any] = {}
    for key, text in found.items():
        kind = keys[key]
        try:
            values[key] = _BOOLS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError) as error:
            raise Error(op, f"{key} to be {_WORDS[kind]}", text, f"write {_WORDS[kind]}") from error
    return values
