#!/usr/bin/env bash
# xformers 0.0.35 never multiplies by cuSPARSELt on a Hopper GPU.
#
# sparsify24(weight, backend="cusparselt") asks _has_cusparseLt(), which means to want cuSPARSELt 0.6 on compute capability 9.0, but
# compares the version with (6, 0, 0). torch 2.11 has 0.8.0, so the answer is no on every H100 and H200, and the
# call ends in an AssertionError without a message (seen on an H200 with torch 2.11.0+cu130). On compute capability 8.0 the answer is yes.
#
# Whom it hurts: whoever trains 2:4 weights by this backend on Hopper.
#
# No GPU is needed: torch's answers about the device and about cuSPARSELt are put in before the module is imported.
# Prints what it saw. Exits 0 while this holds, 1 when it no longer does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 2>/dev/null
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps xformers==0.0.35 2>/dev/null
cat >"$folder/check.py" <<'PYTHON'
import logging
import sys

import torch

logging.disable(logging.WARNING)  # its C++ operators are for another torch; none is called
torch.cuda.is_available = lambda: True
torch.backends.cusparselt.is_available = lambda: True
seen = {}
for version in (800, 900, 1000):  # 0.8.0, 0.9.0, 0.10.0, as torch.backends.cusparselt.version() counts
    torch.backends.cusparselt.version = lambda version=version: version
    sys.modules.pop("xformers.ops.sp24", None)
    for capability in ((8, 0), (9, 0)):
        torch.cuda.get_device_capability = lambda device=None, found=capability: found
        from xformers.ops import sp24

        sp24._cusplt_version = sp24._get_cusparselt_torch_version()
        seen[sp24._cusplt_version, capability] = sp24._has_cusparseLt()
for (version, capability), answer in seen.items():
    print(f"cuSPARSELt {'.'.join(map(str, version))}, compute capability {capability[0]}.{capability[1]}: {answer}")
wanted = {key: key[1] < (9, 0) for key in seen}
print("as found" if seen == wanted else "it has changed")
sys.exit(seen != wanted)
PYTHON
"$folder/venv/bin/python" "$folder/check.py"
