#!/usr/bin/env bash
# A scipy matrix with repeated entries that goes through pyarrow is another matrix: to_tensor keeps the last, not the sum.
#
# Seen with pyarrow 25.0.0 (numpy 2.4.6, scipy 1.17.1). In scipy, as in torch's COO, entries of one place are added. Arrow
# keeps all of them, and a COO tensor even records has_canonical_format=False; its format allows duplicates there. But
# to_tensor writes them one over the other, for COO, CSR and CSC: 2 + 3 is 3. to_scipy of the same object still gives 5.
#
# Whom it hurts: whoever sends accumulated gradients, or blocks put together from parts, through Arrow and reads dense.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pyarrow==25.0.0
cat >"$folder/program.py" <<'PY'
import numpy as np
import pyarrow as pa
from scipy import sparse

values = np.array([2.0, 3.0, 4.0])
coo = sparse.coo_array((values, ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
csr = sparse.csr_array((values, [1, 1, 0], [0, 2, 3]), shape=(2, 2))
csc = sparse.csc_array((values, [1, 1, 0], [0, 2, 3]), shape=(2, 2))
kinds = (pa.SparseCOOTensor, pa.SparseCSRMatrix, pa.SparseCSCMatrix)
for kind, matrix in zip(kinds, (coo, csr, csc)):
    sent = kind.from_scipy(matrix)
    dense = sent.to_tensor().to_numpy().tolist()
    print(kind.__name__, matrix.toarray().tolist(), sent.to_scipy().toarray().tolist(), dense, sent.non_zero_length)
PY
said=$("$folder/venv/bin/python" "$folder/program.py")
printf '%s\n' "$said"
wanted="SparseCOOTensor [[0.0, 5.0], [4.0, 0.0]] [[0.0, 5.0], [4.0, 0.0]] [[0.0, 3.0], [4.0, 0.0]] 3
SparseCSRMatrix [[0.0, 5.0], [4.0, 0.0]] [[0.0, 5.0], [4.0, 0.0]] [[0.0, 3.0], [4.0, 0.0]] 3
SparseCSCMatrix [[0.0, 4.0], [5.0, 0.0]] [[0.0, 4.0], [5.0, 0.0]] [[0.0, 4.0], [3.0, 0.0]] 3"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
