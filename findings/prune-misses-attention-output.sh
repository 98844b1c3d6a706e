#!/usr/bin/env bash
# A pruned output projection of nn.MultiheadAttention computes with its first weight for ever: a loaded one is ignored.
#
# Seen with torch 2.13.0, CPU. torch.nn.utils.prune keeps weight_orig and weight_mask and makes weight of them before
# each forward, by a forward_pre_hook. MultiheadAttention reads out_proj.weight and never calls out_proj, so the hook
# never runs. load_state_dict of a pruned checkpoint into a pruned model says "All keys matched", and the output is that
# of the weight before; the second step of training raises RuntimeError "Trying to backward through the graph a second
# time". The same pruning of in_proj_weight, or of an nn.Linear, is right. Reported in 2021 as issue 69353 of pytorch,
# still open.
#
# Whom it hurts: whoever prunes every nn.Linear of a Transformer: this one is found by modules() like the others.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.py" <<'PY'
import torch
from torch import nn
from torch.nn.utils import prune

torch.manual_seed(0)
x = torch.randn(3, 1, 8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.linear = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(self.attention(x, x, x)[0])


def pruned(part):
    model = Block()
    where = {"out_proj": (model.attention.out_proj, "weight"), "in_proj": (model.attention, "in_proj_weight")}
    prune.l1_unstructured(*where.get(part, (model.linear, "weight")), amount=0.5)
    return model


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        try:
            model(x).square().sum().backward()
        except RuntimeError as error:
            return f"{str(error)[:47]} (step {step})"
        optimizer.step()
        optimizer.zero_grad()
    return "3 steps"


for part in ("linear", "in_proj", "out_proj"):
    saved, loaded = pruned(part), pruned(part)
    matched = loaded.load_state_dict(saved.state_dict())
    with torch.no_grad():
        print(part, "loaded:", matched, "same output:", torch.allclose(saved(x), loaded(x), atol=1e-6))
    print("  trained:", train(pruned(part)))
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py")
printf '%s\n' "$said"
wanted="linear loaded: <All keys matched successfully> same output: True
  trained: 3 steps
in_proj loaded: <All keys matched successfully> same output: True
  trained: 3 steps
out_proj loaded: <All keys matched successfully> same output: False
  trained: Trying to backward through the graph a second t (step 1)"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
