// Enters the rows of this library into the registry, before all others.
#include "ops/rows.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <span>
#include <string_view>

#include "core/check.h"
#include "kernels/bitmap_linear/rows.h"
#include "kernels/block_attention/rows.h"
#include "kernels/bsr_conv/rows.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/rows.h"
#include "kernels/csr_linear/rows.h"
#include "kernels/nmg_linear/rows.h"
#include "kernels/semi24_linear/rows.h"
#include "kernels/tiles_linear/rows.h"
#include "ops/row_number.h"
#include "plan/registry.h"

namespace sparseloom::ops {
namespace {

using namespace kernels;

template <class V>
void enter(std::span<const OwnRow<V>> rows) {
  for (const OwnRow<V>& row : rows) plan::add_row(plan::any_row<V>(row));
}

// Only the CPU rows of this library need an instruction set.
template <class V>
runtime::Isa isa_of(const plan::AnyRow& row, std::span<const OwnRow<V>> cpu) {
  for (const OwnRow<V>& each : cpu)
    if (static_cast<const Row<V>*>(&each) == row.typed) return each.isa;
  return runtime::Isa::generic;
}

}  // namespace

void enter_own_rows() {
  static const Kernel last[] = {dense_kernel(), reference_kernel()};
  static const ConvRow dense_conv = dense_conv_row();
  static const AttentionRow attention_last = attention_reference_row();
  static const ScaledKernel scaled_last[] = {scaled_dense_kernel(), scaled_reference_kernel()};
  [[maybe_unused]] static const bool entered = [] {
    enter<Linear>(cpu_kernels());
    enter<Scaled>(cpu_scaled_kernels());
    enter<Linear>(cuda_kernels());
    enter<Scaled>(cuda_scaled_kernels());
    enter<Linear>(last);
    enter<Scaled>(scaled_last);
    for (const Row<Semi24Linear>& row : semi24_cuda_rows()) plan::add_row(plan::any_row<Semi24Linear>(row));
    for (const Semi24Row& row : semi24_cpu_rows()) plan::add_row(plan::any_row<Semi24Linear>(row));
    for (const CsrRow& row : csr_cuda_rows()) plan::add_row(plan::any_row<CsrLinear>(row));
    for (const CsrRow& row : csr_cpu_rows()) plan::add_row(plan::any_row<CsrLinear>(row));
    for (const Semi24ScaledRow& row : semi24_scaled_cuda_rows())
      plan::add_row(plan::any_row<Semi24Scaled>(row));
    for (const Semi24ScaledRow& row : semi24_scaled_cpu_rows())
      plan::add_row(plan::any_row<Semi24Scaled>(row));
    for (const ConvRow& row : conv_cpu_rows()) plan::add_row(plan::any_row<bsr_conv::Conv>(row));
    for (const ConvRow& row : conv_cuda_rows()) plan::add_row(plan::any_row<bsr_conv::Conv>(row));
    plan::add_row(plan::any_row<bsr_conv::Conv>(dense_conv));
    using block_attention::Attention;
    for (const AttentionRow& row : attention_cpu_rows()) plan::add_row(plan::any_row<Attention>(row));
    for (const AttentionRow& row : attention_cuda_rows()) plan::add_row(plan::any_row<Attention>(row));
    plan::add_row(plan::any_row<Attention>(attention_last));
    for (const Row<BitmapLinear>& row : bitmap_cpu_rows()) plan::add_row(plan::any_row<BitmapLinear>(row));
    plan::add_row(plan::any_row<BitmapLinear>(kBitmapDenseDw));
    for (const Row<BitmapScaled>& row : bitmap_scaled_cpu_rows())
      plan::add_row(plan::any_row<BitmapScaled>(row));
    for (const Row<TilesLinear>& row : tiles_cuda_rows()) plan::add_row(plan::any_row<TilesLinear>(row));
    for (const Row<TilesLinear>& row : tiles_cpu_rows()) plan::add_row(plan::any_row<TilesLinear>(row));
    for (const Row<NmgLinear>& row : nmg_cpu_rows()) plan::add_row(plan::any_row<NmgLinear>(row));
    plan::add_row(plan::any_row<NmgLinear>(kNmgDenseDw));
    return true;
  }();
}

std::vector<Listed> listed_kernels() {
  enter_own_rows();
  // Every call that names its kernel gets here, so the list is cached until a row is added.
  static std::mutex mutex;
  static std::size_t rows = 0;
  static std::vector<Listed> listed;
  const auto all = plan::all_rows();
  std::lock_guard lock(mutex);
  if (all.size() == rows) return listed;
  rows = all.size();
  listed.clear();
  for (const plan::AnyRow& row : all) {
    const std::string_view verb = row.verb, name = row.name;
    if (verb != Linear::kName && verb != Scaled::kName) continue;
    if (std::any_of(listed.begin(), listed.end(), [&](const Listed& other) { return name == other.name; }))
      continue;
    const runtime::Isa isa = verb == Linear::kName ? isa_of<Linear>(row, cpu_kernels())
                                                   : isa_of<Scaled>(row, cpu_scaled_kernels());
    listed.push_back({row.name, row.where, isa});
  }
  return listed;
}

std::int64_t row_number(const std::string& name) {
  enter_own_rows();
  const std::vector<plan::AnyRow> rows = plan::all_rows();
  const auto position =
      std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return name == row.name; });
  if (position != rows.end()) return position - rows.begin();
  std::set<std::string> names;
  for (const plan::AnyRow& row : rows) names.insert(row.name);
  std::string text;
  for (const std::string& row_name : names) text += (text.empty() ? "" : ", ") + row_name;
  core::fail("kernel", "one of " + text, "'" + name + "'",
             "name a candidate that the plan of this product lists");
}

std::string row_name(const char* op, std::int64_t number) {
  if (number == -1) return {};
  enter_own_rows();
  const std::vector<plan::AnyRow> rows = plan::all_rows();  // not cached: rows may be added
  if (number < 0 || number >= static_cast<std::int64_t>(rows.size()))
    core::fail(op, "row = -1 (the plan's choice) or one of 0.." + std::to_string(rows.size() - 1),
               std::to_string(number), "pass -1, or what row_number returns for a kernel's name");
  return rows[static_cast<std::size_t>(number)].name;
}

}  // namespace sparseloom::ops

int sparseloom_register_row(const sparseloom::plan::AnyRow* row) {
  if (row == nullptr) return SPARSELOOM_OTHER_ABI;
  sparseloom::ops::enter_own_rows();
  return sparseloom::plan::add_row(*row);
}
