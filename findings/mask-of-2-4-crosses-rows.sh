#!/usr/bin/env bash
# compressed-tensors makes a "2:4" mask whose groups run over the ends of rows, and says nothing.
#
# Seen with compressed-tensors 0.20.1 (torch 2.11.0): utils.semi_structured_conversions.mask_creator of a weight [2, 6] cuts
# the flat memory into groups of four, of which the second holds the last two columns of row 0 and the first two of row 1.
# Every flat group keeps two; the first group of row 1, which hardware and every 2:4 format know, keeps four. Only a number
# of elements that 4 does not divide is refused, so rows of 6, 10 or 130 columns pass wherever the rows are even in number.
#
# Whom it hurts: whoever prunes a layer of such a width with this mask and then packs it as 2:4: values are dropped, or the
# packer refuses a weight that was "pruned to 2:4".
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.11.0 compressed-tensors==0.20.1
cat >"$folder/program.py" <<'PY'
import torch
from compressed_tensors.utils.semi_structured_conversions import mask_creator

weight = torch.tensor([[1.0, 2.0, 3.0, 4.0, 1.0, 2.0], [8.0, 9.0, 7.0, 6.0, 1.0, 2.0]])
mask = mask_creator(weight)
print("flat groups keep", [int(kept) for kept in mask.reshape(-1, 4).sum(1)])
print("first groups of the rows keep", [int(kept) for kept in mask[:, :4].sum(1)])
try:
    mask_creator(torch.ones(1, 6))
except ValueError:
    print("one row of 6: refused")
PY
said=$("$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'compressed-tensors %s\n%s\n' "$("$folder/venv/bin/python" -m pip show compressed-tensors | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'flat groups keep [2, 2, 2]\nfirst groups of the rows keep [2, 4]\none row of 6: refused' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
