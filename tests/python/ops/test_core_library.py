"""One core library in a process: a kernel that C++ adds serves torch too, built with what is shipped."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparseloom
from sparseloom import ops
from sparseloom.ops import library

PACKAGE = Path(sparseloom.__file__).parent
#: An installed package has the headers, a source tree has them beside python/.
HEADERS = next(
    folder
    for folder in (PACKAGE / "include", Path(__file__).resolve().parents[3] / "include")
    if folder.is_dir()
)
SOURCE = """
#include <cstring>
#include <string>

#include "sparseloom/sparseloom.h"
namespace sl = sparseloom;

namespace {

using sl::bsr_linear::Linear;

sl::Refusal propose_bsr(const sl::Problem& p, const sl::plan::Machine&, sl::Proposals<Linear>& out) {
  if (p.direction != sl::Direction::forward || p.dtype != sl::DType::f32) return "does forward of f32 only";
  if (p.activation != sl::Activation::none || p.residual) return "adds a bias and nothing else";
  if (p.m != 3) return {"takes {} tokens", 3};
  out.add({{}, 1e-3, sizeof(int)});
  return {};
}

int launch_bsr(const sl::MatmulArgs& args, const sl::Schedule&, const sl::Executor&) {
  const sl::IndexView& w = args.index;
  const auto *x = static_cast<const float*>(args.a), *values = static_cast<const float*>(args.values),
             *bias = static_cast<const float*>(args.bias);
  for (std::int64_t t = 0; t < args.m; ++t)
    for (std::int64_t o = 0; o < w.rows; ++o) {
      float sum = bias ? bias[o] : 0;
      const std::int64_t r = o / w.block.rows;
      for (std::int64_t b = w.crow[r]; b < w.crow[r + 1]; ++b)
        for (std::int64_t i = 0; i < w.block.cols && w.col[b] * w.block.cols + i < w.cols; ++i)
          sum += x[t * args.a_stride + w.col[b] * w.block.cols + i] *
                 values[(b * w.block.rows + o % w.block.rows) * w.block.cols + i];
      static_cast<float*>(args.out)[t * args.out_stride + o] = sum;
    }
  ++*reinterpret_cast<int*>(args.workspace);  // it was lent
  return 0;
}

constexpr sl::Row<Linear> row{"from_outside", sl::Placement::cpu, propose_bsr, launch_bsr};

}  // namespace

