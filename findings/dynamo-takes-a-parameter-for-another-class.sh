#!/usr/bin/env bash
# Compiled code takes the other branch of "parameter.__class__ is torch.nn.Parameter" than eager code, without a word.
#
# Seen with torch 2.11.0: a module whose forward asks for its Parameter's __class__ returns x + 1 eagerly and x + 2 under
# torch.compile (fullgraph, backend "eager", so that only Dynamo is at work), where type(parameter) gives the right branch.
# torch 2.13.0 answers both right. No graph break, warning or error tells it.
#
# Whom it hurts: libraries with fast paths for plain Parameters beside tensor subclasses (quantized, sharded, sparse
# ones) that ask by __class__, which is the faster look-up: compiled models take the slow path, or skip a check.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.11.0
cat >"$folder/program.py" <<'PY'
import torch


class ByClass(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x + 1 if self.weight.__class__ is torch.nn.Parameter else x + 2


class ByType(ByClass):
    def forward(self, x):
        return x + 1 if type(self.weight) is torch.nn.Parameter else x + 2


for module in (ByClass(), ByType()):
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x = torch.zeros(())
    print(type(module).__name__, "eager", int(module(x)), "compiled", int(compiled(x)))
PY
said=$("$folder/venv/bin/python" "$folder/program.py")
printf 'torch %s\n%s\n' "$("$folder/venv/bin/python" -c 'import torch; print(torch.__version__.split("+")[0])')" "$said"
if [[ $said == $'ByClass eager 1 compiled 2\nByType eager 1 compiled 1' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
