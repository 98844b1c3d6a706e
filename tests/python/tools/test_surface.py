"""What the package shows from outside: names, types, what it says aloud; and that no listed bug lacks its
test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

import sparseloom

HERE = Path(__file__).parents[1]
PACKAGE = Path(sparseloom.__file__).parent
#: Bugs of earlier libraries that each have a test named after them (the other numbers are 2:4's and other
#: operations').
BUGS = {1, 2, *range(5, 9), *range(10, 18), *range(19, 27), 29, 30}


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_a_users_strict_type_checker_takes_the_public_surface(tmp_path):
    pytest.importorskip("mypy")
    if sys.version_info < (3, 11):
        pytest.skip("typing.assert_type")
    (tmp_path / "sparseloom").symlink_to(PACKAGE)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")  # not the one of this tree
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--config-file",
        str(tmp_path / "mypy.ini"),
    ]
    command += ["--cache-dir", str(HERE.parents[1] / ".mypy_cache" / "user")]
    done = subprocess.run(
        [*command, str(HERE / "public_surface.py")],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_is_there_and_has_a_docstring():
    layers = set(sparseloom.nn.__all__)  # at the top level too, for whoever looks for one there
    assert len(sparseloom.__all__) == len(set(sparseloom.__all__)) and layers < set(sparseloom.__all__)
    assert len(set(sparseloom.__all__) - layers) <= 37
    for name in sparseloom.__all__:
        assert (getattr(sparseloom, name).__doc__ or "").strip(), name


def test_dir_lists_what_is_imported_on_first_use():
    code = "from sparseloom import distributed, sparsify; import sparseloom\n"
    code += "for room in (sparseloom, sparsify, distributed): print(sorted(set(room.__all__) - {*dir(room)}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"] * 3
    assert {"__version__", "shrink"} <= {*dir(sparseloom)}


def test_every_bug_of_the_list_has_a_test_named_after_it():
    names = [
        name
        for path in HERE.rglob("test_*.py")
        for name in re.findall(r"^def (test_b\d\w*)", path.read_text(), re.MULTILINE)
    ]
    on_the_cpu = {int(number) for name in names for number in re.findall(r"(?<=_b)(\d+)(?=_)", name)}
    assert on_the_cpu >= BUGS, sorted(BUGS - on_the_cpu)


PATCH = """
import logging
import torch, sparseloom
{configure}
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(4, 4))
result = sparseloom.sparsify_(net, {{".*": sparseloom.BlockSparse(block=16, density=0.5)}})
sparseloom.densify_(net)
"""


@pytest.mark.parametrize(
    ("configure", "said"),
    [
        ("", True),  # a program that says nothing about logging
        ("logging.basicConfig(level=logging.INFO)", True),
        ("logging.basicConfig()", False),  # warnings only, as that program wants it
        ("logging.getLogger('sparseloom').setLevel(logging.WARNING)", False),
        ("logging.getLogger('sparseloom').addHandler(logging.NullHandler())", False),
    ],
)
def test_what_became_sparse_is_printed_unless_the_program_says_otherwise(configure, said, tmp_path):
    done = forked.run(PATCH.format(configure=configure), tmp_path)
    assert done.returncode == 0 and not done.stdout, done.stderr
    for line in (
        "1 layer became block-sparse; 4,180 parameters became 2,132",
        "too small: 4 x 4 in blocks of 16 x 16: 1 (Linear)",
    ):
        assert (line in done.stderr) == said, done.stderr
    assert ("1 layer became dense" in done.stderr) == said and done.stderr.count(
        "became block-sparse"
    ) == said


def test_a_notebook_shows_one_line_beside_the_printed_table():
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(64, 64))
    result = sparseloom.sparsify_(net, {"0": sparseloom.BlockSparse(block=16, density=0.5)})
    assert repr(result) == "<1 layer became block-sparse; 4,160 parameters became 2,112>"
