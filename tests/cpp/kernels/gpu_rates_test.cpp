// A GPU's rates are kept on disk as the CPU's are; what was measured on a GPU that others use is neither
// taken nor kept.
#include "kernels/shared/cost/gpu_rates.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/processes.h"
#include "runtime/cache_file.h"

namespace sparseloom::kernels::cuda {
namespace {

namespace fs = std::filesystem;

const runtime::CudaDevice kDevice{90, 132, 50 << 20, 227 << 10, 1.98e9, 4.8e12};

plan::GpuRates times(double factor) {
  plan::GpuRates rates = expected_rates(kDevice);
  rates.memory_bytes *= factor, rates.l2_bytes *= factor, rates.tensor_flops *= factor;
  return rates;
}

class GpuRatesOnDisk : public ::testing::Test {
 protected:
  GpuRatesOnDisk() {
    std::string name = (fs::temp_directory_path() / "gpu-rates-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~GpuRatesOnDisk() override { fs::remove_all(folder_); }

  KnownGpuRates known(double reached = 1) {
    return known_gpu_rates(folder_, key_, expected_rates(kDevice),
                           [&, reached]() -> std::optional<plan::GpuRates> {
                             ++measured_;
                             if (reached <= 0) return std::nullopt;
                             return times(reached);
                           });
  }
  fs::path file() const { return fs::path(folder_) / gpu_rates_file(key_); }
  void put(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }
  bool kept() const { return fs::exists(file()); }

  std::string folder_, key_ = gpu_rates_key(kDevice, "NVIDIA H200", 13000);
  int measured_ = 0;
};

TEST_F(GpuRatesOnDisk, AreMeasuredOnceAndReadAfterwards) {
  const KnownGpuRates first = known(0.9), second = known(0.8);
  EXPECT_EQ(first.origin, "measured and kept in " + file().string());
  EXPECT_EQ(second.origin, "read from " + file().string());
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(first.rates.memory_bytes, second.rates.memory_bytes);
  EXPECT_EQ(first.rates.l2_bytes, second.rates.l2_bytes);
  EXPECT_EQ(first.rates.tensor_flops, second.rates.tensor_flops);
  EXPECT_NEAR(first.rates.memory_bytes, times(0.9).memory_bytes, times(1).memory_bytes / 64);
}

TEST_F(GpuRatesOnDisk, OfTwoMeasurementsNearbyAreTheSame) {
  const KnownGpuRates first = known_gpu_rates("", key_, times(1), [] { return times(0.998); }),
                      second = known_gpu_rates("", key_, times(1), [] { return times(1.003); });
  EXPECT_EQ(first.origin, "measured, not kept: no cache folder (SPARSELOOM_CACHE)");
  EXPECT_EQ(first.rates.memory_bytes, second.rates.memory_bytes);
  EXPECT_EQ(first.rates.l2_bytes, second.rates.l2_bytes);
  EXPECT_EQ(first.rates.tensor_flops, second.rates.tensor_flops);
}

TEST_F(GpuRatesOnDisk, OfAGpuThatOthersUseAreNotTaken) {
  for (const double reached : {0.1, 0.55, 1.5, 0.0}) {
    const KnownGpuRates rates = known(reached);
    EXPECT_EQ(rates.rates.memory_bytes, 0) << reached;
    EXPECT_TRUE(rates.origin.starts_with("not measured: ")) << rates.origin;
    EXPECT_FALSE(kept());
  }
  plan::GpuRates halved = times(1);
  halved.l2_bytes /= 2;  // one of them is enough
  EXPECT_EQ(known_gpu_rates(folder_, key_, times(1), [&] { return halved; }).rates.memory_bytes, 0);
  put(gpu_rates_text(halved, key_));  // well signed, from elsewhere
  EXPECT_EQ(known().origin, "measured and kept in " + file().string());
}

TEST_F(GpuRatesOnDisk, AreNotMeasuredInACaptureButRead) {
  const MeasureGpu nothing;
  EXPECT_EQ(known_gpu_rates(folder_, key_, times(1), nothing).origin,
            "not measured: a CUDA graph is being captured");
  EXPECT_FALSE(kept());
  known();
  EXPECT_EQ(known_gpu_rates(folder_, key_, times(1), nothing).origin, "read from " + file().string());
}

TEST_F(GpuRatesOnDisk, DamagedFilesAreMeasuredAnew) {
  known();
  const std::string good = gpu_rates_text(times(1), key_);
  std::vector<std::string> damaged = {"",
                                      "\n",
                                      std::string(300, '\0'),
                                      std::string(1 << 20, 'x'),
                                      good + good,
                                      good.substr(1),
                                      "sparseloom rates 2" + good.substr(22)};
  for (std::size_t at = 0; at < good.size(); at += 5) {
    damaged.push_back(good.substr(0, at));
    damaged.push_back(good);
    damaged.back()[at] ^= 1;
  }
  for (const std::string& text : damaged) {
    put(text);
    const int before = measured_;
    EXPECT_EQ(known().origin, "measured and kept in " + file().string()) << text.substr(0, 200);
    EXPECT_EQ(measured_, before + 1);
    EXPECT_EQ(known().origin, "read from " + file().string());
  }
}

TEST_F(GpuRatesOnDisk, OfAnotherGpuOrDriverHaveAFileOfTheirOwn) {
  runtime::CudaDevice slower = kDevice;
  slower.clock_hz = 1.6e9;
  for (const std::string& other :
       {gpu_rates_key(kDevice, "NVIDIA H100", 13000), gpu_rates_key(kDevice, "NVIDIA H200", 12080),
        gpu_rates_key(slower, "NVIDIA H200", 13000)}) {
    EXPECT_NE(other, key_);
    EXPECT_NE(gpu_rates_file(other), gpu_rates_file(key_));
    put(gpu_rates_text(times(0.7), other));  // brought under this GPU's name, by a copied folder
    EXPECT_EQ(known().origin, "measured and kept in " + file().string());
  }
  EXPECT_EQ(gpu_rates_key(kDevice, "two\nlines", 1).find('\n'), std::string::npos);
}

TEST_F(GpuRatesOnDisk, NothingKeptWhereNothingCanBeWritten) {
  std::ofstream(folder_ + "/plain") << "a file";
  const std::string below = folder_ + "/plain/deeper";
  const KnownGpuRates rates = known_gpu_rates(below, key_, times(1), [] { return times(1); });
  EXPECT_TRUE(rates.origin.starts_with("measured, not kept: cannot make " + below)) << rates.origin;
  EXPECT_GT(rates.rates.memory_bytes, 1e12);
}

TEST_F(GpuRatesOnDisk, ProcessesThatStartTogetherSeeWholeFilesOnly) {
  testing::expect_of_processes(4, [&](int child) {
    bool whole = true;
    for (int i = 0; i < 100; ++i) {
      if (i % 10 == child) fs::remove(file());
      whole &= known(0.9 + 0.02 * child).rates.memory_bytes > 0;
    }
    return whole;
  });
  known();
  EXPECT_EQ(known().origin, "read from " + file().string());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST(GpuRates, OfNoDeviceAreNothing) {
  EXPECT_EQ(gpu_rates(-1, nullptr).rates.memory_bytes, 0);
  EXPECT_EQ(gpu_rates(63, nullptr).rates.memory_bytes, 0);
}

}  // namespace
}  // namespace sparseloom::kernels::cuda
