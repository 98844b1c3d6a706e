// Problems, schedules and plans as text.
#include <cstdio>

#include "sparseloom/plan.h"
#include "sparseloom/verb.h"

namespace sparseloom {

const char* name_of(Direction direction) noexcept {
  switch (direction) {
    case Direction::forward: return "forward";
    case Direction::dx: return "dx";
    case Direction::dw: return "dw";
  }
  return "?";
}

const char* name_of(Activation activation) noexcept {
  const auto code = static_cast<int>(activation);
  return code < kActivationCount ? kActivations[code].name : "?";
}

namespace {

// A problem as text: the product, the members that both verbs have, and between those the verb's own.
std::string text_of(const CommonProblem& p, const std::string& product, const char* residual,
                    const std::string& flags) {
  const std::int64_t grid = p.block.rows && p.block.cols ? ((p.rows + p.block.rows - 1) / p.block.rows) *
                                                               ((p.cols + p.block.cols - 1) / p.block.cols)
                                                         : 0;
  char density[32];
  std::snprintf(density, sizeof density, "%.3g",
                grid ? static_cast<double>(p.blocks) / static_cast<double>(grid) : 0.0);
  std::string text = product + " m=" + std::to_string(p.m) + " W=[" + std::to_string(p.rows) + ", " +
                     std::to_string(p.cols) + "] block=" + to_string(p.block) +
                     " blocks=" + std::to_string(p.blocks) + " density=" + density;
  if (p.bias) text += " bias";
  if (p.activation != Activation::none) text += std::string(" ") + name_of(p.activation);
  text += residual;
  if (p.facts.uneven_rows) text += " uneven_rows";
  if (p.facts.moving) text += " moving";
  text += flags;
  text +=
      p.device >= 0 ? " device=cuda:" + std::to_string(p.device) : " threads=" + std::to_string(p.threads);
  if (!p.aligned) text += " misaligned";
  if (!p.out_aligned) text += " misaligned_out";
  if (p.strict) text += " strict";
  return text;
}

}  // namespace

std::string to_string(const Problem& p) {
  return text_of(p, std::string(name_of(p.direction)) + " " + name_of(p.dtype), p.residual ? " residual" : "",
                 std::string(p.accumulate ? " accumulate" : "") + (p.tf32 ? " tf32" : "") +
                     (p.glu ? " glu factor_blocks=" + std::to_string(p.factor_blocks) : ""));
}

std::string to_string(const ScaledProblem& p) {
  return text_of(p, std::string("forward ") + name_of(p.dtype) + " to " + name_of(p.out), "",
                 p.fast_accum ? " fast_accum" : "");
}

const char* name_of(Method method) noexcept {
  switch (method) {
    case Method::only: return "";
    case Method::dw_wgmma: return "dw_wgmma";
    case Method::dw_wgmma_regions: return "dw_wgmma_regions";
    case Method::decode_rows: return "decode_rows";
    case Method::decode_x_streamed: return "decode_x_streamed";
  }
  return "?";
}

std::string to_string(const Schedule& s) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (s.method != Method::only) add(std::string("by ") + name_of(s.method));
  if (s.tile_m > 0)
    add("tile " + std::to_string(s.tile_m) + "x" + std::to_string(s.tile_n) +
        (s.tile_k > 0 ? "x" + std::to_string(s.tile_k) : std::string()));
  if (s.tiles_in_turn > 1) add(std::to_string(s.tiles_in_turn) + " tiles in turn");
  if (s.tiles_at_once > 1) add(std::to_string(s.tiles_at_once) + " tiles at once");
  if (s.warps > 0) add(std::to_string(s.warps) + (s.warps == 1 ? " warp" : " warps"));
  if (s.stages > 0)
    add(std::to_string(s.stages) + " stages" +
        (s.slots > 0 ? " of " + std::to_string(s.slots) + " blocks" : std::string()));
  if (s.grid > 0) add("a grid of " + std::to_string(s.grid));
  if (s.chunk_n > 0) add("N tiles in chunks of " + std::to_string(s.chunk_n));
  if (s.swap_ab) add("swap-AB");
  if (s.cluster > 1) add("clusters of " + std::to_string(s.cluster));
  if (s.split_k > 1) add("split-K " + std::to_string(s.split_k));
  if (s.stores_at_end) add("stores at the end of a tile");
  return text;
}

std::string plan::describe(const Choice& choice, const std::string& problem, const std::string& schedule) {
  const auto microseconds = [](double us) {
    char text[32];
    std::snprintf(text, sizeof text, us < 100 ? "%.1f us" : "%.0f us", us);
    return std::string(text);
  };
  const std::string name = choice.kernel_name;
  std::string text = "plan: " + problem + "\n  runs " + name + ", predicted " +
                     microseconds(choice.predicted_us) + ", workspace " +
                     std::to_string(choice.workspace_bytes) + " bytes\n";
  if (!choice.machine.empty()) text += "  on " + choice.machine + "\n";
  if (!choice.caveat.empty()) text += "  " + name + ": " + choice.caveat + "\n";
  if (!schedule.empty()) text += "  " + schedule + "\n";
  for (const Candidate& c : choice.candidates) {
    if (c.kernel == name) continue;
    text += "  not " + c.kernel + ": " +
            (c.refusal.empty() ? "predicted " + microseconds(c.predicted_us) : std::string(c.refusal)) + "\n";
  }
  return text;
}

}  // namespace sparseloom
