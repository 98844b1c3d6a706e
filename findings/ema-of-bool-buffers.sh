#!/usr/bin/env bash
# Averages of masks: torch.optim.swa_utils.AveragedModel with use_buffers=True, and timm's ModelEmaV2.
#
# Seen with torch 2.13.0 and timm 1.0.31, CPU: an exponential average of a bool buffer is computed as a float and copied back
# into the bool tensor, so every entry that was True once stays True in the average, whatever the decay and however long ago.
# Integer buffers are cut off towards zero in each step and lag behind for good. torch's default average (no avg_fn) raises
# RuntimeError for the same module. timm's ModelEmaV3 copies such buffers and is right.
# It hurts whoever keeps a pruning mask as a buffer: the averaged model is denser than the trained one, without a word.
# Exit status 0: the behaviour is as described; 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
# timm's package file itself imports torchvision, of which its EMA needs nothing: the module is read alone.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps timm==1.0.31
cat >"$folder/show.py" <<'PY'
import importlib.util
import sys
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

file = Path(importlib.util.find_spec("timm").submodule_search_locations[0]) / "utils" / "model_ema.py"
spec = importlib.util.spec_from_file_location("model_ema", file)
model_ema = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model_ema)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.tensor([True, False, False]))
        self.register_buffer("count", torch.tensor(0))


def ends(average):
    model = Masked()
    averaged = average(model)
    update = getattr(averaged, "update_parameters", None) or averaged.update
    for step in range(100):  # the third entry is True in step 1 alone, the second never again after step 0
        model.mask.copy_(torch.tensor([True, step == 0, step == 1]))
        model.count.fill_(10 * step)
        update(model)
    return model, averaged.module


rows = {
    "AveragedModel(avg_fn=get_ema_avg_fn(0.9))": lambda m: AveragedModel(
        m, avg_fn=get_ema_avg_fn(0.9), use_buffers=True
    ),
    "AveragedModel(multi_avg_fn=get_ema_multi_avg_fn(0.9))": lambda m: AveragedModel(
        m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
    "timm ModelEmaV2(0.9)": lambda m: model_ema.ModelEmaV2(m, 0.9),
    "timm ModelEmaV3(0.9)": lambda m: model_ema.ModelEmaV3(m, 0.9),
}
print(f"torch {torch.__version__}")
as_described = True
for name, average in rows.items():
    model, averaged = ends(average)
    print(f"{name}: mask {model.mask.tolist()} -> {averaged.mask.tolist()}, count {model.count} -> {averaged.count}")
    wrong = averaged.mask.tolist() == [True, True, True]
    as_described &= wrong != ("V3" in name)
try:
    ends(lambda m: AveragedModel(m, use_buffers=True))
    print("AveragedModel's own average: no error")
    as_described = False
except RuntimeError as error:
    print(f"AveragedModel's own average: RuntimeError: {str(error).splitlines()[0]}")
sys.exit(not as_described)
PY
"$folder/venv/bin/python" "$folder/show.py"
