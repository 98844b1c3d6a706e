// Objects that all threads of the process share.
#pragma once

#include <pthread.h>

namespace sparseloom {

/// One object shared by all threads, safe around fork. It is leaked: plans may outlive static destruction in
/// a host's worker threads.
template <class Shared>
Shared& shared_by_threads() {
  static Shared* shared = [] {
    static Shared* made = new Shared;
    pthread_atfork([] { made->lock_for_fork(); }, [] { made->unlock_after_fork(); },
                   [] { made->unlock_after_fork(); });
    return made;
  }();
  return *shared;
}

}  // namespace sparseloom
