// Attention over kept blocks: check, plan and launch over the rows of block_attention.h.
//
//   block_attention::Problem problem = ...;             // sizes, blocks and dtype
//   const auto plan = plan_attention(problem, executor);
//   block_attention::Args args = ...;                   // tensors, lists, scale; `problem` is filled in
//   attention(*plan, args, workspace, executor);        // attention_gradient for a backward plan
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sparseloom/block_attention.h"
#include "sparseloom/executor.h"

namespace sparseloom {

/// Chooses a row, or returns the cached plan; `kernel` names a row. The executor decides on device and
/// threads. Throws Error listing every refusal when no row can run, and for sizes that no attention has.
SPARSELOOM_API std::shared_ptr<const AttentionPlan> plan_attention(block_attention::Problem problem,
                                                                   const Executor& executor,
                                                                   const std::string& kernel = {});

/// Writes args.out and args.lse, for a forward plan. workspace: plan.workspace_bytes, aligned to 64 bytes
/// (256 on CUDA). On the CPU the content of lists, starts and documents is checked; on CUDA nothing is read,
/// and the caller answers for it. Throws Error where an operand is null, has no place in the plan, or where
/// the kernel could not be queued.
SPARSELOOM_API void attention(const AttentionPlan& plan, block_attention::Args args,
                              std::span<std::byte> workspace, const Executor& executor);

/// Writes args.dq, args.dk and args.dv, for a backward plan. of_keys has to be what transpose_lists makes of
/// of_queries. Workspace and errors as attention.
SPARSELOOM_API void attention_gradient(const AttentionPlan& plan, block_attention::Args args,
                                       std::span<std::byte> workspace, const Executor& executor);

/// Writes the lists of a map, counts [batches, heads, rows] and indices [batches, heads, rows, columns]: of
/// each row the columns that are not absent, ascending, partial ones with kPartial. Those beyond a count are
/// not written. On CUDA the work is queued, and the map may change between the replays of a graph.
SPARSELOOM_API void lists_of_map(const block_attention::BlockMap& map, std::int32_t* counts,
                                 std::int32_t* indices, const Executor& executor);

/// Writes the lists of keys, counts [sets, key_blocks] and indices [sets, key_blocks, of_queries.lists],
/// that belong to contiguous lists of queries; `sets`: the batches times the heads that have lists of their
/// own. Entries keep their kPartial, and those beyond a list's count are not written. On CUDA the work is
/// queued. Throws Error where memory is missing and, on the CPU, where a list is not valid.
SPARSELOOM_API void transpose_lists(const block_attention::Lists& of_queries, std::int64_t sets,
                                    std::int64_t key_blocks, std::int32_t* counts, std::int32_t* indices,
                                    const Executor& executor);

}  // namespace sparseloom
