// Distributes the work items of sm90_wgmma_dw over a grid of one thread block per multiprocessor, given only
// their number. A segment (`Part`) is the range of an item's tokens that one thread block sums. This is plain
// C++: the kernel, its launcher, the cost model and the tests call the same functions.
//
//   whole      The items of the full rounds of the grid: thread block c takes items c, c + grid, and so on.
//   rest       The items left over, fewer than thread blocks. Each is cut along its tokens (split-K) into
//     pieces     of equal length, as many as can have a thread block each, and
//     tail       the last tokens. The thread blocks that have no piece are helpers; the tails of all items
//                are divided evenly among them.
//
//   thread blocks   0 .. helpers   helpers ..                     .. grid
//   take            tails          pieces 1, 2, .. of all items   piece 0 of all items, and add up and store
//
// A thread block that adds up waits only for thread blocks of lower index, which the GPU starts first, so it
// never waits for one that is not resident. The pieces of one number walk the same tokens at the same time,
// so what they share is read from DRAM once. An even cut of the items laid end to end (stream-K) would
// balance as well, but with every thread block at another token, L2 reuse is lost: three times the DRAM
// traffic at block 128, density 0.2.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define SPARSELOOM_HOST_DEVICE __host__ __device__
#else
#define SPARSELOOM_HOST_DEVICE
#endif

namespace sparseloom::kernels::cuda::wgmma::dw {

// The fewest steps of a piece. Shorter pieces would spend most of their time filling the ring.
constexpr std::int32_t kFewestSteps = 4;
// The cost of one more segment, in steps: to the thread block that computes it (it writes the sums and
// publishes them), and to the one that adds it. Timestamps on an H200, blocks of 128: 3 us to leave a
// segment's sums, .4 to .7 us per step.
constexpr std::int32_t kSegmentSteps = 7, kAddSteps = 3;
constexpr std::int32_t kMostPieces = 16;
// Longer items get no tails, so that 32 bits hold the steps of all tails. A 64-bit division is a function
// call on a GPU and spills registers.
constexpr std::int32_t kMostTailSteps = 1 << 20;

/// How the items are distributed; `whole` and `rest` count items.
struct Cut {
  std::int32_t whole, rest;
  std::int32_t pieces;   // pieces of the first (steps - tail) steps of each item of the rest
  std::int32_t tail;     // steps in the tail of each item of the rest; 0: no tails
  std::int32_t helpers;  // thread blocks that take the tails
};

SPARSELOOM_HOST_DEVICE constexpr Cut cut_items(std::int32_t items, std::int32_t grid, std::int32_t steps) {
  Cut cut{items / grid * grid, items % grid, 1, 0, 0};
  if (cut.rest == 0 || steps < 2 * kFewestSteps) return cut;
  const std::int32_t fit = grid / cut.rest;
  cut.pieces = fit < kMostPieces ? fit : kMostPieces;
  while (cut.pieces > 1 && (cut.pieces * kFewestSteps > steps || cut.pieces * cut.pieces * kAddSteps > steps))
    --cut.pieces;
  if (cut.pieces < fit || steps > kMostTailSteps) return cut;  // more segments would not pay
  const std::int32_t spare = grid - fit * cut.rest;
  // Choose the tail so that a piece takes as long as a helper:
  // (steps - tail) / pieces == (rest * tail + (rest + spare) * kSegmentSteps) / spare.
  const std::int32_t tail = (spare * steps - fit * kSegmentSteps * (cut.rest + spare)) / grid;
  if (tail < kSegmentSteps) return cut;
  cut.tail = tail;
  cut.helpers = spare;
  return cut;
}

/// A segment: consecutive steps of one item that one thread block sums. The sums are left in workspace slot
/// `slot`; -1: this thread block adds the other segments and stores the item.
struct Part {
  std::int32_t item;  // counted within the rest; Agenda counts within all items
  std::int32_t first, steps, slot;
};

/// The piece of thread block `block` >= cut.helpers; steps == 0: none.
SPARSELOOM_HOST_DEVICE constexpr Part piece_of(const Cut& cut, std::int32_t block, std::int32_t steps) {
  const std::int32_t index = block - cut.helpers, later = (cut.pieces - 1) * cut.rest;
  if (index >= later + cut.rest) return {0, 0, 0, -1};
  const bool adds = index >= later;
  const std::int32_t item = adds ? index - later : index % cut.rest, piece = adds ? 0 : index / cut.rest + 1;
  const std::int32_t length = steps - cut.tail, least = length / cut.pieces, longer = length % cut.pieces;
  const std::int32_t first = piece * least + (piece < longer ? piece : longer),
                     end = first + least + (piece < longer ? 1 : 0);
  return {item, first, end - first, adds ? -1 : item * (cut.pieces - 1) + piece - 1};
}

/// The step at which the tails of `helper` begin, counted in the tails of all items laid end to end.
SPARSELOOM_HOST_DEVICE constexpr std::int32_t tails_begin(const Cut& cut, std::int32_t helper) {
  const std::int32_t all = cut.rest * cut.tail, least = all / cut.helpers, longer = all % cut.helpers;
  return helper * least + (helper < longer ? helper : longer);
}

/// The helper whose tails include step `at`.
SPARSELOOM_HOST_DEVICE constexpr std::int32_t helper_of(const Cut& cut, std::int32_t at) {
  const std::int32_t all = cut.rest * cut.tail, least = all / cut.helpers, longer = all % cut.helpers;
  return at < longer * (least + 1) ? at / (least + 1) : longer + (at - longer * (least + 1)) / least;
}

/// The helper's segment that begins at step `at` of the tails; it ends with the helper's range or with the
/// item. From each segment to the next, the helper, the item or both advance by one, so no two segments get
/// the same slot.
SPARSELOOM_HOST_DEVICE constexpr Part tail_of(const Cut& cut, std::int32_t helper, std::int32_t at,
                                              std::int32_t steps) {
  const std::int32_t item = at / cut.tail, within = at % cut.tail;
  const std::int32_t share = tails_begin(cut, helper + 1) - at, left = cut.tail - within;
  return {item, steps - cut.tail + within, share < left ? share : left,
          (cut.pieces - 1) * cut.rest + item + helper};
}

/// The slots of an item's other segments: those of pieces, then those of tails, both in the order of the
/// tokens.
struct Slots {
  std::int32_t pieces_first, pieces, tails_first, tails;
};

SPARSELOOM_HOST_DEVICE constexpr Slots slots_of(const Cut& cut, std::int32_t item) {
  Slots slots{item * (cut.pieces - 1), cut.pieces - 1, 0, 0};
  if (cut.tail == 0) return slots;
  const std::int32_t begin = item * cut.tail;
  const std::int32_t first = helper_of(cut, begin), last = helper_of(cut, begin + cut.tail - 1);
  slots.tails_first = (cut.pieces - 1) * cut.rest + item + first;
  slots.tails = last - first + 1;
  return slots;
}

/// Enumerates the segments of one thread block: its whole items first, then its segments of the rest.
class Agenda {
 public:
  SPARSELOOM_HOST_DEVICE constexpr Agenda(const Cut& cut, std::int32_t block, std::int32_t grid,
                                          std::int32_t steps)
      : cut_(cut), block_(block), grid_(grid), steps_(steps), next_whole_(block) {
    if (helps()) at_ = tails_begin(cut, block), end_ = tails_begin(cut, block + 1);
  }

