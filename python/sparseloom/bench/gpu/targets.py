"""What the project promises of its GPU kernels, as sentences on what a run's records miss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..cells import GPU_BLOCKS, GPU_SHAPES, Cell, cell_of, gpu_cell

Record = dict[str, Any]

#: Above this density any candidate counts against torch BSR, below it sparse kernels alone. .3 on the flagship's coarsest grid
#: (32 block columns) is 10 blocks, .3125.
SPARSE_UP_TO = 0.32
DECODE_TOKENS = 64
#: Of torch BSR's speed: blocks of 16 and 32 and every decode cell, and the blocks that the Hopper kernels take over.
FASTER, COARSE_AT_LEAST, COARSE_BLOCK = 1.0, 0.7, 64
SPARSER_AT_MOST = 0.6  # time at density .05 over time at .2
#: On coarse grids the two densities fall closer together than 1 : 4; above this ratio the comparison says nothing.
DENSITY_RATIO = 0.35
OF_DENSE = 0.95
HOST_US = {"without_gradients": 10.0, "with_gradients": 18.0}


def missed_gpu(records: list[Record]) -> list[str]:
    """Sentences, none when these records keep every promise."""
    cells = [record for record in records if record["op"] == "linear" and "error" not in record]
    return [
        *failed(records),
        *not_repeated(cells),
        *behind_torch_bsr(cells),
        *not_sparser(cells),
        *slower_than_dense(cells),
        *host_over(records),
    ]


def failed(records: Iterable[Record]) -> list[str]:
    """Cells and candidates that raised."""
    sentences = []
    for record in records:
        name = cell_of(record) if record["op"] == "linear" else record["op"]
        if "error" in record:
            sentences.append(f"{name}: {record['error']}")
        for each in record.get("candidates", []):
            if "error" in each:
                sentences.append(f"{name} by {each['kernel']}: {each['error']}")
    return sentences


def not_repeated(cells: Iterable[Record]) -> list[str]:
    """Sparse kernels whose results on equal operands differ. cuBLAS, which `dense` calls, is not ours to promise."""
    return [
        f"{cell_of(record)} by {each['kernel']}: results of equal operands differ"
        for record in cells
        for each in record["candidates"]
        if each["kernel"] != "dense" and each.get("same_bits") is False
    ]


def behind_torch_bsr(cells: Iterable[Record]) -> list[str]:
    """bf16 forward in square blocks of the compared sides, on the compared shapes."""
    sentences = []
    for record in cells:
        cell = cell_of(record)
        compared = (cell.m, cell.k, cell.n) in GPU_SHAPES and cell.block[0] == cell.block[1] and cell.block[0] in GPU_BLOCKS
        if (cell.direction, cell.dtype) != ("forward", "bf16") or not compared:
            continue
        peer = record["peers"].get("torch_bsr")
        if peer is None:
            sentences.append(f"{cell}: torch BSR was not measured: {record['peers_absent'].get('torch_bsr', 'no reason given')}")
            continue
        if cell.density <= SPARSE_UP_TO:
            kernel, us = record["sparse_kernel"], record["sparse_us"]
        else:
            kernel = record["best"]
            us = next(each["us"]["median"] for each in record["candidates"] if each["kernel"] == kernel)
        if us is None:
            sentences.append(f"{cell}: no sparse kernel ran")
            continue
        coarse = cell.block[0] >= COARSE_BLOCK and cell.m > DECODE_TOKENS
        least = COARSE_AT_LEAST if coarse else FASTER
        if peer / us < least:
            sentences.append(f"{cell}: {kernel} has {peer / us:.2f} of torch BSR's speed, target {least:g}")
    return sentences


def not_sparser(cells: Iterable[Record]) -> list[str]:
    """Forward at density .05 against .2, by sparse kernels, where there are enough tokens for the products to count."""
    times = {cell_of(record): record["sparse_us"] for record in cells}
    sentences = []
    for shape in GPU_SHAPES:
        for side in GPU_BLOCKS:
            low, high = (gpu_cell("forward", "bf16", shape, (side, side), density) for density in (0.05, 0.2))
            if shape[0] != GPU_SHAPES[0][0] or low.density > DENSITY_RATIO * high.density:
                continue
            found = times.get(low), times.get(high)
            if found[0] is not None and found[1] is not None and found[0] > SPARSER_AT_MOST * found[1]:
                ratio = found[0] / found[1]
                sentences.append(f"{low}: {ratio:.2f} of the time at density {high.density:g}, target <= {SPARSER_AT_MOST}")
    return sentences


def slower_than_dense(cells: Iterable[Record]) -> list[str]:
    """The plan's choice against torch's dense product, in bursts."""
    return [
        f"{cell_of(record)}: {record['kernel']} has {record['speedup']:.2f} of dense's speed, target {OF_DENSE}"
        for record in cells
        if record["speedup"] < OF_DENSE
    ]


def host_over(records: Iterable[Record]) -> list[str]:
    """Of module calls; says nothing about a run that did not measure them."""
    return [
        f"a module call {mode.replace('_', ' ')}: {record[mode]['us']['median']:.1f} us of the host, target {most:g}"
        for record in records
        if record["op"] == "host" and "error" not in record
        for mode, most in HOST_US.items()
        if record[mode]["us"]["median"] > most
    ]


def unmeasured(cells: Iterable[Cell], records: Iterable[Record]) -> list[Cell]:
    """The cells that these records do not hold, in order: what a resumed run still has to do."""
    done = {cell_of(record) for record in records if record["op"] == "linear"}
    return [cell for cell in cells if cell not in done]
