"""Checks a wheel of tools/make_wheels.sh: its name, its size, and what its libraries need of a system.

Usage: python tools/check_wheel.py --megabytes 3 WHEEL. The exit status is 1 when it is larger, is not named
for manylinux_2_28 and every Python 3, holds something beside the package, or needs a newer glibc or
libstdc++.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: The newest versions of symbols that manylinux_2_28 has.
LIMITS = {"GLIBC": "2.28", "GLIBCXX": "3.4.24", "CXXABI": "1.3.11", "GCC": "7.0.0"}
#: What the libraries may name: the system's own, torch's, and each other.
NEEDED = re.compile(
    r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux-x86-64\.so\.2|libtorch\w*\.so|libsparseloom\.so)$"
)
LIBRARIES = ["sparseloom/libsparseloom.so", "sparseloom/libsparseloom_torch.so"]
NAME = re.compile(r"sparseloom-[\d.]+-py3-none-manylinux_2_28_x86_64\.whl$")


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def faults_of_library(path: Path) -> list[str]:
    """Returns a line for each symbol's version and each library that the policy does not have."""
    symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    wanted = set(re.findall(r"\*UND\*.*?\(?\b(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", symbols))
    faults = [
        f"{path.name}: needs {family}_{version}, expected at most {LIMITS[family]}"
        for family, version in sorted(wanted)
        if number(version) > number(LIMITS[family])
    ]
    if not wanted:
        faults.append(f"{path.name}: needs no version of any symbol, which cannot be")
    dynamic = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED\s+(\S+)", dynamic)
    return faults + [f"{path.name}: needs {name}" for name in needed if not NEEDED.match(name)]


def faults_of(wheel: Path, megabytes: float) -> list[str]:
    faults = [] if NAME.match(wheel.name) else [f"{wheel.name}: expected {NAME.pattern}"]
    size = wheel.stat().st_size / 1e6
    if size > megabytes:
        faults.append(f"{wheel.name}: {size:.1f} MB, expected at most {megabytes:g}")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        faults += [f"holds {n}" for n in names if not re.match(r"sparseloom(-[\d.]+\.dist-info)?/", n)]
        libraries = sorted(name for name in names if name.endswith(".so"))
        if libraries != LIBRARIES:
            faults.append(f"holds the libraries {libraries}, expected {LIBRARIES}")
        for name in set(libraries) & set(LIBRARIES):
            faults += faults_of_library(Path(archive.extract(name, folder)))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("wheel", type=Path)
    given = parser.parse_args()
    faults = faults_of(given.wheel, given.megabytes)
    print("\n".join(faults) or f"{given.wheel}: {given.wheel.stat().st_size / 1e6:.2f} MB, in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
