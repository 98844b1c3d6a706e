#!/usr/bin/env bash
# torchao's SupermaskLinear wants to lower a sparsity that leaves no block, and fails while it says so.
#
# Seen with torchao 0.18.0 and torch 2.13.0, CPU. A layer keeps at least one block: where sparsity_level is above
# 1 - 1/blocks, the constructor prints "reducing sparsity from ... to ..." and goes on with the largest that fits. The text
# names self.sparsity, which the class does not have: from_linear raises AttributeError ('SupermaskLinear' object has no
# attribute 'sparsity'). nn.Linear(64, 64) takes 0.9 in blocks of 16 (16 blocks) and not in blocks of 32 (4 blocks), nor 0.5
# in its one block of 64. The largest level itself, 0.75 of the four blocks, zeroes two, not three.
#
# Whom it hurts: whoever makes a whole model block-sparse: one small layer, such as a head, ends it, and names no cause.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchao==0.18.0
cat >"$folder/program.py" <<'PY'
from torch import nn
from torchao.sparsity.supermask import SupermaskLinear

for level, side in ((0.9, 16), (0.75, 32), (0.9, 32), (0.5, 64)):
    try:
        layer = SupermaskLinear.from_linear(nn.Linear(64, 64), sparsity_level=level, blocksize=side)
        print(level, side, "zeros:", (SupermaskLinear.to_linear(layer).weight == 0).float().mean().item())
    except AttributeError as error:
        print(level, side, "AttributeError:", error)
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py" 2>/dev/null)
printf '%s\n' "$said"
wanted="0.9 16 zeros: 0.875
0.75 32 zeros: 0.5
0.9 32 AttributeError: 'SupermaskLinear' object has no attribute 'sparsity'
0.5 64 AttributeError: 'SupermaskLinear' object has no attribute 'sparsity'"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
