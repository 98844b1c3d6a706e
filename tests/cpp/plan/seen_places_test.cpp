// The indices of devices that were validated: whose memory is kept, and what is forgotten.
#include "plan/seen_places.h"

#include <gtest/gtest.h>

#include <memory>

namespace sparseloom::plan {
namespace {

class Owner final : public IndexOwner {
 public:
  Owner(std::int64_t bytes, bool& there) : bytes_(bytes), there_(there) {}
  bool is_there() const override { return there_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::int64_t bytes_;
  bool& there_;
};

constexpr std::int64_t kMost = 400;
constexpr std::uint64_t kIdle = 10, kWrites = 3;

class SeenPlacesOf : public testing::Test {
 protected:
  SeenPlaces::Place at(int i, const void* columns = nullptr) const {
    return {0, IndexView{64, 64, {8, 8}, 5, lists_ + 100 * i, lists_ + 100 * i + 9}, columns};
  }
  /// Adds a place with an owner of 100 bytes, and returns what tells whether it is alive.
  std::weak_ptr<const IndexOwner> hold(int i, std::int64_t bytes = 100) {
    auto owner = std::make_shared<const Owner>(bytes, there_);
    std::weak_ptr<const IndexOwner> alive = owner;
    seen_.add(at(i), kWrites, false, std::move(owner));
    return alive;
  }
  bool contains(int i) { return seen_.contains(at(i), kWrites); }
  void idle() {
    seen_.add(at(50), kWrites);
    for (std::uint64_t i = 0; i <= kIdle; ++i) seen_.contains(at(50), kWrites);
  }

  std::int32_t lists_[6000] = {};
  bool there_ = true;
  SeenPlaces seen_{kMost, kIdle};
};

TEST_F(SeenPlacesOf, AnotherPlaceShapeOrNumberOfWritesIsUnseen) {
  seen_.add(at(1), kWrites);
  EXPECT_TRUE(contains(1));
  EXPECT_FALSE(contains(2));
  EXPECT_FALSE(seen_.contains(at(1), kWrites + 1));
  EXPECT_FALSE(seen_.contains(at(1, lists_), kWrites));
  seen_.add(at(1), kWrites + 1);
  EXPECT_FALSE(contains(1));  // one entry a place
}

TEST_F(SeenPlacesOf, TheMemoryOfTheLatestIsKept) {
  const auto first = hold(0);
  for (int i = 1; i < 4; ++i) hold(i);
  EXPECT_EQ(seen_.held_bytes(), kMost);
  EXPECT_TRUE(contains(1) && contains(0));
  const auto fifth = hold(4);  // lets 2 go, which was used longest ago
  EXPECT_FALSE(first.expired() || fifth.expired());
  EXPECT_EQ(seen_.held_bytes(), kMost);
  EXPECT_TRUE(contains(2));  // in use: a model of more bytes is not validated in each call
  const auto long_list = hold(5, kMost / 4 + 1);
  EXPECT_TRUE(long_list.expired() && contains(5));
}

TEST_F(SeenPlacesOf, WhatNothingHoldsIsForgottenWhenIdle) {
  seen_.add(at(0), kWrites);
  const auto held = hold(1);
  idle();
  EXPECT_FALSE(contains(0));
  EXPECT_TRUE(contains(1) && !held.expired());
}

TEST_F(SeenPlacesOf, TensorsThatWereGivenOtherMemoryAreUnseen) {
  const auto owner = hold(0);
  there_ = false;
  EXPECT_FALSE(contains(0));
  seen_.add(at(0), kWrites);
  EXPECT_TRUE(owner.expired() && contains(0));
  EXPECT_EQ(seen_.held_bytes(), 0);
}

TEST_F(SeenPlacesOf, FreeSlotsAreValidForCallsThatLeaveThemAlone) {
  seen_.add(at(0), kWrites, true);
  EXPECT_FALSE(contains(0));
  EXPECT_TRUE(seen_.contains(at(0), kWrites, true));
  seen_.add(at(0), kWrites);
  EXPECT_TRUE(contains(0) && seen_.contains(at(0), kWrites, true));
}

TEST_F(SeenPlacesOf, TheNumberOfPlacesIsBounded) {
  static std::int32_t many[40'000] = {};
  for (int i = 0; i < 40'000; ++i) {
    seen_.add({0, IndexView{64, 64, {8, 8}, 5, many + i, many}, nullptr}, kWrites);
  }
  EXPECT_TRUE(seen_.contains({0, IndexView{64, 64, {8, 8}, 5, many + 39'999, many}, nullptr}, kWrites));
  EXPECT_LE(seen_.size(), std::size_t{1} << 14);
}

}  // namespace
}  // namespace sparseloom::plan
