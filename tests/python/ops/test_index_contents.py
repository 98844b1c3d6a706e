"""What an index holds is read before a kernel follows it: after a write in place, of whatever kind, the next
call names the bad entry. And operands of another width than the index has."""

from functools import partial

import pytest
import torch
from eight_bits import quantized
from torch import nn

import sparseloom
from sparseloom import nn as snn
from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear

#: Far behind every list, and positive when multiplied by a block of 32.
FAR = 2**25


def blocks():
    made = pattern.random(264, 256, 8, 0.5)
    index = ops.make_index(*made.index(), made.rows, made.cols, made.block)
    return index, torch.randn(index.blocks, 8, 8), torch.randn(5, 256), torch.randn(5, 264)


def of_blocks(call, *names):
    """A call of the operators of blocks, and the lists of the index that it reads."""
    index, values, x, dy = blocks()
    lists = dict(zip(("crow", "col", "ccol", "row", "slot"), index.lists(), strict=True))
    gated = [torch.rand(index.blocks), None]
    gated[1] = ops.call("gate_blocks", values, index.packed, gated[0], index.rows, index.cols)[2]
    written = {"place": gated[1], **lists}
    return {name: written[name] for name in names}, lambda: call(index, values, x, dy, gated)


def conv_weight(packs):
    index, values, *_ = blocks()
    shape = index.rows, index.cols
    taps = values.unsqueeze(1)
    packed = ("conv_pack", torch.randn(264, 1, 256), index.packed, index.blocks, 8, 8)
    lists = {"crow": index.crow, "col": index.col}
    return lists, lambda: ops.call(*(packed if packs else ("conv_unpack", taps, index.packed, *shape)))


def layer(made, x, *names):
    made = made.eval()
    return {name: getattr(made, name) for name in names}, lambda: made(x)


def sparse(layout, **options):
    weight = torch.randn(128, 256) * (torch.rand(128, 256) < 0.5)
    return snn.SparseLinear.from_dense(weight, layout, **options)


def coo():
    made = sparse("coo")
    return {"col": made.indices[1]}, lambda: made(torch.randn(3, 256))


def eight_bit():
    made = BlockSparseLinear(256, 264, density=0.5, block=8)
    return layer(quantized(made), torch.randn(5, 256), "crow", "col")


def recurrent(cls, **options):
    made, x = cls(64, 64, density=0.5, block=8, **options), torch.randn(3, 2, 64)
    return {"col": made.hh_l0.col}, lambda: made(x)[0]


def semi24(name, cols=256):
    """A call of an operator of 2:4 weights."""
    values, positions = ops.call("semi24_compress", torch.randn(128, cols), "magnitude")[:2]
    x, dy, ones = torch.randn(3, cols), torch.randn(3, 128), torch.ones(128)
    eights = [each.mul(20).to(torch.int8) for each in (x, values)]
    calls = {
        "semi24_linear": (x, values, positions, cols),
        "semi24_dx": (dy, values, positions, cols),
        "semi24_scaled_linear": (*eights, positions, cols, None, ones[:1], ones, torch.float32),
    }
    return {"positions": positions}, lambda: ops.call(name, *calls[name])


def attended():
    q, made = torch.randn(1, 2, 512, 16), torch.ones(1, 2, 8, 8, dtype=torch.bool)
    lists = sparseloom.AttentionPattern.from_map(made, 64)
    named = {"counts": lists.counts, "indices": lists.indices}
    return named, lambda: sparseloom.attention(q, q, q, lists)


