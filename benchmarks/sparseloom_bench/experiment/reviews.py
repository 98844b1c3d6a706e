"""Reads reviews: the texts of IMDB, of customers and of movies, in the files that they are handed out in."""

from __future__ import annotations

import hashlib
import io
import lzma
import random
import re
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from sparseloom.errors import Error

_OP = "experiment"
_SPLITS, _LABELS = ("train", "val", "test"), {"neg": 0, "pos": 1}
#: The opinions that a sentence of a customer's review is marked with, such as [+2].
_OPINION = re.compile(r"\[([+-])\d?\]")


class Text(NamedTuple):
    """A review in UTF-8, and whether it praises."""

    content: bytes
    label: int


class Reviews(NamedTuple):
    """The parts of IMDB: to learn from, to choose by, and to judge by."""

    train: list[Text]
    val: list[Text]
    test: list[Text]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Error(_OP, "a file of reviews", f"none at {path}", "pass the path of the file") from error


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises Error where there is none."""
    return hashlib.sha256(_bytes(path)).hexdigest()


def imdb(path: Path) -> Reviews:
    """Returns the reviews of IMDB: a table of four columns between tabs, split, label, number and text,
    packed by xz or not. Raises Error for a file that is missing, damaged or of other content."""
    content = _bytes(path)
    try:
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        lines = content.decode().split("\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        got = f"{path}, which cannot be read ({error})"
        raise Error(_OP, "a whole table of reviews", got, "copy or download it again") from error
    found: dict[str, list[Text]] = {split: [] for split in _SPLITS}
    for number, line in enumerate(lines, 1):  # texts may hold other characters that end a line
        row = line.split("\t", 3)
        if not line or (number == 1 and row[:2] == ["split", "label"]):
            continue
        if len(row) != 4 or row[0] not in found or row[1] not in _LABELS:
            got = f"line {number} of {path} with {len(row)} columns"
            expected = "train, val or test, neg or pos, a number and a text between tabs"
            raise Error(_OP, expected, got, "pass the table of IMDB")
        found[row[0]].append(Text(row[3].encode(), _LABELS[row[1]]))
    empty = [split for split in _SPLITS if len({text.label for text in found[split]}) < 2]
    if empty:
        got = f"none in the part {empty[0]} of {path}"
        raise Error(_OP, "reviews that praise and others", got, "copy or download it again")
    return Reviews(*(found[split] for split in _SPLITS))


def _archived(path: Path) -> dict[str, str]:
    """Returns the texts of a zip archive by name. Raises Error where it is missing or damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(_bytes(path))) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            return {name: archive.read(name).decode("latin-1") for name in sorted(names)}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        got = f"{path}, which cannot be read ({error})"
        raise Error(_OP, "a whole zip archive", got, "copy or download it again") from error


def movies(path: Path) -> list[Text]:
    """Returns movie reviews: a zip archive of neg/NAME.txt and pos/NAME.txt. Raises Error as
    ``imdb`` does."""
    texts = []
    for name, content in _archived(path).items():
        folder = name.split("/")[-2] if "/" in name else ""
        if folder in _LABELS:
            texts.append(Text(content.encode(), _LABELS[folder]))
    return _both(texts, path)


def products(paths: list[Path]) -> list[Text]:
    """Returns the sentences of customers' reviews that are marked with opinions of one sign: zip archives of
    texts with lines ``thing[+2]##sentence``. Raises Error as ``imdb`` does."""
    texts = []
    for path in paths:
        for content in _archived(path).values():
            for line in content.splitlines():
                marks, found, sentence = line.partition("##")
                signs = set(_OPINION.findall(marks))
                if found and len(signs) == 1 and sentence.strip():
                    texts.append(Text(sentence.strip().encode(), int(signs == {"+"})))
    return _both(texts, paths[0] if paths else Path())


def _both(texts: list[Text], path: Path) -> list[Text]:
    if len({text.label for text in texts}) < 2:
        raise Error(
            _OP, "reviews that praise and others", f"none in {path}", "pass the archive of NLTK's data"
        )
    return texts


def shuffled(texts: list[Text]) -> list[Text]:
    """Returns texts in an order that is the same in each call: IMDB's table has one label after the other."""
    found = list(texts)
    random.Random(0).shuffle(found)
    return found


def parted(texts: list[Text]) -> Reviews:
    """Returns the parts of a set that has none: 80, 10 and 10 % in shuffled order."""
    mixed, tenth = shuffled(texts), len(texts) // 10
    return Reviews(mixed[2 * tenth :], mixed[:tenth], mixed[tenth : 2 * tenth])


def invented(count: int = 36) -> Reviews:
    """Returns short reviews of few words, for a look without any file."""
    draw = random.Random(0)
    words = ("a bad film", "dull and slow", "no story"), ("a good film", "clever and quick", "what a story")
    texts = [Text(", ".join(draw.choices(words[n % 2], k=6)).encode(), n % 2) for n in range(count)]
    third = count // 3
    return Reviews(texts[:third], texts[third : 2 * third], texts[2 * third :])


def sentences(paths: list[Path]) -> list[str]:
    """Returns the lines of 20 characters or more of zip archives of texts, such as NLTK's sentence_polarity
    and subjectivity. Raises Error as ``imdb`` does."""
    lines = [
        line.strip() for path in paths for text in _archived(path).values() for line in text.splitlines()
    ]
    return list(dict.fromkeys(line for line in lines if len(line) >= 20))
