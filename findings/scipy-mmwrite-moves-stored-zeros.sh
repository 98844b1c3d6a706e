#!/usr/bin/env bash
# scipy.io.mmwrite calls a matrix symmetric by its values and then writes its lower half: a stored zero is lost or doubled.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): three stored entries (1 and 2 on the diagonal, a zero beside them) come back as two
# where the zero lies above the diagonal, and as four where it lies below. The file says "symmetric"; symmetry="general"
# keeps the three.
#
# Whom it hurts: whoever keeps a pattern in stored entries, as sparse training does: a weight that is zero today is trained
# tomorrow. The file has another pattern than the matrix, with equal values.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
from io import BytesIO

from scipy.io import mmread, mmwrite
from scipy.sparse import coo_array

for name, row, col in (("above", 0, 1), ("below", 1, 0)):
    matrix = coo_array(([1.0, 0.0, 2.0], ([0, row, 1], [0, col, 1])), shape=(2, 2)).tocsr()
    for symmetry in (None, "general"):
        file = BytesIO()
        mmwrite(file, matrix, symmetry=symmetry)
        print(name, symmetry, matrix.nnz, "->", mmread(BytesIO(file.getvalue())).nnz)
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'above None 3 -> 2\nabove general 3 -> 3\nbelow None 3 -> 4\nbelow general 3 -> 3' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
