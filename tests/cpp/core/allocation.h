// The memory of the test program: operator new is counted, and with SPARSELOOM_TEST_GUARD every allocation of
// a running test lies beside a page that nobody may touch. A kernel that reads a byte beyond an operand, an
// index or its workspace then ends the process, which names the call.
//
//   SPARSELOOM_TEST_GUARD=behind   the last byte lies before such a page
//   SPARSELOOM_TEST_GUARD=before   the first byte lies behind one
#pragma once

#include <functional>
#include <string>

namespace sparseloom::testing {

/// Whether SPARSELOOM_TEST_GUARD asks for guard pages. Never under a sanitizer, which guards memory itself.
bool guarded();

/// The exit status after a stray access.
inline constexpr int kStrayExit = 3;

/// What a test calls next, family, row and case: the message of a stray read has it. Asked for where it is
/// guarded.
void calling(const std::function<std::string()>& what);

/// Allocations by operator new while `body` runs.
int allocations_in(const std::function<void()>& body);

}  // namespace sparseloom::testing
