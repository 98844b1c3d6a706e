// Thread blocks on the CPU: their threads are fibers, see cuda_runtime.h.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

// ThreadSanitizer is told of the fibers, and that a barrier alone puts them in order: so it finds accesses
// that no barrier separates. What follows is not instrumented, because it switches between them.
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define ON_HOST_PLAIN __attribute__((no_sanitize_thread, noinline))
#else
#define ON_HOST_PLAIN
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
// Those of the fiber that runs, and of the grid.
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace on_host {

/// How grids run, which tests set, and what they did.
struct Settings {
  int thread_blocks = 1;                      // how many run at a time
  bool reversed = false;                      // the last thread block and the last thread first
  std::atomic<std::int64_t> bytes_loaded{0};  // by __ldg
  std::atomic<std::int64_t> fences{0};        // changed by each fence, which so comes after those before it
};
inline Settings& settings() {
  static Settings all;
  return all;
}

/// The thread block that a thread runs.
class Block {
 public:
  Block() = default;
  ~Block() {
    for (const auto& fiber : fibers_) __tsan_destroy_fiber(fiber->tsan);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// That of the calling thread.
  ON_HOST_PLAIN static Block& own() {
    static thread_local Block* kept = nullptr;  // read often, and so without a guard
    return kept != nullptr ? *kept : *(kept = made());
  }

  /// Runs the body as every thread of thread block `number`.
  ON_HOST_PLAIN void run(unsigned number, int threads, bool reversed, const std::function<void()>& body) {
    body_ = &body, alive_ = threads, arrived_ = 0, blockIdx = {number, 0, 0};
    scheduler_fiber_ = __tsan_get_current_fiber();
    while (static_cast<int>(fibers_.size()) < threads) make();
    for (Warp& warp : warps_) warp.arrived = 0;
    for (int t = 0; t < threads; ++t) fibers_[static_cast<std::size_t>(t)]->done = false;
    while (alive_ > 0) {
      moved_ = false;
      for (int i = 0; i < threads; ++i) {
        const int t = reversed ? threads - 1 - i : i;
        threadIdx = {static_cast<unsigned>(t), 0, 0};
        if (!fibers_[static_cast<std::size_t>(t)]->done) resume(*fibers_[static_cast<std::size_t>(t)]);
      }
      if (moved_) continue;
      std::fprintf(stderr, "thread block %u: its threads wait for each other for ever\n", number);
      std::abort();
    }
  }
  ON_HOST_PLAIN void barrier() {
    const unsigned turn = turn_;
    __tsan_release(this);
    ++arrived_;
    open_if_complete();
    while (turn_ == turn) yield();
    __tsan_acquire(this);
  }
  /// Returns the places of what the lanes of the warp passed to the same call.
  ON_HOST_PLAIN const std::uint64_t* exchange(std::uint64_t word) {
    const unsigned thread = threadIdx.x;
    Warp& warp = warps_[thread / 32];
    const unsigned turn = warp.turn;
    warp.slots[turn % 2][thread % 32] = word;
    if (++warp.arrived == 32) warp.arrived = 0, ++warp.turn, moved_ = true;
    while (warp.turn == turn) yield();
    return warp.slots[turn % 2];  // which nobody overwrites before all have come to the next call
  }
  /// Waits for what another thread block does.
  ON_HOST_PLAIN void pause() {
    moved_ = true;
    std::this_thread::yield();
    yield();
  }

 private:
  static constexpr int kMost = 1024;
  static constexpr std::size_t kStack = 256 << 10;
  struct Fiber {
    bool done = true, started = false;
    ucontext_t context;
    jmp_buf jump;
    void* tsan = nullptr;
    std::unique_ptr<char[]> stack;
  };
  struct Warp {
    std::uint64_t slots[2][32];
    int arrived = 0;
    unsigned turn = 0;
  };

  static Block* made() {
    static thread_local Block block;
    return &block;
  }
  ON_HOST_PLAIN void make() {
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    fiber.stack.reset(new char[kStack]);
    fiber.tsan = __tsan_create_fiber(0);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, &Block::enter, 0);
  }
  /// A fiber's life: body after body.
  ON_HOST_PLAIN static void enter() {
    for (;;) {
      Block& block = own();
      __tsan_acquire(&settings());
      (*block.body_)();
      __tsan_release(&settings());
      block.current_->done = block.moved_ = true, --block.alive_;
      block.open_if_complete();  // who has ended is not waited for
      block.yield();
    }
  }
  ON_HOST_PLAIN void resume(Fiber& fiber) {
    current_ = &fiber;
    if (_setjmp(scheduler_) != 0) return;
    __tsan_switch_to_fiber(fiber.tsan, 1);  // 1: which puts nothing in order
    if (fiber.started) _longjmp(fiber.jump, 1);
    fiber.started = true;
    setcontext(&fiber.context);
  }
  /// Lets the other fibers run.
  ON_HOST_PLAIN void yield() {
    if (_setjmp(current_->jump) != 0) return;
    __tsan_switch_to_fiber(scheduler_fiber_, 1);
    _longjmp(scheduler_, 1);
  }
  ON_HOST_PLAIN void open_if_complete() {
    if (arrived_ > 0 && arrived_ == alive_) arrived_ = 0, ++turn_, moved_ = true;
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
  void* scheduler_fiber_ = nullptr;
  Warp warps_[kMost / 32];
  int alive_ = 0, arrived_ = 0;
  unsigned turn_ = 0;
  bool moved_ = false;  // a barrier opened, a fiber ended, or one waits for another thread block
};

/// What the lanes of a warp passed to the same call. All of them call it.
template <class T>
class OfWarp {
 public:
  explicit OfWarp(T x) {
    std::uint64_t word = 0;
    std::memcpy(&word, &x, sizeof(T));
    words_ = Block::own().exchange(word);
  }
  ON_HOST_PLAIN T operator[](int lane) const {
    T x;
    std::memcpy(&x, words_ + lane, sizeof(T));
    return x;
  }

 private:
  const std::uint64_t* words_;
};

inline void run_grid(dim3 grid, dim3 threads, const std::function<void()>& body) {
  gridDim = grid, blockDim = threads;
  std::atomic<unsigned> next{0};
  const bool reversed = settings().reversed;
  const auto work = [&] {
    for (unsigned n; (n = next.fetch_add(1)) < grid.x;)
      Block::own().run(reversed ? grid.x - 1 - n : n, static_cast<int>(threads.x), reversed, body);
  };
  __tsan_release(&settings());
  std::vector<std::thread> others;
  for (int t = 1; t < settings().thread_blocks; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  __tsan_acquire(&settings());
}

}  // namespace on_host
