// The rows of sm90_split and sm90_split_narrow.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm90/dw_wgmma/predict.h"
#include "kernels/bsr_linear/sm90/forward_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/forward_wgmma/row_parts.h"
#include "kernels/bsr_linear/sm90/fp32_bf16x3/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

template <bool kNarrow>
constexpr wgmma_dds::TileShape kTile = kNarrow ? wgmma_dds::kNarrowBf16x3Tile : wgmma_dds::kBf16x3Tile;

template <bool kNarrow>
Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_other_than_hopper(machine)) return why;
  if (p.dtype != DType::f32) return {"multiplies f32 only, the dtype is {}", name_of(p.dtype)};
  if (std::min(p.block.rows, p.block.cols) < 32)
    return {"needs blocks of 32 or more on both sides, the block is {}x{}", p.block.rows, p.block.cols};
  if (const Refusal why = refuse_empty_or_huge(p)) return why;
  if (p.direction != Direction::dw) return wgmma_dds::refuse_tiles(p, kTile<kNarrow>);
  if (kNarrow) return "does forward and dx only";
  if (p.m == 0) return "sums over tokens by TMA, and there are none";
  if (!sm90_bf16x3_sdd_takes(p))
    return {"counts the rows of three bf16 planes in 31 bits, for {} tokens", p.m};
  return {};
}

// Tiles step through K tiles of 32 along the reduction. An fp32 product is six 16-bit products.
template <bool kNarrow>
double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  // dW adds a launch for what the bf16 parts cannot hold (tokens.h).
  if (p.direction == Direction::dw)
    return kLaunchUs + wgmma_sdd::predict_us(p, device, wgmma_sdd::kStepBf16x3, false);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  constexpr wgmma_dds::TileShape tile = kTile<kNarrow>;
  const double outputs = tile.outputs;
  const double m = static_cast<double>(p.m), m_tiles = std::ceil(m / tile.tokens),
               groups = std::ceil(out / tile.outputs), k_tiles = std::ceil(depth / 32);
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  const double density = static_cast<double>(p.blocks) / grid,
               touched = 1 - std::pow(1 - density, std::max(1.0, outputs / side));
  const Bytes bytes = bytes_of(p);
  const double reads = m_tiles * (groups * k_tiles * touched * 16384 + 1.5 * bytes.stored);
  const double l2 = reads / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  // In a K tile the two warpgroups multiply in turn, 12 products of 64 x outputs x 16 each if all block rows
  // store it. A warpgroup alone takes half of that and its latency: loads, splitting X into bf16x3, adding
  // up.
  const double multiply = 2 * 12 * outputs / 2 * density / touched;
  const double step =
      std::max(multiply, multiply / 2 + 550) / (0.9 * device.clock_hz);  // the clock drops under load
  const double steps = k_tiles * touched * std::ceil(m_tiles * groups / device.multiprocessors) * step;
  const double stores = memory_seconds(m * out * 4, device),
               loads = memory_seconds(bytes.stored + m * depth * 4, device);
  const double splitting = kLaunchUs + 2 + us(2.5 * memory_seconds(bytes.stored, device));
  // Measured over predicted time on an H200: wgmma of 32 and 64 outputs leave less time to split X beside
  // them.
  const int slice = std::min(side, tile.outputs);
  const double slower = slice == 128 ? 1.15 : slice == 64 ? 1.2 : kNarrow ? 1.25 : 1.35;
  return kLaunchUs + 8 + splitting + us(0.5 * stores + std::max({l2, loads, slower * steps}));
}

template <bool kNarrow>
Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal<kNarrow>(p, machine)) return why;
  const bool dw = p.direction == Direction::dw;
  Schedule schedule;
  schedule.groups = wgmma_dds::block_row_groups(p, machine, kTile<kNarrow>);
  out.add({schedule, predict_us<kNarrow>(p, machine),
           dw ? sm90_bf16x3_sdd_workspace(p, machine.cuda.multiprocessors) : sm90_bf16x3_workspace(p)});
  return {};
}

template <bool kNarrow>
int launch(const MatmulArgs& args, const Schedule&, const Executor&) {
  if (!kNarrow && args.direction == Direction::dw) return sm90_bf16x3_sdd(args);
  return sm90_bf16x3_dds(args, kNarrow);
}

template <bool kNarrow>
Kernel row(const char* name) {
  Kernel made = cuda_row(name, propose<kNarrow>, launch<kNarrow>);
  // A pass prepares both operands of dW, and takes any alignment.
  made.needs_aligned = [](const Problem& p) {
    return p.direction != Direction::dw ? Aligned::all : Aligned::none;
  };
  made.adds_f32_residual = false;
  return made;
}

}  // namespace

Kernel sm90_split_row() { return row<false>("sm90_split"); }
Kernel sm90_split_narrow_row() { return row<true>("sm90_split_narrow"); }

}  // namespace sparseloom::kernels::cuda

#endif
