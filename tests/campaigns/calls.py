"""A valid call of every operator of torch.ops.sparseloom, which campaigns/arguments.py makes hostile."""

from __future__ import annotations

from typing import Any

import torch

from sparseloom import ops, pattern
from sparseloom.ops import nm as nm_ops
from sparseloom.ops import semi24

ROWS, COLS, M, BLOCK = 40, 48, 5, (8, 16)


def _index() -> ops.Index:
    made = pattern.random(ROWS, COLS, BLOCK, 0.6, 1)
    return ops.make_index(*made.index(), ROWS, COLS, BLOCK)


def _bits(mask: torch.Tensor) -> torch.Tensor:
    """Returns a mask [rows, cols] as uint8 [rows, cols / 8], the first column in the lowest bit."""
    return (mask.view(len(mask), -1, 8).to(torch.uint8) << torch.arange(8)).sum(-1).to(torch.uint8)


def calls() -> dict[str, list[Any]]:
    """Returns the arguments of one valid call of each operator, in the order of its schema."""
    index = _index()
    n = index.blocks
    values, x, dy = torch.randn(n, *BLOCK), torch.randn(M, COLS), torch.randn(M, ROWS)
    packed, crow, col = index.packed, index.crow.contiguous(), index.col.contiguous()
    grid = torch.rand(-(-ROWS // 8), -(-COLS // 16)) < 0.5
    sizes = [ROWS, COLS, *BLOCK]
    bias, residual = torch.randn(ROWS), torch.randn(M, ROWS)
    rest: list[Any] = [-1, False, False, index.digest]
    int8 = [t.mul(20).to(torch.int8) for t in (x, values)]
    one, per_row = torch.ones(1), torch.ones(ROWS)
    dense = torch.randn(ROWS, COLS)
    two_four = semi24.pack(dense * semi24.mask(dense, "magnitude"))
    small = [each.to(torch.int8) for each in (x, two_four[0])]
    mask = torch.rand(ROWS, COLS) < 0.5
    elements = dense[mask]
    starts = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
    at = mask.nonzero()[:, 1].int().contiguous()
    window: list[Any] = [[3, 3], [1, 1], [1, 1], [1, 1]]
    taps, image = torch.randn(n, 9, *BLOCK), torch.randn(1, 6, 5, COLS)
    out_image = torch.randn(1, 6, 5, ROWS)
    order = nm_ops.order(dense, 2, 4, 2)
    grouped = nm_ops.nmg_pack(dense, order, 2, 4, 2)
    positions = nm_ops.largest_positions(dense, 2, 4)
    q = torch.randn(1, 2, 70, 16)
    counts, lists = ops.call("block_attention_lists", torch.ones(1, 1, 2, 2, dtype=torch.bool))
    key_counts, key_lists = ops.call("block_attention_transpose", counts, lists, 2)
    attended = [q, q.clone(), q.clone(), counts, lists, 64, 64, False, 0.25]
    out, lse = ops.call("block_attention", *attended)
    tail = [64, 64, False, 0.25]
    gates = torch.rand(n)
    _opened, scaled, place = ops.call("gate_blocks", values, packed, gates, ROWS, COLS)
    moved, requested, flags = torch.zeros(n, dtype=torch.int32), *torch.zeros(2, 1, dtype=torch.int32)
    stored = torch.zeros_like(grid).flatten()
    stored[torch.randperm(grid.numel())[:n]] = True
    z, c = torch.randn(3, 4 * 8), torch.randn(3, 8)
    gru, h = torch.randn(3, 3 * 8), torch.randn(3, 8)
    cell = pattern.random(4 * 16, 16, 16, 1.0, 1)
    of_cell = ops.make_index(*cell.index(), 4 * 16, 16, (16, 16))
    cell_values, states = torch.randn(of_cell.blocks, 16, 16), torch.randn(8, 16)
    cell_rest: list[Any] = [of_cell.packed, None, [3, 2], False, False, of_cell.digest, 0]
    grads = [torch.randn(3, 16), torch.randn(3, 16)]
    bits = _bits(mask)
    tile_kinds = torch.ones(1, 1, dtype=torch.uint8)  # one tile of 2:4
    table, tile_values = ops.call("tiles_table", tile_kinds, ROWS, COLS, 64), torch.randn(64 * 32)
    places = torch.full((64, 8), 0b0100_0100, dtype=torch.uint8)
    norm, extra = torch.randn(3, 16), torch.randn(3, 4)
    unit = [torch.randn(2, 8), torch.randn(2, 8)]
    statistics = torch.empty(3, 2, 2)
    normed = [norm, *unit, None, 1, 0, False, 1.0, True, 0]
    factor = torch.randn(COLS, COLS).tril() + 9 * torch.eye(COLS)
    cells = torch.rand(5, 5) < 0.5
    square = [40, 40, 8, 8]
    del extra
    return {
        "bsr_linear": [x, values, packed, ROWS, bias, 1, residual, *rest],
        "bsr_linear_dx": [dy, values, packed, COLS, *rest],
        "bsr_linear_dw": [dy, x, packed, n, *BLOCK, *rest],
        "bsr_linear_dw_add": [values.clone(), dy, x, packed, *rest],
        "bsr_linear_train": [x, values, packed, ROWS, bias, 1, None, *rest],
        "bsr_linear_backward": [
            dy,
            residual,
            x,
            values,
            packed,
            COLS,
            n,
            *BLOCK,
            None,
            True,
            1,
            False,
            False,
            index.digest,
        ],
        "bsr_scaled_linear": [
            *int8,
            packed,
            one,
            per_row,
            ROWS,
            torch.float32,
            bias,
            0,
            ops.kernel_number("reference"),
        ],
        "semi24_linear": [x, *two_four, COLS, None, bias, 1, residual],
        "semi24_scaled_linear": [
            small[0],
            small[1],
            two_four[1],
            COLS,
            None,
            one,
            per_row,
            torch.float32,
            bias,
        ],
        "semi24_dx": [dy, *two_four, COLS],
        "semi24_pack": [dense * semi24.mask(dense, "magnitude")],
        "semi24_unpack": [*two_four, COLS],
        "semi24_validate": [*two_four, COLS],
        "semi24_prune": [dense, "transposable_exact"],
        "semi24_compress": [dense, "magnitude", False],
        "semi24_channel_order": [dense, 2],
        "sparsifier_mask": [dense, "per_block_nm", 0.0, 2, 4, 0],
        "sparsifier_values": [dense, "scalar_fraction", 0.5, 2, 4, 0],
        "column_sweep": [dense.clone(), factor, mask.clone(), torch.zeros(ROWS, COLS), 2, 4, 0],
        "swap_pairs": [dense, dense * mask, factor @ factor.T, mask.clone(), 4, 3],
        "csr_linear": [x, elements, starts, at, bias, 1, residual],
        "csr_dx": [dy, elements, starts, at, None, COLS],
        "csr_dw": [dy, x, starts, at],
        "bsr_conv": [image, taps, packed, ROWS, *window, bias, 1, None, *rest],
        "bsr_conv_dx": [out_image, taps, packed, COLS, 1, 6, 5, *window, None, 0, None, *rest],
        "bsr_conv_dw": [out_image, image, packed, n, *BLOCK, *window, *rest],
        "conv_pack": [torch.randn(ROWS, 9, COLS), packed, n, *BLOCK],
        "conv_unpack": [taps, packed, ROWS, COLS],
        "block_attention": attended,
        "block_attention_backward": [
            out,
            None,
            q,
            q,
            q,
            out,
            lse,
            counts,
            lists,
            key_counts,
            key_lists,
            *tail,
        ],
        "block_attention_lists": [torch.ones(1, 1, 2, 2, dtype=torch.bool)],
        "block_attention_transpose": [counts, lists, 2],
        "nm_positions": [
            positions.new_ones(ROWS, 12, 4).flatten(1).bool() & semi24.mask(dense, "magnitude"),
            2,
            4,
        ],
        "nm_pack": [dense, positions, 4],
        "nm_unpack": [nm_ops.nm_pack(dense, positions, 4), positions, COLS, 4],
        "nm_validate": [positions, COLS, 4],
        "nmg_places": [2, 4],
        "nmg_order": [dense, 2, 4, 2],
        "nmg_pack": [dense, order, 2, 4, 2],
        "nmg_unpack": [grouped, order, ROWS, COLS, 2, 4, 2],
        "nmg_validate": [order, ROWS, COLS, 2, 4, 2],
        "nmg_linear": [x, grouped, order, ROWS, COLS, 2, 4, 2, bias],
        "nmg_dx": [dy, grouped, order, ROWS, COLS, 2, 4, 2],
        "nmg_dw": [dy, x, order, ROWS, COLS, 2, 4, 2],
        "pack": [dense, crow, col, *BLOCK],
        "unpack": [values, crow, col, ROWS, COLS],
        "block_scores": [dense, *BLOCK, "l2"],
        "block_gradient_norms": [dy, x, *BLOCK, "l2"],
        "validate_index": [crow, col, *sizes],
        "index_digest": [crow, col, *sizes],
        "pack_index": [crow, col, *sizes],
        "mask_to_index": [grid, *sizes],
        "index_to_mask": [crow, col, *sizes],
        "set_topology": [stored.view(grid.shape), packed.clone(), moved, requested],
        "move_blocks": [values.clone(), torch.arange(n, dtype=torch.int32)],
        "update_topology": [grid, packed.clone(), moved.clone(), requested.clone(), flags],
        "choose_blocks": [
            packed,
            torch.rand(n),
            torch.rand(grid.shape),
            torch.tensor([8.0, 0.2]).double(),
            grid.clone(),
            flags.clone(),
        ],
        "gate_blocks": [values, packed, gates, ROWS, COLS],
        "gate_gradients": [scaled, values, gates, place, True, True],
        "lstm_cell_pointwise": [z, c, torch.empty_like(z), torch.empty_like(c), torch.empty_like(c), 0],
        "lstm_cell_pointwise_backward": [
            z.sigmoid(),
            c,
            c.clone(),
            c.clone(),
            None,
            c.clone(),
            torch.empty_like(z),
            0,
        ],
        "gru_cell_pointwise": [gru, gru.clone(), h, torch.empty(3, 4 * 8), torch.empty_like(h)],
        "gru_cell_pointwise_backward": [
            torch.rand(3, 4 * 8),
            h,
            h.clone(),
            None,
            None,
            gru.clone(),
            gru.clone(),
            h.clone(),
        ],
        "recurrent_steps": [
            True,
            torch.randn(5, 4 * 16),
            states,
            states.clone(),
            torch.empty(5, 4 * 16),
            cell_values,
            *cell_rest,
        ],
        "recurrent_steps_backward": [
            torch.randn(5, 16),
            *grads,
            states,
            states.clone(),
            torch.rand(5, 4 * 16),
            torch.empty(5, 4 * 16),
            None,
            None,
            cell_values,
            of_cell.packed,
            *cell_rest[2:],
        ],
        "tiles_linear": [x, tile_values, table, places, None, ROWS, 64, bias, 1, residual],
        "tiles_dx": [dy, tile_values, table, places, COLS, 64],
        "tiles_table": [tile_kinds, ROWS, COLS, 64],
        "bitmap_linear": [x, elements, bits, starts, bias, 1, residual],
        "bitmap_dx": [dy, elements, bits, starts, COLS],
        "bitmap_dw": [dy, x, bits, starts, elements.numel()],
        "bitmap_pack": [dense, bits, starts, elements.numel()],
        "bitmap_unpack": [elements, bits, starts, COLS],
        "bitmap_scaled_linear": [
            small[0],
            elements.mul(20).to(torch.int8),
            bits,
            starts,
            one,
            per_row,
            torch.float32,
            bias,
        ],
        "quantize_rows": [x, None],
        "unit_norm": [*normed, 1e-5, torch.empty_like(norm), statistics],
        "unit_norm_backward": [
            norm.clone(),
            *normed,
            statistics.clone(),
            torch.empty_like(norm),
            None,
            torch.empty(3, 2, 2),
            torch.empty(8, 2, 2, 8),
        ],
        "generate_pattern": ["random", *sizes, [0.5], 1],
        "pattern_top_k": [torch.rand(grid.shape), *sizes, 5],
        "pattern_top_k_by_row": [torch.rand(grid.shape), *sizes, 2],
        "cut_lines": [[3, 1, 4, 1, 5], 2],
        "pattern_extra_edges": [grid, *sizes, 3, 1],
        "pattern_mixing": [[cells], square, 3],
        "pattern_distances": [cells, *square, 0],
        "pattern_small_world": [cells, *square],
        "pattern_stats": [grid, *sizes],
        "pattern_ascii": [grid, *sizes, 20],
        "pattern_svg": [grid, *sizes, 100],
        "plan": [
            "bsr_linear",
            [*sizes, n],
            "forward",
            "f32",
            5,
            -1,
            False,
            0,
            False,
            -1,
            False,
            False,
            index.digest,
            False,
            False,
            True,
            packed,
        ],
        "glu_ratio": [[*sizes, n, n], "bf16", 5, -1, False, 0],
        "row_number": ["reference"],
    }


#: Operators that take no operands, or only of a GPU.
LEFT_OUT = (
    "bsr_linear_glu",
    "semi24_order",
    "tiles_order",
    "remember_index",
    "trust_index",
    "info",
    "version",
    "activation_names",
    "kernel_runs",
    "sparsifier_reads",
    "spin_registers",
    "num_threads",
    "set_num_threads",
    "recurrent_forward",
    "recurrent_backward",
)


def names() -> set[str]:
    """Returns the names of all operators."""
    registered = torch._C._dispatch_get_all_op_names()
    return {
        name.removeprefix("sparseloom::").partition(".")[0]
        for name in registered
        if name.startswith("sparseloom::")
    }
