// What tests of topologies up to a capacity share: tables with free slots, and a choice of blocks by sorting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "layout/topology_tables.h"
#include "sparseloom/topology.h"

namespace sparseloom::testing {

/// Those of a mask with room for `capacity` blocks.
inline Tables tables_with_room(int rows, int cols, const std::vector<std::uint8_t>& mask,
                               std::size_t capacity) {
  Tables tables(rows, cols, mask);
  for (auto* list : {&tables.col, &tables.row, &tables.slot, &tables.moved}) list->resize(capacity, 0);
  return tables;
}

/// The first `live` entries of each list, as tables of their own.
inline Tables stored_part(const Tables& tables) {
  Tables part = tables;
  for (auto* list : {&part.col, &part.row, &part.slot, &part.moved})
    list->resize(static_cast<std::size_t>(tables.crow.back()));
  return part;
}

struct Choice {
  std::vector<float> scores, growth;
  double budget[2];

  BlockChoice view(const Tables& tables, const std::int32_t* crow, const std::int32_t* col) const {
    return {tables.rows,   tables.cols, static_cast<std::int64_t>(tables.col.size()),
            crow,          col,         scores.data(),
            growth.data(), budget};
  }
};

/// Few different scores, so that many are equal; with zeros of both signs, and cells that may not grow.
inline Choice random_choice(core::Rng& rng, const Tables& tables, double count, double share) {
  constexpr float kScores[] = {-1.5f, -0.0f, 0.0f, 1e-30f, 0.25f, 3.0f, 3.0000002f};
  Choice choice{{}, {}, {count, share}};
  choice.scores.resize(tables.col.size());
  choice.growth.resize(static_cast<std::size_t>(tables.rows) * static_cast<std::size_t>(tables.cols));
  for (float& score : choice.scores) score = kScores[rng.below(7)];
  for (float& score : choice.growth)
    score = rng.below(9) == 0 ? -std::numeric_limits<float>::infinity() : kScores[rng.below(7)];
  return choice;
}

/// choose_blocks by sorting all.
inline std::vector<std::uint8_t> chosen_by_sorting(const Tables& tables, const Choice& choice) {
  std::vector<std::uint8_t> mask(choice.growth.size());
  std::vector<std::size_t> cells;  // of the stored blocks
  for (std::size_t r = 0; r + 1 < tables.crow.size(); ++r)
    for (auto i = static_cast<std::size_t>(tables.crow[r]); i < static_cast<std::size_t>(tables.crow[r + 1]);
         ++i)
      cells.push_back(r * static_cast<std::size_t>(tables.cols) + static_cast<std::size_t>(tables.col[i]));
  const auto first_of = [](std::vector<std::size_t> places, const std::vector<float>& scores, std::size_t n) {
    std::stable_sort(places.begin(), places.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    places.resize(std::min(n, places.size()));
    return places;
  };
  const auto count = static_cast<std::size_t>(choice.budget[0]), stay = std::min(count, cells.size());
  const std::size_t keep = stay - static_cast<std::size_t>(choice.budget[1] * static_cast<double>(stay));
  std::vector<std::size_t> slots(cells.size());
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  for (const std::size_t slot : first_of(slots, choice.scores, keep)) mask[cells[slot]] = 1;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < mask.size(); ++i)
    if (mask[i] == 0 && !std::isinf(choice.growth[i])) others.push_back(i);
  for (const std::size_t cell : first_of(others, choice.growth, count - keep)) mask[cell] = 1;
  return mask;
}

}  // namespace sparseloom::testing
