#!/usr/bin/env bash
# Prepares what `make demo` and `make test` need: Debian/Ubuntu packages and .venv. Says what it will do before it does it.
# Usage: tools/setup.sh demo|test. A second call with nothing to do takes milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-test}
python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.sparseloom-setup

die() {
  printf 'sparseloom: %s\n' "$*" >&2
  exit 1
}

# What is looked for is the thing itself (a program, a header), so that an installation from elsewhere counts. The names are those
# of Debian 12 and Ubuntu 24.04, which agree.
packages=()
need() { # need PACKAGE COMMAND...: PACKAGE is missing when COMMAND fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || packages+=("$package")
}
has_header() { echo "#include <$1>" | g++ -x c++ -std=c++20 -fsyntax-only -; }
python_is_new_enough() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; }
# torch.compile on the CPU compiles against Python.h.
has_python_header() { "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }
cmake_is_new_enough() { [ "$(printf '3.25\n%s\n' "$(cmake --version | sed -n '1s/.*version //p')" | sort -V | head -n 1)" = 3.25 ]; }

need python3 command -v "$python"
need python3-venv "$python" -c 'import venv, ensurepip'
need python3-dev has_python_header
need g++ command -v g++
need cmake command -v cmake
need ninja-build command -v ninja
if [ "$purpose" = test ]; then
  need libgtest-dev has_header gtest/gtest.h
  need libbenchmark-dev has_header benchmark/benchmark.h
  need pkgconf command -v pkg-config
  # Older CPUs and another architecture, emulated: where they cannot be installed, their tests say that they were skipped.
  if [ "$(uname -m)" = x86_64 ] && [ "$(id -u)" = 0 ]; then
    need qemu-user command -v qemu-x86_64
    need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
  fi
fi

if [ ${#packages[@]} -gt 0 ]; then
  line="apt-get install -y --no-install-recommends ${packages[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    printf 'sparseloom: system packages are missing. Run this once, then try again:\n\n  sudo apt-get update && sudo %s\n\n' "$line" >&2
    exit 1
  fi
  command -v apt-get >/dev/null || die "these packages are missing, and this system has no apt-get: ${packages[*]}"
  printf '== installing system packages (up to 220 MB to download): %s\n' "${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || die "apt-get update failed; once it works, run: $line"
  $line -qq >/dev/null || die "this failed: $line"
fi
python_is_new_enough || die "$("$python" --version) is too old: 3.10 or newer is needed. Name one: make ${purpose} PYTHON=python3.11"
cmake_is_new_enough || die "$(cmake --version | head -n 1) is too old: 3.25 or newer is needed (Debian 12 and Ubuntu 24.04 have it)"

# .venv is made from these files by this Python; when one of them changes, it is brought up to date. The stamp has a line for
# each purpose that .venv serves: what the tests need includes what the demo needs.
files_of() { echo requirements.txt constraints.txt; [ "$1" = demo ] || echo tests/requirements.txt; }
wanted() { echo "$1 $({ cat $(files_of "$1"); "$python" -c 'import sys; print(sys.version_info[:2])'; } | sha256sum | cut -d ' ' -f 1)"; }
if [ -x $venv/bin/python ] && grep -qxF "$(wanted "$purpose")" $stamp 2>/dev/null; then
  exit 0
fi

names() { sed '/^#/d; /^-/d; /^torch$/d; s/;.*//' "$1" | paste -sd ' '; }
cat <<EOF
== preparing $venv (Python packages, pinned in constraints.txt; nothing outside $PWD/$venv is changed)
   torch 2.13.0   1 GB on disk as a CPU build, when pip's own configuration offers one (0.2 GB to download);
                  else PyPI's CUDA build: 3 GB to download, 7 GB on disk
   the rest       0.3 GB on disk (0.1 GB to download): $(names requirements.txt)
EOF
requirements=(--requirement requirements.txt)
if [ "$purpose" != demo ]; then
  echo "   for the tests  0.5 GB on disk (0.2 GB to download): $(names tests/requirements.txt)"
  requirements+=(--requirement tests/requirements.txt)
fi
if ! $venv/bin/python -c 'import pip' >/dev/null 2>&1; then
  "$python" -m venv --clear $venv
fi
# pip's progress is for a person; a log gets its errors only. --no-compile: Python compiles a module when it is first imported, and
# pip would do so for all of torch's, most of which nobody imports.
quiet=$([ -t 1 ] || echo -qq)
$venv/bin/python -m pip install $quiet --no-compile --disable-pip-version-check "${requirements[@]}" ||
  die "pip could not install the packages; see its message above, then run the same command again"
{ wanted demo; wanted "$purpose"; } | sort -u >$stamp
echo "== $venv is ready: torch $($venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))')"
