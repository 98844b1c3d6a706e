#!/usr/bin/env bash
# scipy.io.mmwrite writes float16 as integers: 0.1 becomes 0, and nothing is said.
#
# Seen with scipy 1.17.1 (numpy 2.4.6): a dense float16 matrix, and a coo_array whose data was set to float16, get a header
# "integer" and values cut towards zero, in array and in coordinate files; mmread returns int64. The constructors of
# scipy.sparse refuse float16 in words, and float32 is written with all digits.
#
# Whom it hurts: whoever archives weights of a half-precision model in this format: nearly all are below 1 and become 0.
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
from scipy.sparse import coo_array

weight = np.array([[0.1, 0], [0, -2.5]], np.float32)
stored = coo_array(weight)
stored.data = stored.data.astype(np.float16)
for name, matrix in (("array", weight.astype(np.float16)), ("coordinate", stored), ("float32", weight)):
    file = BytesIO()
    mmwrite(file, matrix, symmetry="general")
    back = mmread(BytesIO(file.getvalue()))
    print(name, file.getvalue().split()[3].decode(), (back if name != "coordinate" else back.toarray()).tolist())
try:
    coo_array(weight.astype(np.float16))
except ValueError as error:
    print(str(error)[:41])
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'scipy %s\n%s\n' "$("$folder/venv/bin/python" -m pip show scipy | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'array integer [[0, 0], [0, -2]]\ncoordinate integer [[0, 0], [0, -2]]\nfloat32 real [[0.1, 0.0], [0.0, -2.5]]\nscipy.sparse does not support dtype float' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
