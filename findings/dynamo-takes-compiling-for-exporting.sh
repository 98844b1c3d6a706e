#!/usr/bin/env bash
# torch.compiler.is_exporting() is true inside torch.compile, where nothing is exported.
#
# Seen with torch 2.11.0, CPU: a function that asks it takes the branch of torch.export when torch.compile traces it, and the
# other one when it is called eagerly. Its docstring says that it is true under torch.export alone, for which
# torch.compiler._is_exporting_flag stands, which is right in all four cases. torch 2.13.0 agrees with its docstring.
#
# Whom it hurts: libraries that leave their own autograd Functions out of exported programs: compiled training then gets the
# gradients of the plain operators, here zeros at pruned weights where a straight-through rule was written, without a word.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat >"$folder/program.py" <<'PY'
import torch


def plain(x):
    return x + 1 if torch.compiler.is_exporting() else x


class Model(torch.nn.Module):
    def forward(self, x):
        return plain(x)


x = torch.zeros(1)
compiled = torch.compile(plain, backend="eager", fullgraph=True)(x)
exported = torch.export.export(Model(), (x,)).module()(x)
print("eager", int(plain(x)), "compiled", int(compiled), "exported", int(exported))
PY
said=""
for version in 2.11.0 2.13.0; do
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$version" numpy==2.4.6
  said+="$version: $("$folder/venv/bin/python" -W ignore "$folder/program.py" 2>"$folder/errors" || tail -1 "$folder/errors")"$'\n'
done
echo "$said"
if [[ $said == $'2.11.0: eager 0 compiled 1 exported 1\n2.13.0: eager 0 compiled 0 exported 1\n' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
