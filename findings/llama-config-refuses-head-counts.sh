#!/usr/bin/env bash
# LlamaConfig refuses a number of heads that does not divide the hidden size, although it takes head_dim beside it.
#
# Seen with transformers 5.23.0: LlamaConfig(hidden_size=64, num_attention_heads=3, head_dim=16) raises
# StrictDataclassClassValidationError (The hidden size (64) is not a multiple of the number of attention heads (3)). The model
# computes with head_dim alone and would run: MistralConfig, Qwen2Config, Qwen3Config, GemmaConfig, PhiConfig and OlmoConfig
# take the same numbers.
#
# Whom it hurts: whoever removes heads from a Llama. Four heads of 16 become three, and no config can say so; the same
# weights in a folder of Mistral can be loaded.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.23.0
"$folder/venv/bin/python" - <<'PY'
import sys

import transformers

SIZES = dict(hidden_size=64, num_attention_heads=3, num_key_value_heads=3, head_dim=16, intermediate_size=64)
OTHERS = ("MistralConfig", "Qwen2Config", "Qwen3Config", "GemmaConfig", "PhiConfig", "OlmoConfig")


def outcome(name):
    try:
        getattr(transformers, name)(num_hidden_layers=1, **SIZES)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "taken"


found = {name: outcome(name) for name in ("LlamaConfig", *OTHERS)}
for name, words in found.items():
    print(f"{name}: {words}")
as_stated = "not a multiple of the number of attention heads" in found["LlamaConfig"]
as_stated &= all(found[name] == "taken" for name in OTHERS)
print("as stated" if as_stated else "changed")
sys.exit(not as_stated)
PY
