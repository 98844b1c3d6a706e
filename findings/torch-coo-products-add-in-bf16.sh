#!/usr/bin/env bash
# torch adds up the product of a COO weight in the weight's own bfloat16: 4096 ones have the sum 256.
#
# Seen with torch 2.13.0, CPU. A row of 4096 ones times a column of ones gives 4096 where the weight is dense or CSR (sum
# of torch.sparse.mm), and 256 where it is COO: 256 + 1 is 256 in bfloat16. float16 stops at 2048. It is so for `weight @
# x`, torch.sparse.mm, F.linear and torch.sum(weight, 1). With 4096 random numbers the error is over 20 times that of the
# dense product of the same numbers. torch.sum of the whole COO tensor is right.
#
# Whom it hurts: whoever runs a pruned model with COO weights in bfloat16: outputs are wrong in the first digit, no
# error.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.py" <<'PY'
import torch
from torch.nn.functional import linear

for dtype in (torch.bfloat16, torch.float16):
    weight, x = torch.ones(2, 4096, dtype=dtype), torch.ones(4096, 2, dtype=dtype)
    coo, csr = weight.to_sparse(), weight.to_sparse_csr()
    print(dtype, "dense", (weight @ x)[0, 0].item(), "CSR", torch.sparse.mm(csr, x, "sum")[0, 0].item())
    found = {
        "@": coo @ x,
        "sparse.mm": torch.sparse.mm(coo, x),
        "linear": linear(x.t(), coo),
        "sum of rows": torch.sum(coo, 1).to_dense(),
        "sum": coo.sum(),
    }
    print("  COO", {name: result.flatten()[0].item() for name, result in found.items()})

torch.manual_seed(0)
weight, x = torch.randn(64, 4096).bfloat16(), torch.randn(4096, 64).bfloat16()
right = weight.double() @ x.double()
dense, coo = ((product.double() - right).norm() for product in (weight @ x, weight.to_sparse() @ x))
print("random: error over 20 times that of the dense product:", bool(coo > 20 * dense))
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py")
printf '%s\n' "$said"
wanted="torch.bfloat16 dense 4096.0 CSR 4096.0
  COO {'@': 256.0, 'sparse.mm': 256.0, 'linear': 256.0, 'sum of rows': 256.0, 'sum': 8192.0}
torch.float16 dense 4096.0 CSR 4096.0
  COO {'@': 2048.0, 'sparse.mm': 2048.0, 'linear': 2048.0, 'sum of rows': 2048.0, 'sum': 8192.0}
random: error over 20 times that of the dense product: True"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
