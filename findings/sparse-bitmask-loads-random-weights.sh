#!/usr/bin/env bash
# A pruned checkpoint whose pruned layers come back random: the formats sparse-bitmask and sparse-24-bitmask.
#
# compressed-tensors 0.9.4 writes pruned layers as `weight.compressed`-like tensors (compressed, bitmask, shape) and names the
# format in config.json under quantization_config.sparsity_config. Seen with transformers 5.23.0 and compressed-tensors
# 0.20.1: from_pretrained takes such a folder, whose version and format it could read there, raises nothing, and gives every
# pruned Linear newly initialised weights; only the load report in the log lists them as MISSING. Embeddings and norms are
# right. compressed-tensors has had no reader of these two formats since 0.15 (its message for another entry point says so).
#
# Whom it hurts: whoever loads a sparse model that others published. The model answers, with noise.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy==2.4.6 transformers==5.23.0 accelerate==1.15.0 pydantic==2.14.3
pip --no-deps --target "$folder/writer" compressed-tensors==0.9.4
pip --target "$folder/reader" --no-deps compressed-tensors==0.20.1 loguru==0.7.3
cat >"$folder/write.py" <<'PY'
import sys

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.config import BitmaskConfig, Sparse24BitMaskConfig
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

kind, folder = sys.argv[1:]
torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2, vocab_size=64)
model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)).half()
for name, weight in model.named_parameters():
    if "proj" in name:
        weight.data.view(-1, 4)[:, :2] = 0
config = BitmaskConfig if kind == "sparse-bitmask" else Sparse24BitMaskConfig
compressor = ModelCompressor(sparsity_config=config(format=kind, targets=["Linear"], ignore=["lm_head"]))
written = compressor.compress(model, model.state_dict())
model.config.save_pretrained(folder)
compressor.update_config(folder)
save_file({k: v.contiguous() for k, v in written.items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
torch.save(model.state_dict(), f"{folder}/dense.pt")
PY
cat >"$folder/read.py" <<'PY'
import sys

import torch
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
before = torch.load(f"{folder}/dense.pt")
same = {name: torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()}
pruned = [name for name in same if "proj" in name]
zeros = sum(int((model.state_dict()[name] == 0).sum()) for name in pruned)
print("pruned layers as written:", sum(same[name] for name in pruned), "of", len(pruned), "zeros in them:", zeros)
print("other tensors as written:", sum(same.values()) - sum(same[name] for name in pruned), "of", len(same) - len(pruned))
PY
for kind in sparse-bitmask sparse-24-bitmask; do
  mkdir "$folder/$kind"
  PYTHONPATH="$folder/writer" "$folder/venv/bin/python" "$folder/write.py" "$kind" "$folder/$kind" 2>/dev/null
  seen=$(PYTHONPATH="$folder/reader" "$folder/venv/bin/python" "$folder/read.py" "$folder/$kind" 2>/dev/null)
  printf '%s\n%s\n' "$kind" "$seen"
  [ "$seen" = 'pruned layers as written: 0 of 7 zeros in them: 0
other tensors as written: 5 of 5' ] || exit 1
done
echo "as stated"
