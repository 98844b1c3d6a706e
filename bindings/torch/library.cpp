// All operator schemas in one place. Every tensor is an ordinary strided tensor, index tensors are int32,
// masks are bool [block rows, block cols].
// `index`: a packed index (include/sparseloom/packed_index.h); pack_index makes one from crow and col, which
// files store.
// Every product has its arguments in one order and omits those that it does not need: its operands with their
// sizes; the epilogue `bias`, `activation`, `residual`; the options `row`, `strict`, `tf32`, `digest`; then
// its family's own. Plans have `device` and the epilogue and options of the call.
// `activation`: a code of sparseloom::Activation, whose torch names activation_names lists. The result is
// act(x W^T + bias) + residual; the residual has its shape and dtype.
// `row`: row_number's result for a kernel's name, or -1 for the plan's own choice. It is not called `kernel`,
// because Inductor has an argument of that name, with which it would collide.
// `strict`: forbids the dense and reference kernels.
// `tf32`: whether float32 on CUDA may round its operands to TF32.
// `digest`: the facts of the pattern for plans, from index_digest; -1 if unknown.
// `device` of a plan: a CUDA ordinal, or -1 for the CPU.
// Fake kernels and the autograd formulas are in python/sparseloom: ops/fakes.py, ops/autograd.py.
#include "registration.h"

