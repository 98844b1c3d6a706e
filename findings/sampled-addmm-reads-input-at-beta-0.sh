#!/usr/bin/env bash
# torch.sparse.sampled_addmm reads its input at beta=0: a NaN or infinity there stays in the result as NaN.
#
# Seen with torch 2.13.0, CPU, float32 and float64. torch.addmm at beta=0 ignores what it would add, as its page says and
# BLAS has it; torch.addmm of a CSR matrix does, too. sampled_addmm, which is dW of a CSR weight, multiplies the input by
# 0, and 0 x NaN is NaN, with out= as well. alpha=0 is alike: sampled_addmm, and torch.addmm with a CSR matrix, give NaN
# for infinities in the operands, where the dense product gives beta x input.
#
# Whom it hurts: whoever writes a sparse gradient into a buffer that holds anything (torch.empty, a step that
# overflowed) with beta=0: one NaN never leaves it. Fill the values with zeros before each call.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.py" <<'PY'
import torch

nan, inf = float("nan"), float("inf")


def csr(value, dtype):
    eye = torch.eye(3, dtype=dtype).to_sparse_csr()
    values = torch.full((3,), value, dtype=dtype)
    return torch.sparse_csr_tensor(eye.crow_indices(), eye.col_indices(), values, (3, 3))


for dtype in (torch.float32, torch.float64):
    left, right = torch.ones(3, 2, dtype=dtype), torch.ones(2, 3, dtype=dtype)
    square = torch.ones(3, 3, dtype=dtype)
    for bad in (nan, inf):
        held = csr(bad, dtype)
        dense = torch.addmm(torch.full((3, 3), bad, dtype=dtype), left, right, beta=0.0)
        by_csr = torch.addmm(torch.full((3, 3), bad, dtype=dtype), csr(2.0, dtype), square, beta=0.0)
        sampled = torch.sparse.sampled_addmm(held, left, right, beta=0.0).values()
        print(dtype, bad, "beta=0: dense", dense[0, 0].item(), "by CSR", by_csr[0, 0].item(),
              "sampled", sampled[0].item())
    torch.sparse.sampled_addmm(held, left, right, beta=0.0, out=held)
    print("  out=", held.values().tolist())
    endless = torch.full((2, 3), inf, dtype=dtype)
    dense = torch.addmm(square, left, endless, alpha=0.0)
    by_csr = torch.addmm(square, csr(2.0, dtype), torch.full((3, 3), inf, dtype=dtype), alpha=0.0)
    sampled = torch.sparse.sampled_addmm(csr(1.0, dtype), left, endless, alpha=0.0).values()
    print("  alpha=0: dense", dense[0, 0].item(), "by CSR", by_csr[0, 0].item(), "sampled", sampled[0].item())
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py")
printf '%s\n' "$said"
wanted="torch.float32 nan beta=0: dense 2.0 by CSR 2.0 sampled nan
torch.float32 inf beta=0: dense 2.0 by CSR 2.0 sampled nan
  out= [nan, nan, nan]
  alpha=0: dense 1.0 by CSR nan sampled nan
torch.float64 nan beta=0: dense 2.0 by CSR 2.0 sampled nan
torch.float64 inf beta=0: dense 2.0 by CSR 2.0 sampled nan
  out= [nan, nan, nan]
  alpha=0: dense 1.0 by CSR nan sampled nan"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
