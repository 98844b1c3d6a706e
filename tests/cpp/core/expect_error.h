// What every test of a refusal asks: an Error of this op, whose message says these words, with every field
// filled.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "sparseloom/error.h"

namespace sparseloom::test {

template <class Call>
void expect_error(const std::string& op, std::initializer_list<std::string> words, Call call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.op(), op) << what;
    EXPECT_FALSE(error.expected().empty() || error.actual().empty() || error.remedy().empty()) << what;
    for (const std::string& word : words)
      EXPECT_NE(what.find(word), std::string::npos) << "no '" << word << "' in: " << what;
    return;
  }
  ADD_FAILURE() << op << " accepted what it must refuse";
}

}  // namespace sparseloom::test
