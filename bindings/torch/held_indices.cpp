#include "held_indices.h"

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/shared_by_threads.h"
#include "plan/seen_places.h"

namespace sparseloom::binding {
namespace {

/// Lists of at most so many bytes are read in every call, which takes a microsecond.
constexpr std::int64_t kShort = 1 << 14;
constexpr std::int64_t kMost = std::int64_t{1} << 27;

std::int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

/// The lists that are kept, oldest first. Thread-safe.
class HeldIndices {
 public:
  /// The number of a pair among all that were ever kept.
  std::uint64_t number_of(const Tensor& first, const Tensor& second) {
    const Key key{first.const_data_ptr(), second.const_data_ptr()};
    std::vector<Held> freed;  // outside of the lock: memory of NumPy's waits for Python's own
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(key);
    // A tensor that was given other memory (set_, .data) keeps its old memory no longer.
    if (found != held_.end() && found->second.first.const_data_ptr() == key[0] &&
        found->second.second.const_data_ptr() == key[1])
      return found->second.number;
    if (found != held_.end()) forget(found, freed);
    const Held held{first, second, ++last_, bytes_of(first) + bytes_of(second)};
    bytes_ += held.bytes;
    held_.emplace(key, held);
    order_.emplace_back(key, held.number);
    while (bytes_ > kMost) {
      const auto [oldest, number] = order_.front();
      order_.pop_front();
      const auto at = held_.find(oldest);
      if (at != held_.end() && at->second.number == number) forget(at, freed);
    }
    return last_;
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  using Key = std::array<const void*, 2>;
  struct Held {
    Tensor first, second;
    std::uint64_t number;
    std::int64_t bytes;
  };

  void forget(std::map<Key, Held>::iterator at, std::vector<Held>& freed) {
    bytes_ -= at->second.bytes;
    freed.push_back(std::move(at->second));
    held_.erase(at);
  }

  std::mutex mutex_;
  std::map<Key, Held> held_;
  std::deque<std::pair<Key, std::uint64_t>> order_;
  std::int64_t bytes_ = 0;
  std::uint64_t last_ = 0;
};

/// Tensors, and where they lay.
class HeldTensors final : public plan::IndexOwner {
 public:
  explicit HeldTensors(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const Tensor& tensor : tensors_) {
      places_.push_back(tensor.const_data_ptr());
      bytes_ += bytes_of(tensor);
    }
  }
  bool is_there() const override {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].const_data_ptr() != places_[i]) return false;
    return true;
  }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<const void*> places_;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::shared_ptr<const plan::IndexOwner> IndexTensors::owner() const {
  std::vector<Tensor> tensors;
  for (const Tensor* tensor : tensors_)
    if (tensor != nullptr) tensors.push_back(*tensor);
  return std::make_shared<HeldTensors>(std::move(tensors));
}

std::optional<std::uint64_t> content_number(const Tensor& first, const Tensor& second) {
  const std::int64_t bytes = bytes_of(first) + bytes_of(second);
  if (bytes <= kShort || bytes > kMost) return {};
  const std::optional<std::uint64_t> writes = writes_of({&first, &second});
  if (!writes) return {};
  constexpr std::uint64_t kApart = 0x9E3779B97F4A7C15u;  // the golden ratio of 2^64
  return *writes + shared_by_threads<HeldIndices>().number_of(first, second) * kApart;
}

}  // namespace sparseloom::binding
