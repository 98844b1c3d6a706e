#!/usr/bin/env bash
# An operator made by torch's stable C++ ABI leaks each str that it takes, and each str that it returns.
#
# Seen with torch 2.13.0, CPU, and g++ 12. `TORCH_BOX` of a function of std::string or to std::string: 100,000 calls with
# a text of 1000 characters leave over 1000 bytes a call that nothing frees, in either direction; a function of a Tensor
# leaves nothing. stableivalue_conversions.h makes a std::string on the heap for an argument and returns a copy of it; the
# string of a result is freed by neither side. In torch 2.14.1 the header's copy owns its memory, and results leak nothing.
#
# Whom it hurts: extensions on the ABI that torch recommends: an operator that takes a mode as a str, called in each step,
# grows a training process for as long as it runs.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/program.cpp" <<'CPP'
#include <cstdint>
#include <string>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

std::int64_t length(std::string text) { return static_cast<std::int64_t>(text.size()); }
std::string text(std::int64_t count) { return std::string(static_cast<std::size_t>(count), 'x'); }
std::int64_t sizes(const torch::stable::Tensor& x) { return x.dim(); }

STABLE_TORCH_LIBRARY(leaks, m) {
  m.def("length(str text) -> int");
  m.def("text(int count) -> str");
  m.def("sizes(Tensor x) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(leaks, CompositeExplicitAutograd, m) {
  m.impl("length", TORCH_BOX(&length));
  m.impl("text", TORCH_BOX(&text));
  m.impl("sizes", TORCH_BOX(&sizes));
}
CPP
cat >"$folder/program.py" <<'PY'
import ctypes
import sys
from pathlib import Path

import torch

torch.ops.load_library(str(Path(sys.argv[1]) / "leaks.so"))


class Used(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used f g".split()]


libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Used
ops, calls = torch.ops.leaks, 100_000
for name, argument in (("sizes", torch.zeros(2, 3)), ("length", "x" * 1000), ("text", 1000)):
    call = getattr(ops, name)
    for _ in range(1000):
        call(argument)
    before = libc.mallinfo2()
    for _ in range(calls):
        call(argument)
    after = libc.mallinfo2()
    each = (after.used + after.mapped - before.used - before.mapped) / calls
    print(name, "leaks over 1000 bytes a call" if each > 1000 else "leaks nothing" if each < 10 else f"leaks {each:.0f}")
PY
torch=$("$folder/venv/bin/python" -c "import torch; print(torch.__path__[0])")
g++ -std=c++20 -O1 -w -shared -fPIC -DTORCH_TARGET_VERSION=0x020b000000000000ULL -isystem "$torch/include" "$folder/program.cpp" \
  -o "$folder/leaks.so" -L"$torch/lib" -ltorch -ltorch_cpu -lc10
said=$("$folder/venv/bin/python" -W ignore "$folder/program.py" "$folder")
printf '%s\n' "$said"
if [[ $said == "sizes leaks nothing
length leaks over 1000 bytes a call
text leaks over 1000 bytes a call" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
