#!/usr/bin/env bash
# Builds wheels that load with glibc 2.28 (manylinux_2_28), and checks what they need and how large they are.
# Usage: tools/make_wheels.sh [cpu] [cuda]; without an argument both where nvcc is found, else cpu. They come into dist/cpu and dist/cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
tools=build/wheels/tools
flavours=("$@")
if [ ${#flavours[@]} = 0 ]; then
  flavours=(cpu)
  command -v nvcc >/dev/null && flavours+=(cuda)
fi

# Largest sizes in MB: what a download may cost.
declare -A largest=([cpu]=3 [cuda]=20)
declare -A cuda=([cpu]=OFF [cuda]=ON)

[ -x $tools/bin/auditwheel ] || "$python" -m venv $tools
$tools/bin/python -m pip install --quiet --disable-pip-version-check --requirement tools/wheel_requirements.txt
for flavour in "${flavours[@]}"; do
  [ -n "${largest[$flavour]:-}" ] || { echo "make_wheels.sh: expected cpu or cuda, got $flavour" >&2; exit 2; }
  echo "== the wheel for ${flavour}, in build/wheels/$flavour"
  built=build/wheels/$flavour/wheel
  rm -rf "$built" "dist/$flavour"
  "$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$built" \
    --config-settings=build-dir="build/wheels/$flavour/cmake" \
    --config-settings=install.strip=true \
    --config-settings=cmake.define.SPARSELOOM_MANYLINUX=ON \
    --config-settings=cmake.define.SPARSELOOM_CUDA="${cuda[$flavour]}" .
  # It grafts nothing: torch's libraries are torch's, and all others are on every system of the policy.
  PATH="$PWD/$tools/bin:$PATH" $tools/bin/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat --exclude 'libtorch*' --exclude 'libc10*' \
    --wheel-dir "dist/$flavour" "$built"/*.whl
  "$python" tools/check_wheel.py --megabytes "${largest[$flavour]}" "dist/$flavour"/*.whl
done
