#!/usr/bin/env bash
# setdiag of scipy's BSR matrices and arrays fails by an attribute that they do not have.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): bsr_array and bsr_matrix have the method setdiag, as all formats do; a call raises
# AttributeError: no attribute '_swap', whatever is stored. csr, csc, coo, dia, dok and lil set the diagonal.
#
# Whom it hurts: whoever regularises or resets a block-sparse weight's diagonal with code that was written for CSR.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
import numpy as np
from scipy import sparse

for kind in ("csr", "csc", "coo", "dia", "dok", "lil", "bsr"):
    matrix = getattr(sparse, kind + "_array")(np.eye(4))
    try:
        matrix.setdiag(2.0)
        print(kind, matrix.diagonal().tolist())
    except AttributeError as error:
        print(kind, "AttributeError:", str(error).rpartition(" ")[2])
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'csr [2.0, 2.0, 2.0, 2.0]\ncsc [2.0, 2.0, 2.0, 2.0]\ncoo [2.0, 2.0, 2.0, 2.0]\ndia [2.0, 2.0, 2.0, 2.0]\ndok [2.0, 2.0, 2.0, 2.0]\nlil [2.0, 2.0, 2.0, 2.0]\nbsr AttributeError: \'_swap\'' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
