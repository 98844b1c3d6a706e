"""What makes wheels load on older systems, and what checks that they do."""

import ctypes
import importlib
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
check_wheel = importlib.import_module("check_wheel")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="wheels are for x86-64 alone")

#: What glibc 2.29 to 2.34 and libstdc++ 10 to 12 gave new versions, or have alone.
SOURCE = """
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
struct Shared { std::mutex mutex; std::condition_variable woken; bool on = false; };
extern "C" int run(const char* text) {
  auto shared = std::make_shared<Shared>();
  std::thread waiting([shared] {
    std::unique_lock lock(shared->mutex);
    shared->woken.wait(lock, [&] { return shared->on; });
  });
  { std::lock_guard lock(shared->mutex); shared->on = true; }
  shared->woken.notify_all();
  waiting.join();
  double value = 0;
  std::from_chars(text, text + std::char_traits<char>::length(text), value);
  char said[32];
  const std::string again(said, std::to_chars(said, said + sizeof said, value).ptr);
  try {
    if (std::exp(std::log(value)) + std::pow(value, 2) > 0) throw again;
  } catch (const std::string& thrown) {
    return thrown == text && dlopen("libm.so.6", RTLD_NOW) ? 0 : 1;
  }
  return 2;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    (folder / "run.cpp").write_text(SOURCE)
    old = [sys.executable, str(ROOT / "cmake" / "old_libraries.py"), str(folder / "old")]
    subprocess.run(old, check=True)
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", str(folder / "run.cpp")]
    command += [str(ROOT / "cmake" / "old_glibc.cpp"), "-L", str(folder / "old"), "-Wl,-z,defs"]
    made = folder / "librun.so"
    subprocess.run([*command, "-Wl,--exclude-libs,ALL", "-o", str(made)], check=True)
    return made


def test_what_is_linked_against_old_libraries_needs_old_ones_and_runs_with_new_ones(library: Path) -> None:
    assert check_wheel.faults_of_library(library) == []
    assert ctypes.CDLL(str(library)).run(b"2.5") == 0


def test_a_newer_symbol_and_another_library_are_named(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_wheel.LIMITS, "GLIBCXX", "3.4.10")
    monkeypatch.setattr(
        check_wheel, "NEEDED", check_wheel.re.compile(r"lib(c|dl|pthread|gcc_s|stdc\+\+)\.so|ld")
    )
    faults = check_wheel.faults_of_library(library)
    assert "librun.so: needs libm.so.6" in faults
    assert any(line.startswith("librun.so: needs GLIBCXX_3.4.2") for line in faults)


def test_a_wheel_with_another_name_size_or_content_is_refused(library: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "sparseloom-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("libsparseloom.so", "libsparseloom_torch.so"):
            archive.write(library, f"sparseloom/{name}")
    assert check_wheel.faults_of(wheel, 10) == []
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("sparseloom_bench/a.py", "")
        archive.writestr("sparseloom/libother.so", "")
    other = wheel.rename(tmp_path / "sparseloom-0.1.0-py3-none-linux_x86_64.whl")
    faults = "\n".join(check_wheel.faults_of(other, 0.001))
    for part in ("expected at most 0.001", "manylinux_2_28", "holds sparseloom_bench/a.py", "libother.so"):
        assert part in faults
