// Several processes at once, for what they share on disk.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace sparseloom::testing {

/// Forks so many children, each of which runs body(its number), and expects true of all.
template <class Body>
void expect_of_processes(int count, const Body& body) {
  std::vector<pid_t> children;
  for (int child = 0; child < count; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(body(child) ? 0 : 1);
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace sparseloom::testing
