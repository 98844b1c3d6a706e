#!/usr/bin/env bash
# scipy.io.hb_read cannot read what scipy.io.hb_write writes of a float32 matrix with a negative value.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): a Harwell-Boeing file has numbers in columns of a fixed width, which its header gives.
# hb_write fills the width of float32 (15) and of float64 with an exponent of three digits (25), so that a minus sign touches
# the number before it. hb_read parts numbers at blanks: it raises "string or file could not be read to its end". Files of
# Fortran programs, which the format is of, look the same. A negative value is read where it is the first of its line.
#
# Whom it hurts: whoever archives sparse weights in this format, or takes matrices of the old collections in it.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cat >"$folder/program.py" <<'PY'
from tempfile import NamedTemporaryFile

import numpy as np
from scipy.io import hb_read, hb_write
from scipy.sparse import csc_array

for values, dtype in (([0.5, 3.0], np.float32), ([-0.5, 3.0], np.float32), ([0.5, -3.0], np.float32),
                      ([0.5, -3.0], np.float64), ([1e-200, -3.0], np.float64), ([0.5, -1e200], np.float64)):
    matrix = csc_array((np.array(values, dtype), [0, 1], [0, 1, 2]))
    with NamedTemporaryFile(suffix=".hb") as file:
        hb_write(file.name, matrix)
        try:
            read = hb_read(file.name, spmatrix=False).diagonal().tolist()
        except ValueError:
            read = "ValueError"
    print(dtype.__name__, values, "->", read)
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'float32 [0.5, 3.0] -> [0.5, 3.0]\nfloat32 [-0.5, 3.0] -> [-0.5, 3.0]\nfloat32 [0.5, -3.0] -> ValueError\nfloat64 [0.5, -3.0] -> [0.5, -3.0]\nfloat64 [1e-200, -3.0] -> [1e-200, -3.0]\nfloat64 [0.5, -1e+200] -> ValueError' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
