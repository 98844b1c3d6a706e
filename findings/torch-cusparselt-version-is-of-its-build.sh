#!/usr/bin/env bash
# torch.backends.cusparselt.version() is the version that torch was compiled against, not that of the library it has loaded.
#
# torch.backends.cudnn.version() asks the library. Seen with torch 2.14.1 (PyPI's CUDA 13 build), on a machine without a GPU: with
# nvidia-cusparselt-cu13 0.10.0 in the place of the pinned 0.8.1, torch loads 0.10.0, whose own cusparseLtGetProperty says so, and goes on
# saying 801. An H200 with torch 2.11.0 and 0.10.0 preloaded said 800 while torch's products were bound to the preloaded library.
#
# Whom it hurts: whoever compares products of two versions, or chooses an algorithm or a workaround by this number.
# Prints what it saw (5.5 GB of packages). Exits 0 while this holds, 1 when it no longer does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.14.1 2>/dev/null
cat >"$folder/check.py" <<'PYTHON'
import ctypes

import torch

loaded = next(line.split()[-1] for line in open("/proc/self/maps") if "libcusparseLt" in line)
library, number = ctypes.CDLL(loaded), ctypes.c_int()
parts = []
for part in range(3):  # major, minor, patch
    library.cusparseLtGetProperty(part, ctypes.byref(number))
    parts.append(str(number.value))
print(f"torch says {torch.backends.cusparselt.version()}, the loaded library {'.'.join(parts)}")
PYTHON
seen=$("$folder/venv/bin/python" "$folder/check.py")
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps nvidia-cusparselt-cu13==0.10.0 2>/dev/null
seen+=$'\n'$("$folder/venv/bin/python" "$folder/check.py")
printf '%s\n' "$seen"
wanted="torch says 801, the loaded library 0.8.1
torch says 801, the loaded library 0.10.0"
if [[ $seen == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
