// sparseloom::Error: every public function throws it when its arguments are wrong.
#pragma once

#include <stdexcept>
#include <string>

#include "sparseloom/export.h"

namespace sparseloom {

/// Has the operation, the expectation, the actual value and a remedy. what() reads "[op] expected <expected>,
/// got <actual>; <remedy>".
/// The class is visible outside the library so that it can be caught across shared objects. Kernels never
/// throw it: only the layers above them do.
class SPARSELOOM_API Error : public std::runtime_error {
 public:
  Error(std::string op, std::string expected, std::string actual, std::string remedy);
  ~Error() override;

  const std::string& op() const noexcept { return op_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& actual() const noexcept { return actual_; }
  const std::string& remedy() const noexcept { return remedy_; }

 private:
  std::string op_, expected_, actual_, remedy_;
};

}  // namespace sparseloom
