#!/usr/bin/env bash
# A sparse tensor of pyarrow that is made from a column of a NumPy array holds the row's other numbers.
#
# Seen with pyarrow 25.0.0 (numpy 2.4.6, scipy 1.17.1): SparseCOOTensor, SparseCSRMatrix and SparseCSCMatrix.from_numpy
# take the values as a numpy.ndarray and read them one after another from the first address, whatever the strides. Of the
# column [1, 2, 3] of a [3, 2] array they store [1, 10, 2]. to_tensor, to_scipy and to_numpy show these.
# pyarrow.Tensor.from_numpy, and pyarrow.array, take the same column as it is.
#
# Whom it hurts: whoever exchanges the values of several weights of one pattern, kept as columns, as Arrow sparse
# tensors.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pyarrow==25.0.0
cat >"$folder/program.py" <<'PY'
import numpy as np
import pyarrow as pa

values = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
ends, at = np.array([0, 1, 2, 3]), np.array([0, 1, 2])
print("Tensor", pa.Tensor.from_numpy(values[:, 0]).to_numpy().tolist(), "array", pa.array(values[:, 0]).to_pylist())
for kind, indices in (
    (pa.SparseCOOTensor, (np.stack([at, at], 1),)),
    (pa.SparseCSRMatrix, (ends, at)),
    (pa.SparseCSCMatrix, (ends, at)),
):
    for data in (values[:, 0].copy(), values[:, 0]):
        made = kind.from_numpy(data, *indices, shape=(3, 3))
        print(kind.__name__, made.to_tensor().to_numpy().diagonal().tolist(), made.to_scipy().diagonal().tolist())
PY
said=$("$folder/venv/bin/python" "$folder/program.py")
printf '%s\n' "$said"
wanted="Tensor [1.0, 2.0, 3.0] array [1.0, 2.0, 3.0]
SparseCOOTensor [1.0, 2.0, 3.0] [1.0, 2.0, 3.0]
SparseCOOTensor [1.0, 10.0, 2.0] [1.0, 10.0, 2.0]
SparseCSRMatrix [1.0, 2.0, 3.0] [1.0, 2.0, 3.0]
SparseCSRMatrix [1.0, 10.0, 2.0] [1.0, 10.0, 2.0]
SparseCSCMatrix [1.0, 2.0, 3.0] [1.0, 2.0, 3.0]
SparseCSCMatrix [1.0, 10.0, 2.0] [1.0, 10.0, 2.0]"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
