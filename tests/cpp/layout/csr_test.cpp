// CSR as a layout: errors name the element, and unpack copies bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/expect_error.h"
#include "sparseloom/csr_ops.h"

namespace sparseloom {
namespace {

using test::expect_error;

struct Index {
  std::vector<std::int32_t> crow{0, 2, 2, 4}, col{0, 3, 1, 2};

  CsrView view() const {
    CsrView w;
    w.rows = 3, w.cols = 4, w.stored = static_cast<std::int64_t>(col.size());
    w.crow = crow.data(), w.col = col.data();
    return w;
  }
};

TEST(CsrLayout, NamesTheFirstElementThatIsWrong) {
  Csr::validate("test", Index().view());
  const auto refuses = [](std::initializer_list<std::string> words, auto spoil) {
    Index index;
    spoil(index);
    expect_error("test", words, [&] { Csr::validate("test", index.view()); });
  };
  refuses({"col[3] = 1", "row 2"}, [](Index& i) { i.col[3] = 1; });
  refuses({"col[1] = 4", "below 4", "row 0"}, [](Index& i) { i.col[1] = 4; });
  refuses({"col[2] = -1"}, [](Index& i) { i.col[2] = -1; });
  refuses({"2 and 1", "row 1"}, [](Index& i) { i.crow[2] = 1; });
  refuses({"2 and 5", "row 1"}, [](Index& i) { i.crow[2] = 5; });
  refuses({"0 to 3"}, [](Index& i) { i.crow[3] = 3; });
  refuses({"1 to 4"}, [](Index& i) { i.crow[0] = 1; });
  CsrView none = Index().view();
  none.col = nullptr;
  expect_error("test", {"a null pointer"}, [&] { Csr::validate("test", none); });
}

TEST(CsrLayout, IsValidatedAgainWhenItChanges) {
  Index index;
  csr_require_valid("test", index.view());
  csr_require_valid("test", index.view());
  index.col[3] = 4;
  expect_error("test", {"col[3] = 4"}, [&] { csr_require_valid("test", index.view()); });
}

TEST(CsrLayout, UnpacksBitsOfEverySize) {
  const Index index;
  const auto check = [&](auto zero, DType dtype) {
    using W = decltype(zero);
    const std::vector<W> values{W(1), W(~W{0}), W(3), W(4)};
    std::vector<W> dense(15, W(9));
    Csr::unpack(index.view(), values.data(), {dense.data(), dtype, 3, 4, 5}, 0, 3);
    const std::vector<W> wanted{W(1), 0, 0, W(~W{0}), W(9), 0, 0, 0, 0, W(9), 0, W(3), W(4), 0, W(9)};
    EXPECT_EQ(dense, wanted) << name_of(dtype);
  };
  check(std::uint8_t{}, DType::i8), check(std::uint16_t{}, DType::bf16);
  check(std::uint32_t{}, DType::f32), check(std::uint64_t{}, DType::f64);
}

}  // namespace
}  // namespace sparseloom
