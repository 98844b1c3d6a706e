#!/usr/bin/env bash
# Tries a wheel as a stranger would: a new venv, torch, the wheel, `sparseloom info`, and the README's example.
# Usage: tools/try_wheel.sh WHEEL [TORCH], where TORCH is a requirement for pip, such as torch==2.11.*
set -euo pipefail
wheel=$(realpath "$1")
torch=${2:-torch}
readme=$(realpath "$(dirname "$0")/../README.md")
example=$(realpath "$(dirname "$0")/readme_example.py")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check "$torch" "$wheel"
venv/bin/sparseloom info
venv/bin/python "$example" "$readme"
