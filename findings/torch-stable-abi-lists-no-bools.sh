#!/usr/bin/env bash
# torch's stable C++ ABI takes std::vector<T> for every element type but bool, which does not compile.
#
# Seen with the headers of torch 2.11.0 and g++ 12: torch::stable::detail::from(std::vector<std::int64_t>) makes the list
# that an operator's int[] wants; from(std::vector<bool>), for a bool[] such as the mask of aten::convolution_backward, ends
# in "use of deleted function ... std::vector<bool>::data()" inside HeaderOnlyArrayRef.h, since it asks the packed vector for a
# pointer to its elements. from(HeaderOnlyArrayRef<bool>) of an std::array<bool, 3> compiles.
#
# Whom it hurts: extensions that call aten's gradients, which all take such masks, through the ABI that torch recommends:
# the error names a header of torch's and no argument of theirs.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" torch==2.11.0
"$folder/venv/bin/python" - "$folder" <<'PY'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("torch-*.whl"))) as wheel:
    wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("torch/include/")])
PY
compiles() {
  printf '#include <array>\n#include <cstdint>\n#include <vector>\n#include <torch/csrc/stable/library.h>\nStableIValue made() { return torch::stable::detail::from(%s); }\n' \
    "$1" >"$folder/program.cpp"
  if g++ -std=c++20 -fsyntax-only -w -DTORCH_TARGET_VERSION=0x020b000000000000ULL -isystem "$folder/torch/include" \
    "$folder/program.cpp" 2>"$folder/errors"; then
    echo "compiles"
  elif grep -q 'std::vector<bool' "$folder/errors"; then
    echo "vector<bool> has no data()"
  else
    echo "another error"
  fi
}
said="int: $(compiles 'std::vector<std::int64_t>{1, 0}'); bool: $(compiles 'std::vector<bool>{true, false}'); array: $(compiles \
  'torch::headeronly::HeaderOnlyArrayRef<bool>(std::array<bool, 2>{true, false})')"
echo "$said"
if [[ $said == "int: compiles; bool: vector<bool> has no data(); array: compiles" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
