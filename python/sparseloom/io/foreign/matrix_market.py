"""Matrix Market files: one matrix as text (math.nist.gov/MatrixMarket/formats.html)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._checks import warn
from ...errors import Error

_FIELDS = ("real", "double", "integer", "pattern")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_REMEDY = "take an undamaged file"


def read(data: bytes, shape: tuple[int, int]) -> Tensor:
    """Returns the matrix as float32 [rows, cols]; ``pattern`` entries are 1, and entries of one place add up.
    Raises Error for a matrix of another size than ``shape``, before anything of its size is made. Warns of
    integers, as which SciPy writes float16: what it cut is not in the file."""
    try:
        header, _, body = data.decode("ascii").partition("\n")
    except UnicodeDecodeError as error:
        raise Error("load", "a Matrix Market file of ASCII text", str(error), _REMEDY) from error
    words = header.lower().split()
    if words[:2] != ["%%matrixmarket", "matrix"] or len(words) != 5:
        raise Error("load", "a first line %%MatrixMarket matrix ...", repr(header[:60]), _REMEDY)
    form, field, symmetry = words[2:]
    if form not in ("coordinate", "array") or field not in _FIELDS or symmetry not in _SYMMETRIES:
        got, remedy = " ".join(words[2:]), "convert it, with scipy.io for example"
        raise Error(
            "load", "coordinate or array, real, integer or pattern, general or symmetric", got, remedy
        )
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("%")]
    sizes = _numbers(lines[:1], int)
    if tuple(sizes[:2]) != shape or len(sizes) != (3 if form == "coordinate" else 2):
        expected = f"a matrix of {shape[0]} x {shape[1]}, as the weight"
        raise Error("load", expected, " x ".join(map(str, sizes[:2])), "load it into a layer of its size")
    if field == "integer":
        warn(
            "load: this Matrix Market file holds integers; if scipy.io.mmwrite wrote it from float16, it cut "
            "the fractions: write the weight as float32"
        )
    if form == "array":
        return _array(lines[1:], shape, symmetry)
    width = 2 if field == "pattern" else 3
    values = _numbers(lines[1:], float)
    uneven = any(len(line.split()) != width for line in lines[1:])
    if len(lines) - 1 != sizes[2] or uneven:
        got = f"{len(lines) - 1} lines with {len(values)} numbers"
        raise Error("load", f"{sizes[2]} lines of {width} numbers", got, _REMEDY)
    table = torch.tensor(values, dtype=torch.float64).view(-1, width)
    told = table[:, :2]
    places = told.long() - 1
    # an infinite or huge one is some other whole number there
    if bool(((places + 1 != told) | (places < 0) | (places >= torch.tensor(shape))).any()):
        raise Error("load", f"whole places inside {shape[0]} x {shape[1]}", "another one", _REMEDY)
    if symmetry != "general":
        _require_one_side(places)
    stored = table[:, 2] if width == 3 else torch.ones(len(table), dtype=torch.float64)
    weight = torch.zeros(shape, dtype=torch.float64)
    weight.index_put_(tuple(places.t()), stored, accumulate=True)
    return _mirrored(weight, symmetry).float()


def _array(lines: list[str], shape: tuple[int, int], symmetry: str) -> Tensor:
    """Reads columns one after the other; of a symmetric matrix those below the diagonal."""
    values = _numbers(lines, float)
    rows, cols = shape
    skew = symmetry == "skew-symmetric"
    expected = rows * cols
    if symmetry != "general":
        expected = rows * (rows - 1) // 2 if skew else rows * (rows + 1) // 2
    if len(values) != expected:
        raise Error("load", f"{expected} numbers", f"{len(values)}", _REMEDY)
    read = torch.tensor(values, dtype=torch.float64)
    if symmetry == "general":
        return read.view(cols, rows).t().float().contiguous()
    weight = torch.zeros(rows, rows, dtype=torch.float64)
    column, row = torch.triu_indices(rows, rows, 1 if skew else 0)
    weight[row, column] = read
    return _mirrored(weight, symmetry).float()


def _require_one_side(places: Tensor) -> None:
    """Raises Error where a symmetric file has an element and its mirror image, whose sum it does not mean."""
    above, below = places[places[:, 0] < places[:, 1]], places[places[:, 0] > places[:, 1]]
    twice = set(map(tuple, above.tolist())) & set(map(tuple, below.flip(1).tolist()))
    if twice:
        row, col = min(twice)
        got = f"both ({row + 1}, {col + 1}) and ({col + 1}, {row + 1})"
        raise Error("load", "one of two mirrored elements of a symmetric matrix", got, _REMEDY)


def _mirrored(weight: Tensor, symmetry: str) -> Tensor:
    if symmetry == "general":
        return weight
    above = weight.t().clone().fill_diagonal_(0)
    return weight - above if symmetry == "skew-symmetric" else weight + above


def _numbers(lines: list[str], kind: type) -> list[float]:
    """Returns the numbers of lines; Fortran writes the exponent of a double behind D."""
    if kind is float:
        lines = [line.replace("D", "e").replace("d", "e") for line in lines]
    try:
        return [kind(word) for line in lines for word in line.split()]
    except ValueError as error:
        raise Error("load", "numbers", str(error), _REMEDY) from error