SPARSELOOM_TORCH_LIBRARY(m) {
  m.def(
      "bsr_linear(Tensor x, Tensor values, Tensor index, SymInt out_features, Tensor? bias=None, "
      "int activation=0, Tensor? residual=None, int row=-1, bool strict=False, bool tf32=False, "
      "int digest=-1) -> Tensor");
  // act(x W^T + bias) * (x V^T + factor_bias), a gated linear unit, on CUDA only. values and index are those
  // of W, factor_values and factor_index those of V.
  m.def(
      "bsr_linear_glu(Tensor x, Tensor values, Tensor index, Tensor factor_values, Tensor factor_index, "
      "SymInt out_features, Tensor? bias=None, Tensor? factor_bias=None, int activation=0, int row=-1, "
      "bool strict=False, int digest=-1) -> Tensor");
  m.def(
      "bsr_linear_dx(Tensor dy, Tensor values, Tensor index, SymInt in_features, int row=-1, "
      "bool strict=False, bool tf32=False, int digest=-1) -> Tensor");
  m.def(
      "bsr_linear_dw(Tensor dy, Tensor x, Tensor index, SymInt blocks, int block_rows, int block_cols, "
      "int row=-1, bool strict=False, bool tf32=False, int digest=-1) -> Tensor");
  // dvalues += dW. dvalues are float32 for operands of any dtype; the sums are not rounded before they are
  // added.
  m.def(
      "bsr_linear_dw_add(Tensor(a!) dvalues, Tensor dy, Tensor x, Tensor index, int row=-1, "
      "bool strict=False, bool tf32=False, int digest=-1) -> ()");

  // The two calls of a training step.
  // bsr_linear_train: z = x W^T + bias, y = act(z) + residual, with an activation.
  // bsr_linear_backward: returns dx if values are given, dvalues if x is, dbias if need_bias is set; the
  // others are empty. If main_grad is given, dW is added to it as by bsr_linear_dw_add, and dvalues is empty.
  // `saved`: y (or z) for relu, z for the other activations, none without activation.
  m.def(
      "bsr_linear_train(Tensor x, Tensor values, Tensor index, SymInt out_features, Tensor? bias, "
      "int activation, Tensor? residual=None, int row=-1, bool strict=False, bool tf32=False, "
      "int digest=-1) -> (Tensor y, Tensor z)");
  m.def(
      "bsr_linear_backward(Tensor dy, Tensor? saved, Tensor? x, Tensor? values, Tensor index, "
      "SymInt in_features, SymInt blocks, int block_rows, int block_cols, Tensor(a!)? main_grad, "
      "bool need_bias, int activation=0, bool strict=False, bool tf32=False, int digest=-1) -> "
      "(Tensor dx, Tensor dvalues, Tensor dbias)");

  // x and values are int8 or float8_e4m3fn. Scales are float32 with one element, or one per token (x_scale)
  // or output feature (w_scale). The bias is of out_dtype. On CPUs x may be floating point beside int8
  // values: the call rounds it as quantize_rows does, by the one factor x_scale or, without it, one for each
  // token.
  m.def(
      "bsr_scaled_linear(Tensor x, Tensor values, Tensor index, Tensor? x_scale, Tensor w_scale, "
      "SymInt out_features, ScalarType out_dtype, Tensor? bias=None, int activation=0, int row=-1, "
      "bool strict=False, int digest=-1, bool use_fast_accum=False) -> Tensor");

  // 2:4 weights (include/sparseloom/semi24.h): values [rows, 2 ceil(cols / 4)] and uint8 positions
  // [rows, ceil(ceil(cols / 4) / 2)]. `method`: "magnitude", "transposable_greedy" or "transposable_exact".
  // `metadata`: semi24_order's result for the positions, on CUDA; without it every call there computes it
  // again.
  m.def(
      "semi24_linear(Tensor x, Tensor values, Tensor positions, int cols, Tensor? metadata=None, "
      "Tensor? bias=None, int activation=0, Tensor? residual=None, int row=-1, bool strict=False) -> Tensor");
  // 8-bit weights, with the scales of bsr_scaled_linear.
  m.def(
      "semi24_scaled_linear(Tensor x, Tensor values, Tensor positions, int cols, Tensor? metadata, "
      "Tensor x_scale, Tensor w_scale, ScalarType out_dtype, Tensor? bias=None, int activation=0, int "
      "row=-1, "
      "bool strict=False, bool use_fast_accum=False) -> Tensor");
  m.def("semi24_order(Tensor positions, int cols, bool eight_bit=False) -> Tensor");
  m.def(
      "semi24_dx(Tensor dy, Tensor values, Tensor positions, int cols, int row=-1, bool strict=False) -> "
      "Tensor");
  m.def("semi24_pack(Tensor dense) -> (Tensor values, Tensor positions)");
  m.def("semi24_unpack(Tensor values, Tensor positions, int cols) -> Tensor");
  // Throws unless positions and values are a valid weight of `cols` columns.
  m.def("semi24_validate(Tensor values, Tensor positions, int cols) -> ()");
  m.def("semi24_prune(Tensor w, str method) -> Tensor");
  // semi24_pack of the elements that the method keeps, a bit per element that says whether it is kept, and
  // the values and positions of W^T, which are empty unless requested.
  m.def(
      "semi24_compress(Tensor w, str method, bool transposed=False) -> (Tensor values, Tensor positions, "
      "Tensor mask, Tensor transposed_values, Tensor transposed_positions)");
  // An order of w's columns, int64 [cols], of which 2:4 keeps more; 0 rounds: no limit.
  m.def("semi24_channel_order(Tensor w, int rounds=0, Tensor(a!)? watch=None) -> Tensor");

  // Sparsifiers of single elements (include/sparseloom/sparsifiers.h) over a matrix [rows, cols].
  // `selection`: the name of one there; `amount`: its fraction or threshold; `a`, `b`: the sides of a block,
  // or n and m.
  m.def("sparsifier_mask(Tensor dense, str selection, float amount, int a, int b, int seed) -> Tensor");
  // The matrix with zeros at the elements that do not stay.
  m.def("sparsifier_values(Tensor dense, str selection, float amount, int a, int b, int seed) -> Tensor");
  // Elements and bytes that sparsifiers have read in this process.
  m.def("sparsifier_reads() -> int[]");

  // The inner loops of one-shot pruning (include/sparseloom/one_shot.h). weights [rows, cols] and factor
  // [cols, cols] are float32 with contiguous rows, mask bool and errors float32 [rows, cols]. grid: 1 int8, 2
  // e4m3, with tops float32 and pins int32 [rows].
  m.def(
      "column_sweep(Tensor(a!) weights, Tensor factor, Tensor(b!) mask, Tensor(c!) errors, int n=0, int m=0, "
      "int grid=0, Tensor? tops=None, Tensor? pins=None) -> ()");
  // Improves values and mask, on the CPU; gram is float32 [cols, cols]. Returns the number of swaps.
  m.def(
      "swap_pairs(Tensor weights, Tensor(a!) values, Tensor gram, Tensor(b!) mask, int m, int most) -> int");

  // CSR weights (include/sparseloom/csr.h): values [stored], crow [rows + 1] and col [stored]. `by_column`:
  // ccol [cols + 1], row and slot [stored], one after the other, which dX on a CUDA device needs.
  m.def(
      "csr_linear(Tensor x, Tensor values, Tensor crow, Tensor col, Tensor? bias=None, int activation=0, "
      "Tensor? residual=None, int row=-1, bool strict=False) -> Tensor");
  m.def(
      "csr_dx(Tensor dy, Tensor values, Tensor crow, Tensor col, Tensor? by_column, SymInt cols, int row=-1, "
      "bool strict=False) -> Tensor");
  m.def("csr_dw(Tensor dy, Tensor x, Tensor crow, Tensor col, int row=-1, bool strict=False) -> Tensor");

  // Bitmap weights (include/sparseloom/bitmap.h): values [stored], uint8 bits [rows, ceil(cols / 8)] and
  // int32 crow [rows + 1], on the CPU.
  m.def(
      "bitmap_linear(Tensor x, Tensor values, Tensor bits, Tensor crow, Tensor? bias=None, int activation=0, "
      "Tensor? residual=None, int row=-1, bool strict=False) -> Tensor");
  m.def(
      "bitmap_dx(Tensor dy, Tensor values, Tensor bits, Tensor crow, SymInt cols, int row=-1, bool "
      "strict=False) "
      "-> Tensor");
  m.def(
      "bitmap_dw(Tensor dy, Tensor x, Tensor bits, Tensor crow, SymInt stored, int row=-1, bool "
      "strict=False) "
      "-> Tensor");
  m.def("bitmap_pack(Tensor dense, Tensor bits, Tensor crow, SymInt stored) -> Tensor");
  m.def("bitmap_unpack(Tensor values, Tensor bits, Tensor crow, SymInt cols) -> Tensor");
  // int8 or float8 values, with the scales of bsr_scaled_linear.
  m.def(
      "bitmap_scaled_linear(Tensor x, Tensor values, Tensor bits, Tensor crow, Tensor? x_scale, Tensor "
      "w_scale, "
      "ScalarType out_dtype, Tensor? bias=None, int activation=0, int row=-1, bool strict=False) -> Tensor");

  // Weights of dense, 2:4 and absent tiles (include/sparseloom/tiles.h): values [stored], table int32
  // [groups, units, 4] as tiles_table makes it of kinds uint8 [tile rows, tile columns], positions uint8 [2:4
  // tiles * side, side / 8]. `metadata`: tiles_order's result for the positions, on CUDA.
  m.def(
      "tiles_linear(Tensor x, Tensor values, Tensor table, Tensor positions, Tensor? metadata, SymInt rows, "
      "int "
      "side, Tensor? bias=None, int activation=0, Tensor? residual=None, int row=-1, bool strict=False) -> "
      "Tensor");
  m.def(
      "tiles_dx(Tensor dy, Tensor values, Tensor table, Tensor positions, SymInt cols, int side, int row=-1, "
      "bool strict=False) -> Tensor");
  m.def("tiles_table(Tensor kinds, int rows, int cols, int side) -> Tensor");
  m.def("tiles_order(Tensor positions, int side) -> Tensor");

  // Block-sparse convolutions (include/sparseloom/bsr_conv.h): x [images, *space, channels], values [blocks,
  // taps, bm, bn], and a number of kernel, stride, padding and dilation per axis of space. depth, height and
  // width: the extents of x; those of missing axes are not read.
  m.def(
      "bsr_conv(Tensor x, Tensor values, Tensor index, SymInt out_channels, int[] kernel, int[] stride, "
      "int[] padding, int[] dilation, Tensor? bias=None, int activation=0, Tensor? residual=None, int "
      "row=-1, "
      "bool strict=False, bool tf32=False, int digest=-1) -> Tensor");
  // dX, and forward of a transposed convolution, which has an epilogue.
  m.def(
      "bsr_conv_dx(Tensor dy, Tensor values, Tensor index, SymInt in_channels, SymInt depth, SymInt height, "
      "SymInt width, int[] kernel, int[] stride, int[] padding, int[] dilation, Tensor? bias=None, "
      "int activation=0, Tensor? residual=None, int row=-1, bool strict=False, bool tf32=False, int "
      "digest=-1) "
      "-> Tensor");
  m.def(
      "bsr_conv_dw(Tensor dy, Tensor x, Tensor index, SymInt blocks, int block_rows, int block_cols, "
      "int[] kernel, int[] stride, int[] padding, int[] dilation, int row=-1, bool strict=False, bool "
      "tf32=False, int digest=-1) -> Tensor");
  // Conversion of their weight between blocks and dense memory with channels last: weight [rows, taps, cols].
  m.def("conv_pack(Tensor weight, Tensor index, SymInt blocks, int bm, int bn) -> Tensor");
  m.def("conv_unpack(Tensor values, Tensor index, SymInt rows, SymInt cols) -> Tensor");

  // Attention over kept blocks (include/sparseloom/block_attention.h). q [batch, heads, tokens, head size],
  // and k and v with as many heads or a divisor of them; or, with starts (int32 [batch + 1]) and the longest
  // sequences max_q and max_kv, [all tokens, heads, head size]. counts [batch or 1, heads or 1, blocks of q]
  // and indices [.., capacity] are the lists of queries, key_counts and key_indices those of keys, which
  // block_attention_transpose makes; forward passes them to its gradient. documents: int32 [batch, tokens] or
  // [all tokens]. out and lse: [batch, heads, tokens, head size] and float32 [batch, heads, tokens]; with
  // starts [all tokens, heads, head size] and [heads, all tokens].
  m.def(
      "block_attention(Tensor q, Tensor k, Tensor v, Tensor counts, Tensor indices, int q_block, int "
      "kv_block, "
      "bool causal, float scale, Tensor? key_counts=None, Tensor? key_indices=None, Tensor? q_starts=None, "
      "Tensor? kv_starts=None, SymInt max_q=0, SymInt max_kv=0, Tensor? q_documents=None, "
      "Tensor? kv_documents=None, int row=-1, bool strict=False) -> (Tensor, Tensor)");
  // dq, dk and dv of the gradients of out and, if it is given, of lse.
  m.def(
      "block_attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, "
      "Tensor lse, Tensor counts, Tensor indices, Tensor key_counts, Tensor key_indices, int q_block, "
      "int kv_block, bool causal, float scale, Tensor? q_starts=None, Tensor? kv_starts=None, "
      "SymInt max_q=0, SymInt max_kv=0, Tensor? q_documents=None, Tensor? kv_documents=None, "
      "int row=-1, bool strict=False) -> (Tensor, Tensor, Tensor)");
  // counts [batch, heads, rows] and indices [batch, heads, rows, columns] of a map [batch, heads, rows,
  // columns], bool or uint8: 0 absent, 1 whole, 2 partial.
  m.def("block_attention_lists(Tensor map) -> (Tensor, Tensor)");
  // counts [.., lists] and indices [.., lists, as many as lists of `counts`] of the other side's blocks.
  m.def("block_attention_transpose(Tensor counts, Tensor indices, SymInt lists) -> (Tensor, Tensor)");

  // n:m weights (include/sparseloom/nm.h): uint8 positions and values [rows, groups, n].
  m.def("nm_positions(Tensor mask, int n, int m) -> Tensor");
  m.def("nm_pack(Tensor dense, Tensor positions, int m) -> Tensor");
  m.def("nm_unpack(Tensor values, Tensor positions, int cols, int m) -> Tensor");
  m.def("nm_validate(Tensor positions, int cols, int m) -> ()");
  // n:m:g weights (include/sparseloom/nmg.h): int16 order [chunks, strips, chunk rows], values with a last
  // dimension n more.
  m.def("nmg_places(int n, int m) -> Tensor");
  m.def("nmg_order(Tensor dense, int n, int m, int g) -> Tensor");
  m.def("nmg_pack(Tensor dense, Tensor order, int n, int m, int g) -> Tensor");
  m.def("nmg_unpack(Tensor values, Tensor order, int rows, int cols, int n, int m, int g) -> Tensor");
  m.def("nmg_validate(Tensor order, int rows, int cols, int n, int m, int g) -> ()");
  m.def(
      "nmg_linear(Tensor x, Tensor values, Tensor order, int rows, int cols, int n, int m, int g, "
      "Tensor? bias=None, int activation=0, Tensor? residual=None, int row=-1, bool strict=False) -> Tensor");
  m.def(
      "nmg_dx(Tensor dy, Tensor values, Tensor order, int rows, int cols, int n, int m, int g, int row=-1, "
      "bool strict=False) -> Tensor");
  m.def(
      "nmg_dw(Tensor dy, Tensor x, Tensor order, int rows, int cols, int n, int m, int g, int row=-1, "
      "bool strict=False) -> Tensor");

  m.def("pack(Tensor dense, Tensor crow, Tensor col, int block_rows, int block_cols) -> Tensor");
  m.def("unpack(Tensor values, Tensor crow, Tensor col, SymInt rows, SymInt cols) -> Tensor");
  m.def("block_scores(Tensor dense, int block_rows, int block_cols, str norm) -> Tensor");
  // The norm of each block of dW = grad_output^T input: float32 [block rows, block columns] on input's
  // device.
  m.def(
      "block_gradient_norms(Tensor grad_output, Tensor input, int block_rows, int block_cols, str norm) -> "
      "Tensor");
  // Returns the pattern's content hash.
  m.def("validate_index(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> int");
  m.def("index_digest(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> int");
  // Tells products which index is at the address of `there` on its CUDA device; `index` is on the CPU.
  m.def(
      "remember_index(Tensor index, Tensor there, int blocks, int rows, int cols, int block_rows, "
      "int block_cols) -> ()");
  // Marks a packed index on a CUDA device as valid, until something writes to it: this library need not read
  // back an index that it has just written.
  m.def("trust_index(Tensor index, int blocks, int rows, int cols, int block_rows, int block_cols) -> ()");
  m.def("pack_index(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> Tensor");
  m.def(
      "mask_to_index(Tensor mask, int rows, int cols, int block_rows, int block_cols) -> (Tensor crow, "
      "Tensor col)");
  m.def(
      "index_to_mask(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> Tensor");

  m.def("set_topology(Tensor mask, Tensor(a!) index, Tensor(b!) moved, Tensor(c!) requested) -> ()");
  m.def("move_blocks(Tensor(a!) values, Tensor moved) -> ()");
  // Topologies of any number of blocks up to a capacity (include/sparseloom/topology.h).
  m.def(
      "update_topology(Tensor mask, Tensor(a!) index, Tensor(b!) moved, Tensor(c!) requested, "
      "Tensor(d!) flags) -> ()");
  m.def(
      "choose_blocks(Tensor index, Tensor scores, Tensor? growth, Tensor budget, Tensor(a!) mask, "
      "Tensor(b!) flags) -> ()");

  // The blocks whose gate is not zero, times their gates (include/sparseloom/gates.h): an index with room for
  // all blocks, with a digest below -1, its values, and for each block its place there or -1.
  m.def(
      "gate_blocks(Tensor values, Tensor index, Tensor gates, int rows, int cols) -> (Tensor index, "
      "Tensor values, Tensor place)");
  // From a gradient of those values: the gradients of the weight's values and of the gates, empty unless
  // needed.
  m.def(
      "gate_gradients(Tensor gradient, Tensor values, Tensor gates, Tensor place, bool need_values, "
      "bool need_gates) -> (Tensor dvalues, Tensor dgates)");

  // The pointwise half of a recurrent step (include/sparseloom/recurrent.h). z, gates: [sequences, 4 units],
  // with runs of `side` units per gate, or all units of a gate for 0; x, g, dx, dg of a GRU: three thirds;
  // the others [sequences, units]. c_before, c and dc are float32, or float64 with float64. dy, dh, more:
  // summands of the gradient of h.
  m.def(
      "lstm_cell_pointwise(Tensor z, Tensor c_before, Tensor(a!)? gates, Tensor(b!) c, Tensor(c!) h, int "
      "side=0) -> ()");
  m.def(
      "lstm_cell_pointwise_backward(Tensor gates, Tensor c_before, Tensor c, Tensor? dy, Tensor? dh, "
      "Tensor(a!) dc, Tensor(b!) dz, int side=0) -> ()");
  m.def("gru_cell_pointwise(Tensor x, Tensor g, Tensor h_before, Tensor(a!)? gates, Tensor(b!) h) -> ()");
  m.def(
      "gru_cell_pointwise_backward(Tensor gates, Tensor h_before, Tensor? dy, Tensor? dh, Tensor? more, "
      "Tensor(a!) dx, Tensor(b!) dg, Tensor(c!) dh_before) -> ()");
  // All steps of a sequence on the CPU, without a projection; in reverse, of sequences of one length.
  // `sizes`: the sequences of each step, in the order of the data. gx: the inputs' product of all steps. h
  // [rows + batch, units]: the initial states in front of the others, or behind them in reverse. c: the same,
  // or [batch, units], which each step overwrites, if no gradient is needed; none for a GRU. values and
  // index: the recurrent weight.
  m.def(
      "recurrent_steps(bool lstm, Tensor gx, Tensor(a!) h, Tensor(b!)? c, Tensor(c!)? gates, Tensor values, "
      "Tensor index, Tensor? bias, int[] sizes, bool reverse, bool strict, int digest, int side) -> ()");
  // Its gradients: of gx in dgx, of the initial states in dh and dc, which hold those of the last ones. Of a
  // GRU, dg is that of the product, and more, zero at first, what is to be added to dh.
  m.def(
      "recurrent_steps_backward(Tensor? dy, Tensor(a!) dh, Tensor(b!)? dc, Tensor h, Tensor? c, Tensor "
      "gates, "
      "Tensor(c!) dgx, Tensor(d!)? dg, Tensor(e!)? more, Tensor values, Tensor index, int[] sizes, "
      "bool reverse, bool strict, int digest, int side) -> ()");
  // Rows of floating point as int8 and their factors [..., 1], of which there are none where one is given
  // (include/sparseloom/quantize.h); on the CPU.
  m.def("quantize_rows(Tensor x, Tensor? scale) -> (Tensor values, Tensor scale)");
  // A LayerNorm between the steps of a cell, with the input that scales some units or is added to them, and
  // relu (include/sparseloom/unit_norm.h). weight, bias [groups, units]; z, y [rows, groups x units]; extra
  // [rows, ceil(units / stride)]; statistics, means [rows, groups, 2] and sums [8, 2, groups, units], to
  // which the gradients of weight and bias are added, are float32, or float64 with float64.
  m.def(
      "unit_norm(Tensor z, Tensor weight, Tensor bias, Tensor? extra, int stride, int group, bool multiply, "
      "float scale, bool relu, int side, float eps, Tensor(a!) y, Tensor(b!)? statistics) -> ()");
  m.def(
      "unit_norm_backward(Tensor dy, Tensor z, Tensor weight, Tensor bias, Tensor? extra, int stride, int "
      "group, bool multiply, float scale, bool relu, int side, Tensor statistics, Tensor(a!) dz, Tensor(b!)? "
      "dextra, "
      "Tensor(c!) means, Tensor(d!)? sums) -> ()");

  m.def(
      "generate_pattern(str generator, int rows, int cols, int block_rows, int block_cols, float[] "
      "arguments, "
      "int seed) -> Tensor");
  m.def(
      "pattern_top_k(Tensor scores, int rows, int cols, int block_rows, int block_cols, int count) -> "
      "Tensor");
  m.def(
      "pattern_top_k_by_row(Tensor scores, int rows, int cols, int block_rows, int block_cols, int count) -> "
      "Tensor");
  // int64 [parts + 1]: where the lines of block rows with these numbers of stored blocks are cut between
  // devices.
  m.def("cut_lines(int[] stored, int parts) -> Tensor");
  m.def(
      "pattern_extra_edges(Tensor mask, int rows, int cols, int block_rows, int block_cols, int edges, "
      "int seed) -> Tensor");
  // sizes: rows, cols, block_rows and block_cols of each pattern. float64 [steps]; steps 0 as defined in
  // pattern_graph.h.
  m.def("pattern_mixing(Tensor[] masks, int[] sizes, int steps) -> Tensor");
  // int64 [block rows]; -1 for block rows that no path reaches.
  m.def(
      "pattern_distances(Tensor mask, int rows, int cols, int block_rows, int block_cols, int start) -> "
      "Tensor");
  m.def("pattern_small_world(Tensor mask, int rows, int cols, int block_rows, int block_cols) -> str");
  m.def("pattern_stats(Tensor mask, int rows, int cols, int block_rows, int block_cols) -> str");
  m.def(
      "pattern_ascii(Tensor mask, int rows, int cols, int block_rows, int block_cols, int max_side) -> str");
  m.def("pattern_svg(Tensor mask, int rows, int cols, int block_rows, int block_cols, int pixels) -> str");

  // The kernel that a product would run, and why, as JSON. `family`: bsr_linear (with `index`),
  // semi24_linear, csr_linear, bitmap_linear, nmg_linear, tiles_linear, bsr_conv or block_attention; `sizes`:
  // its weight's, in the order that an Error names; `dtype`: "f32", "bf16" and so on, or "int8 to bf16"; `m`:
  // tokens, or images; `use_fast_accum`: for 8-bit products; `accumulate`: for a dW that is added; `aligned`:
  // whether operands on CUDA and their rows start at multiples of 16 bytes.
  m.def(
      "plan(str family, int[] sizes, str direction, str dtype, int m, int device=-1, bool bias=False, "
      "int activation=0, bool residual=False, int row=-1, bool strict=False, bool tf32=False, int digest=-1, "
      "bool use_fast_accum=False, bool accumulate=False, bool aligned=True, Tensor? index=None) -> str");
  // The time that a plan predicts for bsr_linear_glu over that of its two products apart, without the pass
  // that multiplies them; sizes: rows, cols, block_rows, block_cols, blocks of W, blocks of V. Infinite where
  // no kernel computes it.
  m.def("glu_ratio(int[] sizes, str dtype, int m, int device, bool bias, int activation) -> float");
  // Throws for a name that no row has.
  m.def("row_number(str name) -> int");
  m.def("info() -> str");
  // Python asks for these two at import, so they are not in info, which may measure rates. Names: torch's of
  // the activations, in the order of their codes, separated by spaces.
  m.def("version() -> str");
  m.def("activation_names() -> str");
  // JSON: the CPU kernels that ran and how often, by their own counts.
  m.def("kernel_runs() -> str");
  // Returns the flops that torch's threads did in registers only. `rate` is one of info's "rates".
  m.def("spin_registers(str rate, int rounds) -> int");
  // The threads of calls on the CPU, and the most they may be; 0: torch's number.
  m.def("num_threads() -> int");
  m.def("set_num_threads(int most) -> ()");
}
