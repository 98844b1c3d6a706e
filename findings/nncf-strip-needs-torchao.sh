#!/usr/bin/env bash
# nncf can prune a model and cannot write the masks into it: nncf.strip imports torchao, which nncf does not ask for.
#
# Seen with nncf 3.4.0 and torch 2.13.0, CPU: after `pip install nncf torch`, nncf.prune works, and nncf.strip raises
# ModuleNotFoundError (No module named 'torchao') in every format. torchao stands in none of nncf's requirements, extras
# included. With torchao 0.18.0 beside it strip_format=IN_PLACE writes zeros; DQ leaves the weights dense and the masks in the
# state dict, under __nncf_hooks.
#
# Whom it hurts: who has trained a pruned model on one machine, and finds out at its end.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy==2.4.6 nncf==3.4.0
cat >"$folder/strip.py" <<'PY'
import sys
from importlib.metadata import requires

import nncf
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(x)


def zeros(model):
    return round((model.layer.weight == 0).float().mean().item(), 2)


with open(sys.argv[1], "w") as rows:  # nncf writes its progress to the standard output
    print("torchao among the requirements:", any("torchao" in each for each in requires("nncf")), file=rows)
    mode = nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_LOCAL
    model = nncf.prune(Net(), mode=mode, ratio=0.5, examples_inputs=torch.randn(2, 16))
    for form in (nncf.StripFormat.DQ, nncf.StripFormat.IN_PLACE):
        try:
            stripped = nncf.strip(model, do_copy=True, strip_format=form)
            masks = sum("binary_mask" in name for name in stripped.state_dict())
            print(f"{form.name}: zeros {zeros(stripped)}, masks {masks}", file=rows)
        except ModuleNotFoundError as error:
            print(f"{form.name}: {error}", file=rows)
PY
run() { "$folder/venv/bin/python" -W ignore "$folder/strip.py" "$folder/$1" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }; }
run alone
pip torchao==0.18.0
run beside
seen=$(cat "$folder/alone"; echo "with torchao 0.18.0"; tail -n 2 "$folder/beside")
echo "$seen"
wanted="torchao among the requirements: False
DQ: No module named 'torchao'
IN_PLACE: No module named 'torchao'
with torchao 0.18.0
DQ: zeros 0.0, masks 1
IN_PLACE: zeros 0.5, masks 0"
[ "$seen" = "$wanted" ] && echo "as stated"
