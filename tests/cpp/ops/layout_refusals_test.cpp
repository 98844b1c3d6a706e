// The same of the layouts beside BSR: their products, by every kernel, and their copies.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/backwards.h"
#include "ops/refusals.h"
#include "sparseloom/csr_linear.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg_linear.h"
#include "sparseloom/scaled_of.h"
#include "sparseloom/semi24_linear.h"
#include "sparseloom/semi24_ops.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom {
namespace {

using testing::kMost, testing::kSerial, testing::refuse, testing::refuse_null, testing::Small;

/// Plans and calls of any LinearOf, by all of its kernels. `hollow`: w without its arrays.
template <class L>
void refuse_of(const typename L::View& w, const typename L::View& hollow, bool has_dw) {
  Small s;
  const std::string op = L::kName;
  for (Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
    if (direction == Direction::dw && !has_dw) continue;
    const auto problem = L::describe(w, direction, DType::f32, 4);
    const auto planned = [&](auto change) {
      return [problem, change] {
        auto other = problem;
        change(other);
        L::plan(other, kSerial);
      };
    };
    refuse(op, "m >= 0", planned([](auto& p) { p.m = -1; }));
    refuse(op, "2^60", planned([](auto& p) { p.m = kMost; }));
    refuse(op, "a known dtype", planned([](auto& p) { p.dtype = DType{99}; }));
    if (direction != Direction::forward)
      refuse(op, "on forward only", planned([](auto& p) { p.activation = Activation::relu; }));
    for (const Candidate& each : L::plan(problem, kSerial)->candidates) {
      if (!each.refusal.empty()) continue;
      SCOPED_TRACE(each.kernel);
      const auto plan = L::plan(problem, kSerial, each.kernel);
      MatmulArgs args;
      args.a = s.a.data(), args.a_stride = 16, args.b = s.b.data(), args.b_stride = 16;
      args.values = s.values.data(), args.out = s.out.data(), args.out_stride = 16;
      auto lent = s.workspace.at_least(plan->workspace_bytes);
      Executor executor = kSerial;
      const auto run = [&] { L::run(*plan, args, w, lent, executor); };
      run();
      refuse_null(op, "a", args.a, run);
      refuse_null(op, "out", args.out, run);
      if (direction == Direction::dw) refuse_null(op, "b", args.b, run);
      if (direction != Direction::dw) refuse_null(op, "values", args.values, run);
      args.a_stride = 1;
      refuse(op, "rows of a", run);
      args.a_stride = 16, args.accumulate = direction != Direction::dw;
      if (args.accumulate) refuse(op, "accumulate", run);
      args.accumulate = false, executor = Executor::cuda(0);
      refuse(op, "an executor on the CPU", run);
      executor = kSerial;
      if (plan->workspace_bytes > 0) {
        lent = s.workspace.at_least(plan->workspace_bytes + 4).subspan(4);
        refuse(op, "aligned to 64", run);
      }
      refuse(op, "memory behind the index", [&] { L::run(*plan, args, hollow, lent, executor); });
    }
  }
}

TEST(Refusals, OfProductsOnOtherLayouts) {
  const std::vector<std::int32_t> crow{0, 2, 2, 3}, col{0, 3, 1};
  CsrView csr, no_csr;
  csr.rows = 3, csr.cols = 4, csr.stored = 3, no_csr = csr, csr.crow = crow.data(), csr.col = col.data();
  refuse_of<CsrLinear>(csr, no_csr, true);
  const std::vector<std::uint8_t> positions(3, 0x44);
  Semi24View semi24, no_semi24;
  semi24.rows = 3, semi24.cols = 8, no_semi24 = semi24, semi24.positions = positions.data();
  refuse_of<Semi24Linear>(semi24, no_semi24, false);
  const std::vector<std::uint8_t> places(6);
  const NmView nm{3, 8, 1, 4, places.data()}, no_nm{3, 8, 1, 4, nullptr};
  refuse_of<LinearOf<Nm>>(nm, no_nm, true);
  std::vector<std::int16_t> order{0, 1, 2, 3, 3, 2, 1, 0};
  NmgView nmg = nmg_view("test", 4, 8, 1, 4, 1, order.data()), no_nmg = nmg;
  no_nmg.order = nullptr;
  refuse_of<NmgLinear>(nmg, no_nmg, true);
  // A gradient that is added to is fp32.
  Small s;
  const auto dw = CsrLinear::plan(CsrLinear::describe(csr, Direction::dw, DType::f64, 1), kSerial);
  MatmulArgs args;
  args.a = s.a.data(), args.b = s.b.data(), args.out = s.out.data(), args.accumulate = true;
  refuse("csr_linear", "accumulate, into fp32", [&] { CsrLinear::run(*dw, args, csr, {}, kSerial); });
}

/// Plans for one thread and runs on eight: the bytes behind the workspace stay as they were.
template <class V, class View>
void run_on_more_threads(const typename V::Problem& problem, const View& w, MatmulArgs args) {
  for (const Candidate& each : V::plan(problem, kSerial)->candidates) {
    if (!each.refusal.empty()) continue;
    const auto plan = V::plan(problem, kSerial, each.kernel);
    Workspace workspace;
    const auto lent = workspace.at_least(plan->workspace_bytes + (std::size_t{1} << 20));
    std::fill(lent.begin(), lent.end(), std::byte{0x5a});
    V::run(*plan, args, w, lent.first(plan->workspace_bytes), testing::backwards(8));
    EXPECT_TRUE(std::all_of(lent.begin() + static_cast<std::ptrdiff_t>(plan->workspace_bytes), lent.end(),
                            [](std::byte b) { return b == std::byte{0x5a}; }))
        << V::kName << " by " << each.kernel;
  }
}

TEST(MoreThreadsThanPlanned, StayInTheirWorkspace) {
  constexpr std::int64_t kRows = 256, kCols = 512, kTokens = 64;
  std::vector<float> a(kTokens * kCols, 1), values(kRows * kCols, 1), out(kTokens * kCols);
  MatmulArgs args;
  args.a = a.data(), args.a_stride = kCols, args.values = values.data();
  args.out = out.data(), args.out_stride = kCols;
  const std::vector<std::uint8_t> positions(kRows * kCols / 8, 0x44);
  Semi24View semi24;
  semi24.rows = kRows, semi24.cols = kCols, semi24.positions = positions.data();
  for (Direction direction : {Direction::forward, Direction::dx})
    run_on_more_threads<Semi24Linear>(Semi24Linear::describe(semi24, direction, DType::f32, kTokens), semi24,
                                      args);
  NmgView nmg = nmg_view("test", kRows, kCols, 1, 4, 8);
  std::vector<std::int16_t> order(static_cast<std::size_t>(Nmg::stored(nmg)));
  nmg_order(view(values.data(), kRows, kCols), nmg, order.data(), kSerial);
  nmg.order = order.data();
  run_on_more_threads<NmgLinear>(NmgLinear::describe(nmg, Direction::forward, DType::f32, kTokens), nmg,
                                 args);
  const float scale = 1;
  args.a_scale = args.w_scale = &scale;
  run_on_more_threads<Semi24Scaled>(Semi24Scaled::describe(semi24, DType::i8, DType::f32, kTokens), semi24,
                                    args);
}

TEST(Refusals, OfCopiesOfOtherLayouts) {
  Small s;
  float* values = s.values.data();
  const ConstMatrixView zeros = [&] {
    std::fill(s.b.begin(), s.b.end(), 0.0f);
    return ConstMatrixView{s.b.data(), DType::f32, 4, 8, 8};
  }();
  std::vector<std::uint8_t> bytes(64);
  std::uint8_t* positions = bytes.data();
  bool kept[32];
  bool* mask = kept;
  const auto semi24 = [&] { semi24_pack(zeros, values, positions, kSerial); };
  const auto prune = [&] { semi24_prune(zeros, Semi24Pruning::magnitude, mask, kSerial); };
  refuse_null("semi24_pack", "values", values, semi24);
  refuse_null("semi24_pack", "positions", positions, semi24);
  refuse_null("semi24_prune", "mask", mask, prune);
  refuse("semi24_prune", "a known pruning", [&] { semi24_prune(zeros, Semi24Pruning{9}, kept, kSerial); });
  refuse("semi24_metadata_bytes", "2^31 - 1", [] { semi24_metadata_bytes(kMost, 8, DType::f32); });
  const NmView nm{4, 8, 1, 4, positions};
  const auto pack = [&] { nm_pack(zeros, nm, values, kSerial); };
  refuse_null("nm_pack", "values", values, pack);
  refuse("nm_pack", "n <= m", [&] { nm_pack(zeros, {4, 8, 1, 0, positions}, values, kSerial); });
  refuse("nm_unpack", "a row stride of at least its columns", [&] {
    nm_unpack(nm, values, {s.out.data(), DType::f32, 4, 8, 1}, kSerial);
  });
  refuse("nm_positions", "a null pointer", [&] { nm_positions(nullptr, nm, positions, kSerial); });
  std::vector<std::int16_t> order{0, 1, 2, 3, 3, 2, 1, -5};
  const NmgView nmg = nmg_view("test", 4, 8, 1, 4, 1, order.data());
  refuse("nmg_pack", "-5 in chunk 0, strip 1", [&] { nmg_pack(zeros, nmg, values, kSerial); });
  NmgView unmade;
  unmade.rows = 4, unmade.cols = 8, unmade.order = order.data();
  refuse("test", "make it with nmg_view", [&] { Nmg::validate("test", unmade); });
  refuse("nmg_order", "make it with nmg_view", [&] { nmg_order(zeros, unmade, order.data(), kSerial); });
  refuse("sparsify", "memory behind dense", [&] {
    sparsify({nullptr, DType::f32, 4, 8, 8}, {}, {mask, nullptr}, kSerial);
  });
  SparsifierSpec unknown;
  unknown.selection = Selection{9};
  refuse("sparsify", "a known selection", [&] { sparsify(zeros, unknown, {mask, nullptr}, kSerial); });
}

}  // namespace
}  // namespace sparseloom
