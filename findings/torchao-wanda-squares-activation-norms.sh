#!/usr/bin/env bash
# torchao's WandaSparsifier ranks weights by the squared norm of their inputs, so it prunes others than Wanda does.
#
# Seen with torchao 0.18.0 and torch 2.13.0, CPU. The docstring, as the paper (arXiv 2306.11695, equation 1), removes weights
# "based on the product of the input activation norm and the weight magnitude". The observer, which "computes the L2 norm
# of each channel", squares it to add batches up and never takes the root. Of the weight [2, 1] with input norms [1, 1.5], Wanda
# keeps the 2 (2 against 1.5) and torchao the 1 (2 against 2.25). Of a random layer of 256 x 256 with inputs of unlike
# scale, over a tenth of the mask differs from Wanda's, and none from that of the squares.
#
# Whom it hurts: whoever prunes with it: the weights of channels with small inputs go, and accuracy is not the paper's.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchao==0.18.0
cat >"$folder/program.py" <<'PY'
import torch
from torch import nn
from torchao.sparsity import PerChannelNormObserver, WandaSparsifier


def kept(weight, x):
    model = nn.Sequential(nn.Linear(weight.shape[1], weight.shape[0], bias=False))
    model[0].weight.data.copy_(weight)
    sparsifier = WandaSparsifier(sparsity_level=0.5)
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
    model(x)
    sparsifier.step()
    sparsifier.squash_mask()
    return model[0].weight != 0


def largest(score):
    mask = torch.ones(score.numel(), dtype=torch.bool)
    mask[score.flatten().argsort()[: score.numel() // 2]] = False
    return mask.view_as(score)


observer = PerChannelNormObserver()
observer(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
print("norms 5 and 1 are", observer.norm.tolist())
print("weight [2, 1], norms [1, 1.5], kept:", kept(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 1.5]])).tolist())

torch.manual_seed(0)
weight, x = torch.randn(256, 256), torch.randn(64, 256) * torch.rand(256).mul(2).exp()
mask, norm = kept(weight, x), x.norm(dim=0)
wanda, squares = largest(weight.abs() * norm), largest(weight.abs() * norm**2)
print("random: over a tenth differs from Wanda:", bool((mask != wanda).float().mean() > 0.1))
print("random: under a thousandth differs from squares:", bool((mask != squares).float().mean() < 0.001))
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py" 2>/dev/null)
printf '%s\n' "$said"
wanted="norms 5 and 1 are [25.0, 1.0]
weight [2, 1], norms [1, 1.5], kept: [[False, True]]
random: over a tenth differs from Wanda: True
random: under a thousandth differs from squares: True"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