CALLS = {
    "linear": lambda: of_blocks(lambda i, w, x, dy, g: ops.linear(x, w, i), "crow", "col"),
    "linear_dx": lambda: of_blocks(
        lambda i, w, x, dy, g: ops.linear_dx(dy, w, i), "crow", "col", "ccol", "row", "slot"
    ),
    "linear_dw": lambda: of_blocks(lambda i, w, x, dy, g: ops.linear_dw(dy, x, i), "crow", "col"),
    "pack": lambda: of_blocks(
        lambda i, w, x, dy, g: ops.call("pack", torch.randn(264, 256), i.crow, i.col, 8, 8), "crow", "col"
    ),
    "unpack": lambda: of_blocks(
        lambda i, w, x, dy, g: ops.call("unpack", w, i.crow, i.col, 264, 256), "crow", "col"
    ),
    "gate_blocks": lambda: of_blocks(
        lambda i, w, x, dy, g: ops.call("gate_blocks", w, i.packed, g[0], 264, 256),
        "crow", "col", "ccol", "row", "slot",
    ),
    "gate_gradients": lambda: of_blocks(
        lambda i, w, x, dy, g: ops.call("gate_gradients", w, w, g[0], g[1], True, True), "place"
    ),
    "conv_pack": lambda: conv_weight(True),
    "conv_unpack": lambda: conv_weight(False),
    "layer": lambda: layer(
        BlockSparseLinear(256, 264, density=0.5, block=8), torch.randn(5, 256), "crow", "col"
    ),
    "conv": lambda: layer(
        snn.BlockSparseConv2d(256, 264, 3, density=0.5, block=8), torch.randn(1, 256, 4, 4), "crow", "col"
    ),
    "int8": eight_bit,
    "csr": lambda: layer(sparse("csr"), torch.randn(3, 256), "crow", "col"),
    "coo": coo,
    "nm": lambda: layer(sparse("nm", n=2, m=8), torch.randn(3, 256), "positions"),
    "nmg": lambda: layer(sparse("nmg", n=1, m=8, g=2), torch.randn(3, 256), "order"),
    "lstm": lambda: recurrent(snn.BlockSparseLSTM),
    "lstm, projected": lambda: recurrent(snn.BlockSparseLSTM, proj_size=32),
    "gru": lambda: recurrent(snn.BlockSparseGRU),
    "conv_transpose": lambda: layer(
        snn.BlockSparseConvTranspose2d(64, 72, 3, density=0.5, block=8), torch.randn(1, 64, 4, 4), "col"
    ),
    "bitmap": lambda: layer(sparse("bitmap"), torch.randn(3, 256), "bits"),
    "tiles": lambda: layer(sparse("tiles", density=0.4), torch.randn(3, 256), "positions"),
    "2:4": lambda: layer(snn.Semi24Linear(256, 128), torch.randn(3, 256), "positions"),
    "2:4, long": lambda: semi24("semi24_linear", 1024),
    **{name: partial(semi24, name) for name in ("semi24_linear", "semi24_dx", "semi24_scaled_linear")},
    "attention": attended,
}  # fmt: skip


#: Layers that know their pattern write an index again where torch counted a write, and compute as before.
MENDED = ("layer", "conv", "conv_transpose", "lstm", "lstm, projected", "gru")
#: Operators whose long lists are read once for each write that torch counts.
COUNTED = ("csr", "coo", "gate_gradients", "2:4, long")


