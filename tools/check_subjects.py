"""Checks the subjects of new commits: at most 72 characters, a capital first, and an imperative verb.

Usage: python tools/check_subjects.py. The exit status is 1 when a subject is wrong. Commits up to BASE are
not checked: one of them is longer. Without git, or in a clone that does not reach back to BASE, none is.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "f08552b1d6627071ed73e4fffb5678e0922e4119"
LONGEST = 72
#: Imperatives that end as a past tense or a gerund does.
IMPERATIVES = {"Bring", "Embed", "Feed", "Need", "Seed", "Shed", "Speed", "String", "Wed"}


def fault(subject: str) -> str:
    """Says what is wrong with a subject; "" where nothing is."""
    first = subject.split(" ")[0]
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, at most {LONGEST}"
    if not first[:1].isupper():
        return "begins with a capital letter"
    if first not in IMPERATIVES and first.endswith(("ed", "ing")):
        return f"begins with an imperative, not with {first!r}"
    return ""


def subjects(root: Path, base: str) -> list[str] | None:
    """Returns the subjects of commits after ``base``, merges left out; None where git cannot tell."""
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%s", f"{base}..HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def main(root: Path = ROOT, base: str = BASE) -> int:
    found = subjects(root, base)
    if found is None:
        print("commit subjects: no history to check here")
        return 0
    wrong = [(subject, words) for subject in found if (words := fault(subject))]
    for subject, words in wrong:
        print(f"commit subject {subject!r}: {words}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
