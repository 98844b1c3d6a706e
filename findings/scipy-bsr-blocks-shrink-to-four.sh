#!/usr/bin/env bash
# scipy.sparse finds no block larger than 4 x 4: a matrix of 32 x 32 blocks that goes through CSR has 64 times as many.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): csr.tobsr() and bsr_array(csr) look for a block size themselves and try up to four
# rows and columns. Four blocks of 5 x 5 come back as 34 of 2 x 2, with 36 zeros that were not stored; four of 32 x 32 as 256
# of 4 x 4. blocksize=(32, 32) keeps them.
#
# Whom it hurts: whoever stores block-sparse weights by way of CSR: kernels get tiny blocks and an index of 64 times the size.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
import numpy as np
from scipy.sparse import bsr_array

for side in (2, 3, 4, 5, 8, 32):
    dense = np.kron(np.eye(4), np.ones((side, side)))
    found = bsr_array(dense, blocksize=(side, side)).tocsr().tobsr()
    print(side, found.blocksize, len(found.indices), found.data.size - np.count_nonzero(dense))
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'2 (2, 2) 4 0\n3 (3, 3) 4 0\n4 (4, 4) 4 0\n5 (2, 2) 34 36\n8 (4, 4) 16 0\n32 (4, 4) 256 0' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
