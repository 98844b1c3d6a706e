#!/usr/bin/env bash
# scipy.io.mmread reads a number with Fortran's exponent letter D as its digits alone, and says nothing.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): of the entries "1.5D+02", "2.5d-1" and "3.0E1" of a Matrix Market file it returns
# 1.5, 2.5 and 30. Fortran writes D for double precision, so files of older solvers and collections have it. What follows
# the number that was understood is skipped up to the line's end, in coordinate and in array files.
#
# Whom it hurts: whoever takes a matrix from a Fortran program: every value has the right sign and digits and the wrong size.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
from io import BytesIO

from scipy.io import mmread

coordinate = b"%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.5D+02\n2 2 2.5d-1\n3 3 3.0E1\n"
array = b"%%MatrixMarket matrix array real general\n3 1\n1.5D+02\n2.5d-1\n3.0E1\n"
print("coordinate", mmread(BytesIO(coordinate)).diagonal().tolist())
print("array", mmread(BytesIO(array))[:, 0].tolist())
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'coordinate [1.5, 2.5, 30.0]\narray [1.5, 2.5, 30.0]' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
