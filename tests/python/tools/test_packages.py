"""A test that lacks its package is left out on somebody's machine, and an error in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("ci", "status"), [("true", 4), ("", 0)])
def test_a_missing_package_fails_ci_alone(tmp_path: Path, ci: str, status: int) -> None:
    if ci and sys.version_info < (3, 11):
        pytest.skip("on Python 3.10 the packages are not asked for")
    text = (
        "import pytest\n\n@pytest.mark.package('no_such_package')\ndef test_a(): pass\n\ndef test_b(): pass\n"
    )
    (tmp_path / "test_it.py").write_text(text)
    paths = os.pathsep.join([str(ROOT / "tests" / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(ROOT / "pyproject.toml"), str(tmp_path)],
        env=os.environ | {"CI": ci, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("test_it.py::test_a" in done.stderr) == bool(ci)
