"""The check of commit subjects."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
check_subjects = importlib.import_module("check_subjects")


@pytest.mark.parametrize("subject", ["x" * 73, "Added a test", "Adding a test", "add a test", "A" * 80, ""])
def test_a_wrong_subject_is_found(subject: str) -> None:
    assert check_subjects.fault(subject)


@pytest.mark.parametrize("subject", ["Add a test", "Speed up dW", "Need less memory", "A" * 72])
def test_a_right_subject_passes(subject: str) -> None:
    assert not check_subjects.fault(subject)


def test_only_commits_after_the_base_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert check_subjects.main(tmp_path, "0" * 40) == 0 and "no history" in capsys.readouterr().out
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "added something before the rule")
    base = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "Add a thing")
    assert check_subjects.main(tmp_path, base) == 0 and not capsys.readouterr().out
    git("commit", "-q", "--allow-empty", "-m", "Fixed a thing")
    assert check_subjects.main(tmp_path, base) == 1 and "'Fixed a thing'" in capsys.readouterr().out
    assert check_subjects.main(tmp_path, "0" * 40) == 0  # as in a shallow clone
