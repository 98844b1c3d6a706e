#!/usr/bin/env bash
# A compiled function goes on with a custom operator's old default after the library that defines it was upgraded.
#
# Seen with torch 2.13.0+cpu. Version 1 of a library defines scale(Tensor x, int mode=2), version 2 of it the same with
# mode=3. torch.compile of a function that calls scale(x) writes the default of version 1 into the code that it keeps
# on disk, and the key of that file holds neither the operator's schema nor the library's version: the next process,
# with version 2, runs eagerly with 3 and compiled with 2, without a word. An empty cache folder, or another
# TORCH_COMPILE_CACHE_KEY_TAG, gives 3. Arguments equal to a default leave the graph before the key is made, so a caller
# who passes mode=3 himself meets the same.
#
# Whom it hurts: users of any library of custom operators that changes a default, or its type, between two releases;
# the cache (TORCHINDUCTOR_CACHE_DIR, else a folder of the temporary one) outlives both.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
cat >"$folder/program.py" <<'PY'
import sys

import torch

default, explicitly = int(sys.argv[1]), len(sys.argv) > 2
torch.library.define("probe::scale", f"(Tensor x, int mode={default}) -> Tensor")


@torch.library.impl("probe::scale", "CompositeExplicitAutograd")
def scale(x, mode=default):
    return x * mode


@torch.library.register_fake("probe::scale")
def _(x, mode=default):
    return torch.empty_like(x)


def scaled(x):
    return torch.ops.probe.scale(x, default) + x if explicitly else torch.ops.probe.scale(x) + x


x = torch.ones(1)
print(f"default {default}: eager {scaled(x).item() - 1:g}, compiled {torch.compile(scaled)(x).item() - 1:g}")
PY
run() { TORCHINDUCTOR_CACHE_DIR="$folder/$1" "$folder/venv/bin/python" "$folder/program.py" "${@:2}"; }
seen=$(
  run cache 2
  run cache 3
  run cache 3 explicitly
  TORCH_COMPILE_CACHE_KEY_TAG=another run cache 3
  run empty 3
)
echo "$seen"
want='default 2: eager 2, compiled 2
default 3: eager 3, compiled 2
default 3: eager 3, compiled 2
default 3: eager 3, compiled 3
default 3: eager 3, compiled 3'
if [ "$seen" = "$want" ]; then echo "as stated"; else echo "CHANGED; expected:"; echo "$want"; exit 1; fi
