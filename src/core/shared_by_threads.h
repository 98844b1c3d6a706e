// Objects that all threads of the process share.
#pragma once

#include <pthread.h>

namespace sparseloom {

/// One object shared by all threads, safe around fork. It is leaked: plans may outlive static destruction in
/// a host's worker threads.
template <class Shared>
Shared& shared_by_threads() {
  static Shared* shared = [] {
    static Shared* instance = new Shared;
    pthread_atfork([] { instance->lock_for_fork(); }, [] { instance->unlock_after_fork(); },
                   [] { instance->unlock_after_fork(); });
    return instance;
  }();
  return *shared;
}

}  // namespace sparseloom
