#!/usr/bin/env bash
# nncf cannot prune an nn.Sequential, and the model that it was given cannot run any more.
#
# Seen with nncf 3.4.0 and torch 2.13.0, CPU: nncf keeps its hooks in a child module `__nncf_hooks` of the model. The forward
# of nn.Sequential calls each child, so that this one counts as a last layer. nncf.prune and nncf.compress_weights raise
# NotImplementedError (Module [HookStorage] is missing the required "forward" function), which names nothing of the user's,
# and leave the child in the model: after that model(x) raises the same, and len(model) is one more. The same Sequential as
# the child of a module with a forward of its own goes through.
#
# Whom it hurts: whoever tries pruning on the small models of tutorials, or catches the error and goes on with the model.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 nncf==3.4.0
cat >"$folder/layers.py" <<'PY'
import sys

import nncf
import torch
from torch import nn

x = torch.randn(2, 16)


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)


def prune(model):
    mode = nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_LOCAL
    return nncf.prune(model, mode=mode, ratio=0.5, examples_inputs=x)


def compress_weights(model):
    return nncf.compress_weights(model, dataset=nncf.Dataset([x]))


def result(function, argument):
    try:
        function(argument)
    except NotImplementedError as error:
        return f"NotImplementedError about {str(error).split()[1]}"
    return "works"


with open(sys.argv[1], "w") as rows:  # nncf writes its progress to the standard output
    for step in (prune, compress_weights):
        for name in ("Sequential", "Sequential in a module"):
            layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
            model = layers if name == "Sequential" else Net(layers)
            before, then, after = result(model, x), result(step, model), result(model, x)
            print(f"{step.__name__}({name}): {then}", file=rows)
            print(f"  model(x) before: {before}, after: {after}, layers: {len(layers)}", file=rows)
PY
"$folder/venv/bin/python" -W ignore "$folder/layers.py" "$folder/seen" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
seen=$(cat "$folder/seen")
echo "$seen"
wanted='prune(Sequential): NotImplementedError about [HookStorage]
  model(x) before: works, after: NotImplementedError about [HookStorage], layers: 4
prune(Sequential in a module): works
  model(x) before: works, after: works, layers: 3
compress_weights(Sequential): NotImplementedError about [HookStorage]
  model(x) before: works, after: NotImplementedError about [HookStorage], layers: 4
compress_weights(Sequential in a module): works
  model(x) before: works, after: works, layers: 3'
[ "$seen" = "$wanted" ] && echo "as stated"
