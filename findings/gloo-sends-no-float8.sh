#!/usr/bin/env bash
# gloo sends neither float8 nor 16-bit integers, so DistributedDataParallel cannot be made of a model with such a buffer.
#
# Seen with torch 2.13.0, CPU: broadcast and all_reduce of float8_e4m3fn, int16 and uint16 raise "Invalid scalar type", where
# bool, int8, uint8, int32, int64, float16 and bfloat16 go through. DistributedDataParallel broadcasts all buffers when it is
# made, frozen ones too, and raises the same three words, which name neither the buffer nor its dtype.
#
# Whom it hurts: who trains adapters around weights of 8 bits, or keeps indices in int16, as formats of sparse and of quantized
# weights do. It is left to gloo's users to take these buffers out by name.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.py" <<'PY'
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

store = torch._C._distributed_c10d.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)


class Layer(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("frozen", torch.zeros(4, dtype=dtype))


def outcome(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "goes"


for name in ("float8_e4m3fn", "int16", "uint16", "int8", "int32", "bfloat16"):
    dtype = getattr(torch, name)
    said = {
        outcome(lambda: dist.broadcast(torch.ones(4).to(dtype), 0)),
        outcome(lambda: dist.all_reduce(torch.ones(4).to(dtype))),
        outcome(lambda: DistributedDataParallel(Layer(dtype))),
    }
    print(name, *sorted(said), sep=": ")
PY
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py")
echo "$said"
wanted='float8_e4m3fn: Invalid scalar type
int16: Invalid scalar type
uint16: Invalid scalar type
int8: goes
int32: goes
bfloat16: goes'
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