// A verb of this library alone, which libsparseloom.so plans.
namespace {

struct Sum {
  static constexpr const char* kName = "sum_from_outside";
  struct Problem {
    std::int64_t count = 0;
    int device = -1;
    bool strict = false;
  };
  struct Args {
    const double* numbers = nullptr;
    double* out = nullptr;
  };
  struct Schedule {
    std::int64_t count = 0;
  };
  static sl::ProblemKey key(const Problem& p) { return {static_cast<std::uint64_t>(p.count), p.strict}; }
  static std::string print(const Problem& p) { return "sum of " + std::to_string(p.count); }
  static std::string print(const Schedule&) { return {}; }
};

template <int us>
sl::Refusal propose(const Sum::Problem& p, const sl::plan::Machine&, sl::Proposals<Sum>& out) {
  if (us == 1 && p.count > 2) return {"adds at most {} numbers, there are {}", 2, p.count};
  out.add({{p.count}, us});
  return {};
}

int add_up(const Sum::Args& args, const Sum::Schedule& schedule, const sl::Executor&) {
  for (std::int64_t i = 0; i < schedule.count; ++i) *args.out += args.numbers[i];
  return 0;
}

constexpr sl::Row<Sum> pair{"pair", sl::Placement::cpu, propose<1>, add_up},
    any{"any", sl::Placement::cpu, propose<9>, add_up};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int kernels() { return static_cast<int>(sl::kernel_names().size()); }
EXPORT int add() { return sl::register_row(row); }
EXPORT int add_rows() { return 10 * sl::register_row(pair) + sl::register_row(any); }
EXPORT double sum(std::int64_t count, const char* forced, char* text) {
  const double numbers[] = {1, 2, 4};
  double out = 0;
  try {
    const auto plan = sl::plan_for<Sum>({count}, sl::Executor::serial(), forced);
    const bool cached = plan == sl::plan_for<Sum>({count}, sl::Executor::serial(), forced);
    std::strcpy(text, (plan->kernel_name + (cached ? " cached\\n" : "\\n") + plan->describe()).c_str());
    plan->launch({numbers, &out}, sl::Executor::serial());
  } catch (const sl::Error& error) {
    std::strcpy(text, error.what());
  }
  return out;
}
EXPORT int add_of_other_headers() {
  sl::plan::AnyRow other = sl::plan::any_row(row);
  other.args_size += 8;
  return sparseloom_register_row(&other);
}
EXPORT int add_without_launch() {
  static constexpr sl::Row<Linear> other{"without_launch", sl::Placement::cpu, propose_bsr, nullptr};
  return sl::register_row(other);
}
EXPORT int add_of_a_taken_name() {
  static constexpr sl::Row<Linear> other{"reference", sl::Placement::cpu, propose_bsr, launch_bsr};
  return sl::register_row(other);
}
"""
#: Runs in a process of its own, because a kernel that was added stays.
USE = """
import ctypes, sys, torch
import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear

extension = ctypes.CDLL(sys.argv[1])
assert extension.add_of_a_taken_name() == -3  # though nothing was planned yet
layer, x = BlockSparseLinear(40, 24, density=0.5, block=8), torch.randn(3, 40)
with torch.no_grad():
    before = layer(x)
rows = len(ops.info()["kernels"])
assert extension.add_of_other_headers() == -1 and extension.add_without_launch() == -2
assert extension.kernels() == rows
assert extension.add() > 0 and extension.add() == -3
assert extension.kernels() == rows + 1
plan = layer.plan(3)
assert plan["kernel"] == "from_outside", plan["text"]
assert layer.plan(4)["kernel"] != "from_outside" and "takes 3 tokens" in layer.plan(4)["text"]
with torch.no_grad():
    torch.testing.assert_close(layer(x), before)
    named = ops.linear(x, layer.values, layer.index, layer.bias, kernel="from_outside")
torch.testing.assert_close(named, before)
print("used")
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("extension")
    (folder / "extension.cpp").write_text(SOURCE)
    compiler = [
        os.environ.get("CXX", "g++"),
        "-std=c++20",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    paths = [f"-I{HEADERS}", "extension.cpp", f"-L{PACKAGE}", "-lsparseloom", f"-Wl,-rpath,{PACKAGE}"]
    subprocess.run([*compiler, *paths, "-o", "extension.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "extension.so"))


def test_a_kernel_of_another_library_serves_torch(extension: ctypes.CDLL) -> None:
    run = subprocess.run([sys.executable, "-c", USE, extension._name], capture_output=True, text=True)
    assert run.stdout == "used\n", run.stderr


def test_cpp_and_torch_see_one_registry(extension: ctypes.CDLL) -> None:
    assert extension.kernels() == len(ops.info()["kernels"])


def test_a_verb_of_another_library_is_planned(extension: ctypes.CDLL) -> None:
    extension.sum.restype = ctypes.c_double
    text = ctypes.create_string_buffer(4096)

    def run(count: int, forced: str = "") -> tuple[float, str]:
        total = extension.sum(ctypes.c_int64(count), forced.encode(), text)
        return total, text.value.decode()

    assert "no such candidate" in run(2)[1]
    assert extension.add_rows() == 1
    total, said = run(2)
    assert total == 3 and said.startswith("pair cached\nplan: sum of 2\n  runs pair"), said
    total, said = run(3)
    assert total == 7 and said.startswith("any cached"), said
    assert "not pair: adds at most 2 numbers, there are 3" in said
    assert run(2, "any")[1].startswith("any cached")
    assert "refusals: pair: adds at most 2 numbers" in run(3, "pair")[1]
    assert "sum_from_outside" not in ops.info()["kernels"]


def test_a_process_maps_one_core_library(extension: ctypes.CDLL) -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert [path for path in mapped if path.endswith("libsparseloom.so")] == [str(library.CORE)]


def test_a_missing_core_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "CORE", tmp_path / "libsparseloom.so")
    with pytest.raises(ImportError, match=rf"not built: {tmp_path}/libsparseloom\.so missing"):
        library.load()
