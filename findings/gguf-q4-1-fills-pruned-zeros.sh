#!/usr/bin/env bash
# GGUF's formats Q4_1 and Q5_1 store no zero: a pruned weight that is written in them is dense when it is read back.
#
# Seen with gguf 0.19.0 (numpy 2.4.6). Of a random matrix of 64 x 512 half is zero, 16421 elements. Quantised and back, 47
# of them are zero in Q4_1 and 12 in Q5_1; all of them in Q4_0, Q5_0 and Q8_0, of .5 bits less each. A block of 32 stores
# its least value and a step there, and 0 lies between two steps as a rule; in the others 0 is a step. What was zero has
# then .07 (Q4_1) of the mean magnitude of the rest. The package's NumPy quantizers are used, which follow llama.cpp.
#
# Whom it hurts: whoever prunes a model, writes it as GGUF and expects its zeros there, to skip, to count or to compress
# them; and the quality that pruning chose to lose is lost once more.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
cat >"$folder/program.py" <<'PY'
import numpy
from gguf import GGMLQuantizationType, quants

rng = numpy.random.default_rng(0)
weight = rng.standard_normal((64, 512)).astype(numpy.float32)
weight[rng.random(weight.shape) < 0.5] = 0
pruned = weight == 0
print("pruned:", pruned.sum())
for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
    kind = GGMLQuantizationType[name]
    packed = quants.quantize(weight, kind)
    back = quants.dequantize(packed, kind)
    magnitude = abs(back[pruned]).mean() / abs(weight[~pruned]).mean()
    bits = packed.nbytes * 8 / weight.size
    print(f"{name}, {bits:g} bits: {(back[pruned] == 0).sum()} still zero, mean magnitude {magnitude:.2f}")
PY
said=$("$folder/venv/bin/python" "$folder/program.py")
printf '%s\n' "$said"
wanted="pruned: 16421
Q4_0, 4.5 bits: 16421 still zero, mean magnitude 0.00
Q4_1, 5 bits: 47 still zero, mean magnitude 0.07
Q5_0, 5.5 bits: 16421 still zero, mean magnitude 0.00
Q5_1, 6 bits: 12 still zero, mean magnitude 0.04
Q8_0, 8.5 bits: 16421 still zero, mean magnitude 0.00"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
