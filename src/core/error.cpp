// sparseloom::Error: its message and its destructor.
#include "sparseloom/error.h"

#include <utility>

namespace sparseloom {

Error::Error(std::string op, std::string expected, std::string actual, std::string remedy)
    : std::runtime_error("[" + op + "] expected " + expected + ", got " + actual + "; " + remedy),
      op_(std::move(op)),
      expected_(std::move(expected)),
      actual_(std::move(actual)),
      remedy_(std::move(remedy)) {}

Error::~Error() = default;  // out of line, so that the vtable and type info exist in this library alone

}  // namespace sparseloom
