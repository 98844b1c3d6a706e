// Masks of a tile's scores [key][query]. Included inside an instruction set's region.

// -inf where a query does not keep a key: beyond the diagonal, or of another document.
template <class Score>
inline void mask(Score* scores, const cpu::AttentionTile& tile, const attention::Sequence& sequence,
                 std::int64_t begin, std::int64_t keys, const std::int32_t* q_documents,
                 const std::int32_t* kv_documents) {
  const attention::Problem& p = tile.args.problem;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int64_t query = tile.first + i, end = sequence.key_end(p, query) - begin;
    for (std::int64_t j = 0; j < keys; ++j)
      if (j >= end || (q_documents != nullptr && q_documents[query] != kv_documents[begin + j]))
        scores[j * cpu::kTileQueries + i] = -std::numeric_limits<float>::infinity();
  }
}