def refused(call, right):
    """Returns the error of a call; None where it gives the right result."""
    try:
        result = call()
    except RuntimeError as error:
        return str(error)
    assert right is not None and torch.equal(result, right)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_write_into_an_index_after_its_first_use_is_found_and_named(name):
    """CSR and 2:4 count torch's own writes where their lists are long; all others are read whole, so that a
    write which torch does not count is found as well."""
    lists, call = CALLS[name]()
    expected = call()
    for kind, tensor in lists.items():
        flat = tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1)
        bad = 255 if flat.dtype == torch.uint8 else 2**14 if flat.dtype == torch.int16 else FAR
        uncounted = name not in COUNTED
        # positions are two of 2 bits each, and what a bitmap's bits say is how many values there are
        said = {"positions": str(bad) if name == "nm" else "3 and 3", "bits": "expected values"}.get(
            kind, str(bad)
        )
        # the middle ones lie between the samples that used to stand for all
        for at in (3, len(flat) // 2 + 1, len(flat) - 2):
            for write in (flat, flat.data.detach().numpy()) if uncounted else (flat,):
                before = flat[at].clone()
                with torch.no_grad():
                    write[at] = bad
                refusal = refused(call, expected if name in MENDED else None)
                assert refusal is None or said in refusal, (kind, at)
                if refusal is not None and flat.dtype == torch.int32 and name not in ("coo", "attention"):
                    assert f"[{at}] = {bad}" in refusal or kind in ("crow", "ccol")
                with torch.no_grad():
                    flat[at] = before
                call()


def test_two_swapped_entries_of_a_column_index_are_found():
    index, values, _, dy = blocks()
    ops.linear_dx(dy, values, index)
    index.slot[[3, 300]] = index.slot[[300, 3]]
    with pytest.raises(sparseloom.Error, match=r"the slot of the block in row .*, got slot\[3\] = "):
        ops.linear_dx(dy, values, index)


@pytest.mark.parametrize("layout", ["csr", "bitmap"])
def test_other_memory_at_the_address_of_a_long_index_is_read(layout):
    """A freed index and the next one may lie at one address, with as many writes and the same samples."""
    good = torch.arange(512).repeat(512, 1).view(512, -1, 64)[:, :, :8].reshape(512, -1).int().contiguous()
    crow, values, x = (torch.arange(513) * 64).int(), torch.ones(512 * 64), torch.randn(2, 512)
    if layout == "bitmap":
        good = torch.full((512, 64), 1, dtype=torch.uint8)
    wrong = good.clone()
    wrong[100, 5] = 255  # neither an ascending column nor one bit
    call = getattr(torch.ops.sparseloom, f"{layout}_linear")
    for _ in range(20):
        for index in (good, wrong):
            at = torch.empty_like(index).copy_(index)
            lists = (crow, at.flatten()) if layout == "csr" else (at, crow)
            if index is good:
                call(x, values, *lists)
            else:
                with pytest.raises(RuntimeError, match=r"expected (ascending columns|crow)"):
                    call(x, values, *lists)
            del at, lists


@pytest.mark.parametrize("extra", [-3, 1, 8, 64])
def test_operands_of_another_width_than_the_index_has_are_refused(extra):
    """20 and 24 features have as many blocks of 8, and only the index knows which of them it is for."""
    made = pattern.full(20, 20, 8)
    index, values = ops.make_index(*made.index(), 20, 20, (8, 8)), torch.randn(9, 8, 8)
    wrong, right = torch.randn(4, 20 + extra), torch.randn(4, 20)
    scale = torch.ones(1)
    calls = {
        "linear": lambda: ops.linear(wrong, values, index),
        "linear_dx": lambda: ops.linear_dx(wrong, values, index),
        "linear_dw x": lambda: ops.linear_dw(right, wrong, index),
        "linear_dw dy": lambda: ops.linear_dw(wrong, right, index),
        "linear_dw out": lambda: ops.linear_dw(wrong, right, index, out=torch.zeros(9, 8, 8)),
        "gated_linear": lambda: ops.gated_linear(wrong, values, index, torch.ones(9)),
        "scaled_linear": lambda: ops.scaled_linear(
            wrong.to(torch.int8), values.to(torch.int8), index, scale, scale, out_dtype=torch.float32
        ),
    }
    for name, call in calls.items():
        with pytest.raises(sparseloom.Error, match=rf"\[{name.split()[0]}\] expected (x|dy) \[\.\.\., 20\]"):
            call()


@pytest.mark.gpu
def test_an_index_on_a_gpu_is_read_once_for_each_number_of_writes():
    index, values, x, dy = (each.cuda() if isinstance(each, torch.Tensor) else each for each in blocks())
    index = index.to("cuda")
    for call in (
        lambda: ops.linear(x, values, index),
        lambda: ops.linear_dx(dy, values, index),
        lambda: ops.linear_dw(dy, x, index),
        lambda: ops.call("unpack", values, index.crow, index.col, 264, 256),
    ):
        call()
        before = index.col[3].clone()
        index.col[3] = FAR
        with pytest.raises(sparseloom.Error, match=rf"col\[3\] = {FAR}"):
            call()
        index.col[3] = before
        call()


@pytest.mark.gpu
def test_operators_on_a_gpu_refuse_a_width_that_the_padding_of_lists_would_let_through():
    """Lists of a packed index begin at multiples of 16 entries, so its size fits many grids."""
    made = pattern.full(16, 24, 8)
    index = ops.make_index(*made.index(), 16, 24, (8, 8)).to("cuda")
    values, raw = torch.randn(6, 8, 8, device="cuda"), torch.ops.sparseloom
    x, dy = (torch.randn(4, width, device="cuda") for width in (24, 24))
    rest = (-1, False, False, index.digest)
    calls = [
        lambda: raw.bsr_linear(x, values, index.packed, 24, None, 0, None, *rest),
        lambda: raw.bsr_linear_dx(dy, values, index.packed, 24, *rest),
        lambda: raw.bsr_linear_dw(dy, x, index.packed, 6, 8, 8, *rest),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"crow|ccol"):
            call()


@pytest.mark.gpu
def test_a_graph_captures_a_first_call_without_reading_the_index():
    index, values, x, _ = (each.cuda() if isinstance(each, torch.Tensor) else each for each in blocks())
    index = index.to("cuda")
    other = BlockSparseLinear(256, 264, density=0.5, block=8).cuda()
    with torch.no_grad():
        other(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = ops.linear(x, values, index)
    graph.replay()
    torch.testing.assert_close(y, ops.linear(x, values, index))


def test_a_count_of_rounds_that_would_never_end_is_refused():
    with pytest.raises(sparseloom.Error, match="at most 1000000000 rounds"):
        ops.call("spin_registers", "f32_avx2", 2**62)


def test_rows_without_columns_are_not_counted_one_by_one():
    """2^40 of them took hours."""
    empty = torch.empty(2**40, 0)
    ops.call("semi24_validate", empty, empty.to(torch.uint8), 0)
    ops.call("nm_validate", torch.empty(2**31 - 1, 0, 2, dtype=torch.uint8), 0, 4)


def test_an_index_of_inference_tensors_is_read_whole():
    with torch.inference_mode():
        made = sparse("csr")
        made(torch.randn(3, 256))
        made.col[5] = FAR
        with pytest.raises(sparseloom.Error, match=rf"col\[5\] = {FAR}"):
            made(torch.randn(3, 256))
    assert isinstance(made, nn.Module)
