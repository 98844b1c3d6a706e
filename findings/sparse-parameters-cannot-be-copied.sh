#!/usr/bin/env bash
# A module whose Parameter is a torch sparse tensor cannot be copied: copy.deepcopy raises for every sparse layout.
#
# Seen with torch 2.13.0, CPU. copy.deepcopy of nn.Parameter(w.to_sparse_csr()), and of COO, CSC and BSR, raises RuntimeError
# "unsupported memory format option Preserve"; of a plain COO tensor it works, of a plain CSR, CSC or BSR tensor it raises
# NotImplementedError. So AveragedModel, and everything else that copies a module, refuses an nn.Linear whose weight is
# sparse, although its forward, state_dict and torch.save work.
#
# Whom it hurts: whoever keeps pruned weights in torch's own sparse tensors and averages or clones the model.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/copies.py" <<'PY'
import copy
import io

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def outcome(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "works"


dense = torch.eye(4, 6)
ways = {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), "bsr": dense.to_sparse_bsr((2, 2))}
for name, sparse in ways.items():
    layer = nn.Linear(6, 4, bias=False)
    layer.weight = nn.Parameter(sparse)
    calls = {
        "tensor": lambda: copy.deepcopy(sparse),
        "Parameter": lambda: copy.deepcopy(nn.Parameter(sparse)),
        "AveragedModel": lambda: AveragedModel(layer),
        "torch.save": lambda: torch.save(layer.state_dict(), io.BytesIO()),
    }
    print(name, *(f"{call}: {outcome(run)}" for call, run in calls.items()), sep=", ")
PY
seen=$("$folder/venv/bin/python" -W ignore "$folder/copies.py" 2>/dev/null)
echo "$seen"
wanted='coo, tensor: works, Parameter: RuntimeError, AveragedModel: RuntimeError, torch.save: works
csr, tensor: NotImplementedError, Parameter: RuntimeError, AveragedModel: RuntimeError, torch.save: works
csc, tensor: NotImplementedError, Parameter: RuntimeError, AveragedModel: RuntimeError, torch.save: works
bsr, tensor: NotImplementedError, Parameter: RuntimeError, AveragedModel: RuntimeError, torch.save: works'
[ "$seen" = "$wanted" ] && echo "as stated"
