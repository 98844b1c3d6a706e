// All public headers in reading order: include this one, or only those that you use.
//
// Threads: const objects may be shared. make_plan locks its cache. Calls with their own outputs and
// workspaces are independent. Every function throws sparseloom::Error on wrong arguments before it writes
// anything.
#pragma once

#include "sparseloom/version.h"
// What every call can throw, and how memory enters.
#include "sparseloom/dtype.h"
#include "sparseloom/error.h"
#include "sparseloom/matrix_view.h"
// Which blocks exist, and how they lie in memory.
#include "sparseloom/layout.h"
#include "sparseloom/pattern.h"
#include "sparseloom/pattern_graph.h"
#include "sparseloom/topology.h"
// Decide once, run many.
#include "sparseloom/activation.h"
#include "sparseloom/bsr_conv.h"
#include "sparseloom/bsr_linear.h"
#include "sparseloom/executor.h"
#include "sparseloom/gates.h"
#include "sparseloom/gradient_norms.h"
#include "sparseloom/ops.h"
#include "sparseloom/packed_index.h"
#include "sparseloom/plan.h"
#include "sparseloom/quantize.h"
#include "sparseloom/recurrent.h"
#include "sparseloom/schedule.h"
#include "sparseloom/unit_norm.h"
// 2:4 weights, which hold half of each group of four.
#include "sparseloom/channel_order.h"
#include "sparseloom/scaled_of.h"
#include "sparseloom/semi24.h"
#include "sparseloom/semi24_linear.h"
#include "sparseloom/semi24_ops.h"
#include "sparseloom/semi24_pruning.h"
// Which single elements of a matrix stay, and n:m weights.
#include "sparseloom/nm.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg.h"
#include "sparseloom/nmg_linear.h"
#include "sparseloom/one_shot.h"
#include "sparseloom/sparsifier_ops.h"
#include "sparseloom/sparsifiers.h"
// Convolutions.
#include "sparseloom/conv_ops.h"
#include "sparseloom/conv_shape.h"
// CSR and bitmap weights, which hold single elements.
#include "sparseloom/bitmap.h"
#include "sparseloom/bitmap_linear.h"
#include "sparseloom/bitmap_ops.h"
#include "sparseloom/csr.h"
#include "sparseloom/csr_linear.h"
#include "sparseloom/csr_ops.h"
// Weights of dense, 2:4 and absent tiles.
#include "sparseloom/tiles.h"
#include "sparseloom/tiles_linear.h"
#include "sparseloom/tiles_ops.h"
// Attention over kept blocks.
#include "sparseloom/attention_ops.h"
#include "sparseloom/block_attention.h"
// Bring a layout or a kernel along.
#include "sparseloom/extension.h"
#include "sparseloom/linear_of.h"
#include "sparseloom/rates.h"
#include "sparseloom/verb.h"
