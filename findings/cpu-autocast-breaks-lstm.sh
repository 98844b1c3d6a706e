#!/usr/bin/env bash
# Under CPU autocast nn.LSTM raises on a processor without AVX-512, and nn.GRU stays in float32.
#
# Seen with torch 2.13.0 on x86: with torch.autocast("cpu", torch.bfloat16) a float32 nn.LSTM hands oneDNN a bf16 LSTM, which
# oneDNN does not have there: "could not create a primitive descriptor for the LSTM forward propagation primitive".
# ONEDNN_MAX_CPU_ISA=AVX2 shows it on every x86 machine. The same layer after .bfloat16() runs there, by torch's own loop.
# nn.RNN gives bf16; nn.GRU gives float32: autocast does not know it.
#
# Whom it hurts: whoever measures or trains a recurrent model under autocast on a laptop or an AVX2 server: it runs on one
# machine and raises on the next.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
cat >"$folder/program.py" <<'PY'
import torch
from torch import nn

x = torch.randn(4, 3, 32)
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        try:
            print(kind.__name__, kind(32, 32)(x)[0].dtype)
        except RuntimeError as error:
            print(kind.__name__, str(error).partition(" for ")[0])
with torch.no_grad():
    print("LSTM.bfloat16()", nn.LSTM(32, 32).bfloat16()(x.bfloat16())[0].dtype)
PY
said=$(ONEDNN_MAX_CPU_ISA=AVX2 "$folder/venv/bin/python" "$folder/program.py" 2>/dev/null)
printf 'torch %s\n%s\n' "$("$folder/venv/bin/python" -m pip show torch | sed -n 's/^Version: //p')" "$said"
if [[ $said == $'LSTM could not create a primitive descriptor\nGRU torch.float32\nRNN torch.bfloat16\nLSTM.bfloat16() torch.bfloat16' ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
