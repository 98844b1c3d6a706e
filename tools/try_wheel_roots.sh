#!/usr/bin/env bash
# Loads a wheel in roots of Debian 11, 12 and 13 and Ubuntu 22.04 and 24.04, which debootstrap makes in a folder. Needs to be root; no
# part of make test, since a root and its torch are a gigabyte.
# Usage: tools/try_wheel_roots.sh WHEEL FOLDER [ROOT...]; TORCH is torch's requirement for pip, and LIBRARIES=1 tries no Python.
#
# Packages are installed from here, by pip for the root's Python. Debian 11 has Python 3.9, which torch 2.11 does not run on: there, as
# with LIBRARIES=1, both libraries are loaded beside libtorch_cpu.so, and the C++ consumer of the tests multiplies.
set -euo pipefail
wheel=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
tree=$(realpath "$(dirname "$0")/..")
shift 2
roots=("$@")
[ ${#roots[@]} -gt 0 ] || roots=(bullseye bookworm trixie jammy noble)
declare -A mirror=([bullseye]=debian [bookworm]=debian [trixie]=debian [jammy]=ubuntu [noble]=ubuntu)
declare -A python=([bookworm]=3.11 [trixie]=3.13 [jammy]=3.10 [noble]=3.12)
declare -A address=([debian]=http://deb.debian.org/debian [ubuntu]=http://archive.ubuntu.com/ubuntu)
torch=${TORCH:-torch}

make_root() { # make_root NAME: debootstrap's own scripts may be older than NAME; all of Ubuntu's are the same one
  local kind=${mirror[$1]} components=main script=sid
  [ "$kind" = debian ] || { components=main,universe; script=gutsy; }
  debootstrap --variant=minbase --no-check-gpg --include=libstdc++6,python3 --components=$components "$1" "$folder/$1" \
    "${address[$kind]}" "/usr/share/debootstrap/scripts/$script" >"$folder/$1.log" 2>&1
}

# Built here, so against the old libraries too, and as a library: a program of a new glibc does not start with an old one.
make_consumer() {
  python3 "$tree/cmake/old_libraries.py" "$folder/old"
  g++ -std=c++20 -O1 -fPIC -shared -Dmain=consumer -I"$1/sparseloom/include" "$tree/tests/cpp/consumer/main.cpp" \
    "$tree/cmake/old_glibc.cpp" -L"$folder/old" -L"$1/sparseloom" -lsparseloom -Wl,-rpath,/opt/site/sparseloom \
    -Wl,--exclude-libs,ALL -o "$1/consumer.so"
}

for name in "${roots[@]}"; do
  root=$folder/$name
  [ -e "$root/usr/bin/python3" ] || make_root "$name"
  libraries=${LIBRARIES:-}
  [ "$name" != bullseye ] || libraries=1
  # Nothing below a mount is this script's: what an interrupted run left mounted stays whole.
  rm -rf --one-file-system "$root/opt/site"
  python3 -m pip install --quiet --disable-pip-version-check --no-compile --target "$root/opt/site" --only-binary=:all: \
    --python-version "$([ -n "$libraries" ] && echo 3.11 || echo "${python[$name]}")" --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform linux_x86_64 "$torch" "$wheel"
  run="python3 -m sparseloom info && python3 readme_example.py README.md"
  if [ -n "$libraries" ]; then
    make_consumer "$root/opt/site"
    loaded='ctypes.CDLL(f"/opt/site/{name}.so", ctypes.RTLD_GLOBAL)'
    names='"torch/lib/libtorch_cpu", "sparseloom/libsparseloom_torch", "consumer"'
    run="python3 -c 'import ctypes; *_, last = [$loaded for name in ($names)]; assert last._Z8consumerv() == 0; print(\"libraries load, C++ ran\")'"
  fi
  cp "$tree/README.md" "$tree/tools/readme_example.py" "$root/opt/"
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  trap 'umount "$root/proc" 2>/dev/null || true' EXIT
  status=0
  chroot "$root" /bin/sh -c "cd /opt && export PYTHONPATH=/opt/site HOME=/tmp && $run" >"$folder/$name.out" 2>&1 || status=$?
  umount "$root/proc"
  glibc=$(chroot "$root" ldd --version | sed -n '1s/.* //p')
  echo "$name, glibc $glibc, $torch: $(tail -n 1 "$folder/$name.out")"
  [ $status = 0 ] || exit 1
done
