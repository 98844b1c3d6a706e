"""Prints the folder of the torch that belongs to this Python, or nothing: for torch.cmake.

An isolated build (plain `pip install .`) hides the environment's packages from sys.path, and a torch among
the build's requirements would be a second one, several GB large. The interpreter still knows where its
environment is: torch is looked for there.
"""

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def folders() -> Iterator[Path]:
    """Where packages may lie, the environment's own first."""
    for name in ("platlib", "purelib"):
        yield Path(sysconfig.get_path(name))
    if environment := os.environ.get("VIRTUAL_ENV"):  # uv builds with a Python of its own
        yield Path(environment, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    yield from map(Path, site.getsitepackages([sys.prefix, sys.base_prefix]))
    yield Path(site.getusersitepackages())


def main() -> None:
    spec = importlib.util.find_spec("torch")
    found = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found += [folder / "torch" for folder in folders() if (folder / "torch" / "__init__.py").is_file()]
    print(found[0] if found else "")


if __name__ == "__main__":
    main()
