#!/usr/bin/env bash
# A NaN in one token reaches the token before it: bf16 products of PyTorch on a CPU with AMX.
#
# Seen with torch 2.13.0+cpu (its oneDNN) on a Xeon with AMX. torch.nn.functional.linear(x, w) of bf16, x of 37 x 200
# (200 is no multiple of 32, and 32 rows are a full tile): x[5] = NaN makes rows 4 and 5 of the result NaN, and x as the
# first 200 columns of a wider matrix whose other columns are NaN makes all 32 rows of the tile NaN. The kernel reads
# each row of x up to the next 32nd column and multiplies what lies there by zeros; 0 * NaN is NaN. Finite memory there
# does no harm. With 64, 96 or 224 columns, in fp16 and in fp32, only the row with the NaN is NaN, and so it is with
# ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
#
# Whom it hurts: whoever masks padding tokens with NaN, or looks for the token in which a NaN began.
# Exits 0 if the behaviour is as stated, 1 if it changed, 77 on a CPU without AMX.
set -euo pipefail
grep -q amx_bf16 /proc/cpuinfo || { echo "skipped: this CPU has no AMX"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
cat >"$folder/rows.py" <<'PY'
import torch
from torch.nn.functional import linear

torch.manual_seed(0)


def nan_rows(y):
    return y.isnan().any(1).nonzero().flatten().tolist()


def of_one_nan(columns, dtype):
    x, w = torch.randn(37, columns, dtype=dtype), torch.randn(96, columns, dtype=dtype)
    x[5] = torch.nan
    return nan_rows(linear(x, w))


wide = torch.full((37, 264), torch.nan, dtype=torch.bfloat16)
x = wide[:, :200]
x.copy_(torch.randn(37, 200))
print("bf16 200:", of_one_nan(200, torch.bfloat16))
print("bf16 224:", of_one_nan(224, torch.bfloat16))
print("fp16 200:", of_one_nan(200, torch.float16))
print("fp32 200:", of_one_nan(200, torch.float32))
print("columns of a wider matrix:", len(nan_rows(linear(x, torch.randn(96, 200, dtype=torch.bfloat16)))))
print("the same, copied:", len(nan_rows(linear(x.clone(), torch.randn(96, 200, dtype=torch.bfloat16)))))
PY
seen=$("$folder/venv/bin/python" "$folder/rows.py")
capped=$(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 "$folder/venv/bin/python" "$folder/rows.py")
echo "AMX:"; echo "$seen"
echo "without AMX:"; echo "$capped"
want_seen='bf16 200: [4, 5]
bf16 224: [5]
fp16 200: [5]
fp32 200: [5]
columns of a wider matrix: 32
the same, copied: 0'
want_capped='bf16 200: [5]
bf16 224: [5]
fp16 200: [5]
fp32 200: [5]
columns of a wider matrix: 0
the same, copied: 0'
[ "$seen" = "$want_seen" ] && [ "$capped" = "$want_capped" ] && echo "as stated"
