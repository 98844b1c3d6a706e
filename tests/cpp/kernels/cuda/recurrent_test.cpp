// The recurrent cells on a device against fp64 on the host.
#include "sparseloom/recurrent.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "kernels/cuda/device_call.h"
#include "kernels/recurrent_case.h"

namespace sparseloom::testing {
namespace {

/// All matrices of some cells on the device. `shift` elements in front of each break their alignment.
class OnDevice {
 public:
  OnDevice(Cells& cells, std::int64_t shift) : cells_(cells), shift_(shift * 4) {
    for (const auto& [name, bytes] : cells.all) {
      EXPECT_CUDA(cudaMalloc(&all_[name], bytes.size() + 64));
      EXPECT_CUDA(cudaMemcpy(at(name), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
  }
  ~OnDevice() {
    for (const auto& [name, data] : all_) cudaFree(data);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void* at(const std::string& name) const { return static_cast<std::byte*>(all_.at(name)) + shift_; }
  void read() {
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (auto& [name, bytes] : cells_.all)
      EXPECT_CUDA(cudaMemcpy(bytes.data(), at(name), bytes.size(), cudaMemcpyDeviceToHost));
  }

 private:
  Cells& cells_;
  std::int64_t shift_;
  std::map<std::string, void*> all_;
};

struct Sizes {
  std::int64_t n, hidden, shift;
};

template <class Make, class Run>
void expect_as_in_fp64(DType dtype, Make make, Run run, std::initializer_list<const char*> results,
                       std::initializer_list<const char*> states) {
  for (const Sizes& size :
       {Sizes{3, 32, 0}, Sizes{3, 32, 1}, Sizes{2, 13, 0}, Sizes{5, 1100, 0}, Sizes{1, 1, 0}}) {
    Cells exact = make(DType::f64, size.n, size.hidden), cells = make(dtype, size.n, size.hidden);
    run(exact, Executor::serial(),
        [&](const char* name) { return static_cast<void*>(exact.all.at(name).data()); });
    OnDevice there(cells, size.shift);
    run(cells, Executor::cuda(0), [&](const char* name) { return there.at(name); });
    there.read();
    const auto expect_near = [&](const char* name, bool state) {
      const std::vector<double> found = cells.read(name, state), wanted = exact.read(name, state);
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], wanted[i], cell_tolerance(dtype)) << name << " " << i << " of " << size.hidden;
    };
    for (const char* name : results) expect_near(name, false);
    for (const char* name : states) expect_near(name, true);
  }
}

class CudaRecurrentCells : public ::testing::TestWithParam<DType> {};

TEST_P(CudaRecurrentCells, LstmIsThatOfFp64Rounded) {
  expect_as_in_fp64(GetParam(), lstm_cells, [](auto&&... all) { run_lstm(all...); }, {"gates", "h", "dz"},
                    {"c", "dc"});
}

TEST_P(CudaRecurrentCells, GruIsThatOfFp64Rounded) {
  expect_as_in_fp64(GetParam(), gru_cells, [](auto&&... all) { run_gru(all...); },
                    {"gates", "h", "dx", "dg", "dh_before"}, {});
}

TEST_P(CudaRecurrentCells, GatesMayLieSideBySide) {
  for (const std::int64_t side : {16, 48}) {
    Cells plain = lstm_cells(GetParam(), 3, 96), cells = plain;
    cells.all["z"] = beside(plain, "z", side);
    for (Cells* each : {&plain, &cells}) {
      OnDevice there(*each, 0);
      run_lstm(
          *each, Executor::cuda(0), [&](const char* name) { return there.at(name); },
          each == &plain ? 0 : side);
      there.read();
    }
    for (const char* name : {"h", "c", "dc"}) EXPECT_EQ(cells.all[name], plain.all[name]) << name;
    for (const char* name : {"gates", "dz"}) EXPECT_EQ(cells.all[name], beside(plain, name, side)) << name;
  }
}

std::vector<DType> on_any_gpu() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32, DType::f16, DType::bf16};
}

INSTANTIATE_TEST_SUITE_P(All, CudaRecurrentCells, ::testing::ValuesIn(on_any_gpu()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRecurrentCells);

TEST(CudaRecurrentCell, RefusesFp64) {
  test::expect_error("lstm_cell", {"f64"}, [] {
    lstm_cell({DType::f64, 1, 8, nullptr, nullptr, nullptr, nullptr, nullptr}, Executor::cuda(0));
  });
}

}  // namespace
}  // namespace sparseloom::testing
