"""Compares what libsparseloom.so exports with the committed list.

The public surface thus changes on purpose or not at all.

Usage: python tools/check_symbols.py LIBRARY LIST [--update]
"""

import subprocess
import sys
from pathlib import Path


def exported(library: str) -> list[str]:
    """Returns the demangled names of strong symbols, and of our own weak ones. Weak std:: instances are the
    compiler's."""
    text = subprocess.run(
        ["nm", "-DC", "--defined-only", "--without-symbol-versions", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = set()
    for line in text.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind in "TBDRA" or name.removeprefix("vtable for ").removeprefix("typeinfo for ").startswith(
            "sparseloom::"
        ):
            # The ABI tag is a detail of the standard library's strings.
            names.add(name.replace("[abi:cxx11]", "").replace("std::__cxx11::", "std::"))
    return sorted(names)


def main() -> int:
    library, listed = sys.argv[1], Path(sys.argv[2])
    now = exported(library)
    if "--update" in sys.argv:
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(now) + "\n")
        return 0
    before = listed.read_text().splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    for name in gone:
        print(f"- {name}")
    for name in new:
        print(f"+ {name}")
    if gone or new:
        print(
            "the exported symbols differ; if that is meant: python "
            f"tools/check_symbols.py {library} {listed} --update"
        )
        return 1
    print(f"{len(now)} exported symbols, as listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
