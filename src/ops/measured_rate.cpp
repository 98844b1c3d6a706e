// Times lent products, and keeps their rates.
#include "ops/measured_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "sparseloom/generic/half.h"

namespace sparseloom::ops {
namespace {

using Clock = std::chrono::steady_clock;

// torch's own loop for fp16 and, without AVX-512, for bf16 multiplies dX at only 0.26 Gflop/s, so the whole
// shape could take many seconds. A product of kFirstWork takes 2 ms there. A larger one is timed only while
// it is expected to take at most kRunSeconds: such a slow product loses anyway.
constexpr double kRunSeconds = 20e-3;
// No product is slower than this. If a run is, or at half the rate of the previous smaller shape, another
// process had a core: a late thread costs 8 ms, as much as a product that is a thousand times larger. If that
// persists, larger shapes are tried nevertheless: 8 ms weigh less there.
constexpr double kLeastRate = 0.25e9;
constexpr int kDisturbedRuns = 40;
constexpr double kDisturbedSeconds = 0.4, kDisturbedRunSeconds = 0.2;
// A fastest run that another one confirms to within this factor had the machine to itself.
constexpr double kConfirmed = 1.15;
// A disturbed rate is measured again by the first plan after this long, and after kQuietTimes as long as the
// measurement took; then after twice as long, and so on. So at most a tenth of the time goes there.
constexpr double kAgainSeconds = 0.5, kQuietTimes = 10;

// The runs of one product. It keeps the fastest, which other load on the machine disturbs least, and the one
// after it.
class Runs {
 public:
  explicit Runs(const TimedProduct& product) : product_(&product) {}

  void add() {
    const auto start = Clock::now();
    product_->run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    second_ = std::min(second_, std::max(best_, seconds));
    best_ = std::min(best_, seconds);
    total_ += seconds, ++count_;
  }

  // Whether another run costs little beside what a measurement may take.
  bool may_add(bool wanted) const {
    return count_ < 1 || (count_ < 2 && total_ < kRunSeconds) || (count_ < 20 && total_ < 5e-3) ||
           (wanted && count_ < kDisturbedRuns && total_ < kDisturbedSeconds);
  }

  double rate() const { return product_->work / best_; }
  double seconds() const { return best_; }
  bool confirmed() const { return second_ <= kConfirmed * best_; }

 private:
  const TimedProduct* product_;
  double best_ = 1e30, second_ = 1e30, total_ = 0;
  int count_ = 0;
};

struct Known {
  MeasuredRate measured;
  Clock::duration wait{};     // from the last measurement to the next one
  Clock::time_point again{};  // of a disturbed rate: when it is measured again
};

std::mutex mutex;
std::map<RateKey, Known> rates;
// When the first disturbed rate is due, in ticks of the clock; 0: none is known that waits.
std::atomic<Clock::rep> due{0};
std::atomic<std::size_t> generation{0};

// Keeps a measurement, with the mutex held. A disturbed one never lowers a rate.
double keep(Known& known, const MeasuredRate& measured, Clock::duration taken) {
  if (!measured.disturbed || measured.rate > known.measured.rate) known.measured.rate = measured.rate;
  known.measured.disturbed = measured.disturbed;
  if (measured.disturbed) {
    const auto ticks = [](double seconds) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    };
    const auto least =
        std::max(ticks(kAgainSeconds), ticks(kQuietTimes * std::chrono::duration<double>(taken).count()));
    known.wait = std::max(least, 2 * known.wait);
    known.again = Clock::now() + known.wait;
    const Clock::rep mine = known.again.time_since_epoch().count(), first = due.load();
    if (first == 0 || mine < first) due.store(mine);
  }
  return known.measured.rate;
}

}  // namespace

MeasuredRate measure_within_budget(const std::vector<TimedProduct>& products) {
  double rate = 0, budget = kRunSeconds;
  bool slow = false;
  std::optional<Runs> runs;
  for (auto product = products.rbegin();
       product != products.rend() && (rate == 0 || product->work / rate <= budget); ++product) {
    const double least = std::max(kLeastRate, rate / 2);
    product->run();  // warms the vendor's caches; the very first one loads its library
    runs.emplace(*product);
    do runs->add();
    while (runs->may_add(runs->rate() < least));
    slow = runs->rate() < least;
    if (slow) budget = kDisturbedRunSeconds;
    rate = std::max(runs->rate(), kLeastRate);
  }
  while (runs && !runs->confirmed() && runs->may_add(true)) runs->add();
  return {runs ? std::max(runs->rate(), kLeastRate) : 0, slow || (runs && !runs->confirmed())};
}

MeasuredRate measure_growth(const TimedProduct& larger, const TimedProduct& smaller) {
  std::optional<Runs> runs[2];
  for (int i = 0; i < 2; ++i) {
    const TimedProduct& product = i == 0 ? smaller : larger;
    product.run();  // warms the vendor's caches; the very first one loads its library
    runs[i].emplace(product);
    do runs[i]->add();
    while (runs[i]->may_add(!runs[i]->confirmed()));
  }
  // A difference of noise would be a rate of any size.
  const double grown = std::max(runs[1]->seconds() - runs[0]->seconds(), 0.1 * runs[1]->seconds());
  return {std::max((larger.work - smaller.work) / grown, kLeastRate), !runs[1]->confirmed()};
}

double kept_rate(const RateKey& key, const std::function<MeasuredRate()>& measure) {
  {
    std::lock_guard lock(mutex);
    if (auto entry = rates.find(key); entry != rates.end()) {
      const Known& known = entry->second;
      if (!known.measured.disturbed || Clock::now() < known.again) return known.measured.rate;
    }
  }
  // Measured outside the lock, because the callback may call back.
  const auto start = Clock::now();
  const MeasuredRate measured = measure();
  const auto taken = Clock::now() - start;
  std::lock_guard lock(mutex);
  return keep(rates[key], measured, taken);
}

std::size_t rate_generation() {
  Clock::rep first = due.load(std::memory_order_relaxed);
  if (first != 0 && Clock::now().time_since_epoch().count() >= first && due.compare_exchange_strong(first, 0))
    generation.fetch_add(1);
  return generation.load(std::memory_order_relaxed);
}

std::vector<std::byte> varied(DType dtype, std::int64_t elements) {
  std::vector<std::byte> data(static_cast<std::size_t>(elements) * size_of(dtype));
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value =
        static_cast<float>(static_cast<int>(static_cast<std::uint32_t>(i) * 2654435761u >> 20 & 1023) - 512) /
        512.0f;
    std::byte* at = data.data() + static_cast<std::size_t>(i) * size_of(dtype);
    if (dtype == DType::f32) {
      std::memcpy(at, &value, 4);
    } else if (dtype == DType::f64) {
      const double wide = value;
      std::memcpy(at, &wide, 8);
    } else {
      const std::uint16_t bits = dtype == DType::bf16 ? core::to_bf16(value).bits : core::to_f16(value).bits;
      std::memcpy(at, &bits, 2);
    }
  }
  return data;
}

}  // namespace sparseloom::ops
