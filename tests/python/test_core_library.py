"""One core library in a process: C++ beside torch sees the same plans, built with what the package ships."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch

import sparseloom
from sparseloom import _library, ops

PACKAGE = Path(sparseloom.__file__).parent
#: An installed package has the headers, a source tree has them beside python/.
HEADERS = next(
    folder
    for folder in (PACKAGE / "include", Path(__file__).resolve().parents[2] / "include")
    if folder.is_dir()
)
SOURCE = """
#include "sparseloom/sparseloom.h"
namespace sl = sparseloom;

extern "C" int kernels() { return static_cast<int>(sl::kernel_names().size()); }

// The cost of the first block row in the plan of a 32 x 32 weight with two 16 x 16 blocks.
extern "C" std::int64_t first_cost(const std::int32_t* crow, const std::int32_t* col, std::int64_t version,
                                   int threads) {
  const sl::IndexView index{32, 32, {16, 16}, 2, crow, col};
  sl::Executor executor = sl::Executor::serial();
  executor.num_threads = threads;
  executor.gemm = [](void*, const sl::Gemm&) {};  // torch lends one, and the problem says so
  const sl::Problem problem = sl::describe(index, sl::DType::f32, sl::Direction::forward, 7);
  return sl::make_plan(problem, index, version, executor)->cost_prefix[1];
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("extension")
    (folder / "extension.cpp").write_text(SOURCE)
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Werror", "-shared", "-fPIC"]
    paths = [f"-I{HEADERS}", "extension.cpp", f"-L{PACKAGE}", "-lsparseloom", f"-Wl,-rpath,{PACKAGE}"]
    subprocess.run([*compiler, *paths, "-o", "extension.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "extension.so"))


def test_cpp_and_torch_share_one_plan_cache(extension: ctypes.CDLL) -> None:
    first_cost = extension.first_cost
    first_cost.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    first_cost.restype = ctypes.c_int64
    col = torch.tensor([0, 1], dtype=torch.int32)
    # Both blocks lie in the first block row of torch's pattern, and in the second one of C++'s.
    upper, lower = (torch.tensor(crow, dtype=torch.int32) for crow in ([0, 2, 2], [0, 0, 2]))
    threads, shared, apart = torch.get_num_threads(), 0x5EED0001, 0x5EED0002
    ops.call("plan", upper, col, 32, 32, 16, 16, "forward", "f32", 7, False, 0, shared, False, False, -1, -1)

    def cost(crow: torch.Tensor, version: int) -> int:
        return int(first_cost(crow.data_ptr(), col.data_ptr(), version, threads))

    # A plan is known by its version: under torch's, C++ gets the plan of torch's pattern.
    assert cost(lower, shared) > cost(lower, apart)
    assert extension.kernels() == len(ops.info()["kernels"])


def test_a_process_maps_one_core_library(extension: ctypes.CDLL) -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert [path for path in mapped if path.endswith("libsparseloom.so")] == [str(_library.CORE)]


def test_a_missing_core_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_library, "CORE", tmp_path / "libsparseloom.so")
    with pytest.raises(ImportError, match=rf"not built: {tmp_path}/libsparseloom\.so missing"):
        _library.load()
