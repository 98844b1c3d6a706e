#!/usr/bin/env bash
# Accelerator.save_model leaves out a buffer that shares no element with any other.
#
# Seen with accelerate 1.15.0, safetensors 0.8.0, torch 2.13.0: two buffers that are different slices of one tensor count as
# "shared", one of them is not written ("Removed shared tensor {'second'} while saving. This should be OK"), and nothing in the
# file says where its numbers went. Views of one buffer are an ordinary way to keep the two index lists of a sparse matrix. A
# model loaded from the file keeps what its own constructor made. safetensors.torch.save_model refuses the same model by name.
# Exit status 0: the behaviour is as described; 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6
cat >"$folder/show.py" <<'PY'
import sys
from pathlib import Path

import accelerate
import safetensors.torch
import torch


class Index(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        both = torch.arange(5)
        self.register_buffer("first", both[:2])
        self.register_buffer("second", both[2:])


out = Path(sys.argv[1])
model = Index()
accelerate.Accelerator(cpu=True).save_model(model, str(out))
kept = sorted(safetensors.torch.load_file(out / "model.safetensors"))
print(f"accelerate {accelerate.__version__}: of {sorted(model.state_dict())} the file holds {kept}")
refused = ""
try:
    safetensors.torch.save_model(model, str(out / "again.safetensors"))
except RuntimeError as error:
    refused = str(error)
print(f"safetensors.torch.save_model: {refused[:120] or 'no error'}")
sys.exit(not (len(kept) == 2 and "second" in refused))
PY
"$folder/venv/bin/python" "$folder/show.py" "$folder/out"
