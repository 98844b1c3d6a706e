#!/usr/bin/env bash
# A checkpoint that loads without a device map and not with one: modules with extra state, in accelerate.
#
# Seen with accelerate 1.15.0 and torch 2.13.0+cpu. torch keeps what get_extra_state() returns under the key
# `_extra_state` of a state dict and hands it to set_extra_state() on loading. load_checkpoint_in_model(model, file)
# does so. With device_map={"": "cpu"}, the map that puts everything where it is anyway, the same call raises
# "ValueError: ... does not have a parameter or a buffer named _extra_state", after it has written the weights of the
# modules before: with a map each entry goes to set_module_tensor_to_device, which knows parameters and buffers alone.
#
# Whom it hurts: users of layers that keep scales or formats as extra state, as Transformer Engine's do, and of every
# from_pretrained-like function that passes a device map on.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 accelerate==1.15.0
cat >"$folder/load.py" <<'PY'
import sys

import torch
from accelerate import load_checkpoint_in_model
from torch import nn


class Scaled(nn.Linear):
    scale = 1.0

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]


def model():
    return nn.Sequential(nn.Linear(2, 2), Scaled(2, 2))


saved = model()
saved[1].scale = 3.0
torch.save(saved.state_dict(), sys.argv[1])
for device_map in (None, {"": "cpu"}):
    loaded = model()
    try:
        load_checkpoint_in_model(loaded, sys.argv[1], device_map=device_map)
        said = f"scale {loaded[1].scale:g}"
    except ValueError as error:
        said = "ValueError: " + str(error)[-57:]
    print(f"{device_map}: {said}; first layer written: {torch.equal(loaded[0].weight, saved[0].weight)}")
PY
seen=$("$folder/venv/bin/python" "$folder/load.py" "$folder/model.bin")
echo "$seen"
want="None: scale 3; first layer written: True
{'': 'cpu'}: ValueError: does not have a parameter or a buffer named _extra_state.; first layer written: True"
if [ "$seen" = "$want" ]; then echo "as stated"; else echo "CHANGED; expected:"; echo "$want"; exit 1; fi