  /// Writes the next segment, with part.item counted within all items. False: there are no more.
  SPARSELOOM_HOST_DEVICE constexpr bool next(Part& part) {
    if (next_whole_ < cut_.whole) {
      part = {next_whole_, 0, steps_, -1};
      next_whole_ += grid_;
      return true;
    }
    if (cut_.rest == 0 || at_ >= end_) return false;
    if (helps()) {
      part = tail_of(cut_, block_, at_, steps_);
      at_ += part.steps;
    } else {
      at_ = end_;
      part = piece_of(cut_, block_, steps_);
      if (part.steps == 0) return false;
    }
    part.item += cut_.whole;
    return true;
  }

  /// The slots to add to a segment that next() returned, before it is stored.
  SPARSELOOM_HOST_DEVICE constexpr Slots others(const Part& part) const {
    return part.slot < 0 && part.item >= cut_.whole ? slots_of(cut_, part.item - cut_.whole)
                                                    : Slots{0, 0, 0, 0};
  }

 private:
  SPARSELOOM_HOST_DEVICE constexpr bool helps() const { return block_ < cut_.helpers; }

  Cut cut_;
  std::int32_t block_, grid_, steps_, next_whole_;
  std::int32_t at_ = 0,
               end_ = 1;  // helpers: a range of the tails of all items laid end to end; others have one piece
};

}  // namespace sparseloom::kernels::cuda::wgmma::dw
