// What the tests of refusals share: a small weight with all its operands, and calls that are refused.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/expect_error.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom::testing {

inline constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
inline const Executor kSerial = Executor::serial();

/// W [16, 16] with two blocks of 8 x 8 on its diagonal, and memory for all operands.
struct Small {
  std::vector<std::int32_t> crow{0, 1, 2}, col{0, 1}, ccol{0, 1, 2}, row{0, 1}, slot{0, 1};
  std::vector<float> a = std::vector<float>(4096, 1), b = a, out = a, values = a;
  IndexView index{16, 16, {8, 8}, 2, crow.data(), col.data()};
  TransposedView transposed{ccol.data(), row.data(), slot.data()};
  Workspace workspace;

  ConstMatrixView in(std::int64_t m = 4) const { return {a.data(), DType::f32, m, 16, 16}; }
  MatrixView to(std::int64_t m = 4) { return view(out.data(), m, 16); }
};

/// The call is refused with an Error that says this word.
inline void refuse(const std::string& op, const std::string& word, const std::function<void()>& call) {
  SCOPED_TRACE(op + ": " + word);
  test::expect_error(op, {word}, call);
}
/// memory is null during the call, which names it.
template <class T>
void refuse_null(const std::string& op, const char* name, T*& memory, const std::function<void()>& call) {
  T* const kept = std::exchange(memory, nullptr);
  refuse(op, std::string("memory behind ") + name + ", got a null pointer", call);
  memory = kept;
}

}  // namespace sparseloom::testing
