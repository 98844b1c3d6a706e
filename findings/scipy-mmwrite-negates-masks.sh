#!/usr/bin/env bash
# scipy.io.mmwrite fails on a mask of neighbours, and writes other numbers than it got of an unsigned matrix.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): the search for a symmetry, which is on for sides below 100 and with symmetry=None,
# negates values to find a skew one. numpy negates no bool: a sparse bool matrix in which each entry has its mirror image,
# and nothing is on the diagonal, raises TypeError (the numpy boolean negative is not supported); with a diagonal, or
# without the mirror images, it is written. In uint8 the negative of 56 is 200: [[0, 200], [56, 0]] is written as
# "integer skew-symmetric" and read as [[0, -56], [56, 0]]. symmetry="general" is right for both. The documentation tells
# only that the symmetry "is determined by its values".
#
# Whom it hurts: whoever keeps masks, graphs without loops, or quantised weights in this format.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
from io import BytesIO

import numpy as np
from scipy.io import mmread, mmwrite
from scipy.sparse import csr_array


def result(dense, **how):
    file = BytesIO()
    try:
        mmwrite(file, csr_array(dense), **how)
    except TypeError as error:
        return f"TypeError: {str(error)[:26]}"
    kind = file.getvalue().split(b"\n")[0].decode().split(" ", 3)[3]
    back = mmread(BytesIO(file.getvalue())).toarray()
    return f"{kind}, {'as written' if np.array_equal(back, dense) else back.tolist()}"


distance = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
for name, mask in (("band", distance < 2), ("causal", np.tri(4, k=-1, dtype=bool)), ("neighbours", distance == 1)):
    print(name, "|", result(mask), "|", result(mask, symmetry="general"))
bytes_ = np.array([[0, 200], [56, 0]], np.uint8)
print("uint8 |", result(bytes_), "|", result(bytes_, symmetry="general"))
PY
said=$("$folder/venv/bin/python" "$folder/program.py")
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
wanted="band | integer symmetric, as written | integer general, as written
causal | integer general, as written | integer general, as written
neighbours | TypeError: The numpy boolean negative | integer general, as written
uint8 | integer skew-symmetric, [[0, -56], [56, 0]] | integer general, as written"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
