"""Fails when nvcc is on the PATH and the installed sparseloom has no CUDA kernels: `make test` then tested
less than it could."""

import shutil
import sys

from sparseloom import ops


def main() -> int:
    cuda, nvcc = ops.info()["cuda"], shutil.which("nvcc")
    print(f"CUDA kernels compiled in: {cuda['compiled']}; nvcc: {nvcc or 'not found'}")
    return int(nvcc is not None and not cuda["compiled"])


if __name__ == "__main__":
    sys.exit(main())
