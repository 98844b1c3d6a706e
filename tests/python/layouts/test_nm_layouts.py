"""n:m and n:m:g weights against masked dense twins by torch."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseloom
from sparseloom import Error
from sparseloom.layouts import Layout, Nm, Nmg, products
from sparseloom.nn import SparseLinear
from sparseloom.sparsify import PerBlockNM, ScalarFraction

SHAPES = [(24, 32), (37, 45), (5, 3)]


def drawn(rows: int, cols: int) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows * cols))


def stored(layout: Layout) -> Tensor:
    """Which elements a layout stores."""
    return layout.to_dense(layout.pack(torch.ones(layout.rows, layout.cols))) != 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 4), (3, 7), (1, 8), (4, 4)])
def test_nm_stores_what_per_block_nm_keeps(shape: tuple[int, int], n: int, m: int) -> None:
    weight = drawn(*shape)
    layout = Nm.from_dense(weight, n=n, m=m)
    kept = PerBlockNM(n, m).select_mask(weight)
    dense = layout.to_dense(layout.pack(weight))
    assert torch.equal(dense, weight * kept)
    again = Nm.from_dense(dense, n=n, m=m)
    assert torch.equal(again.to_dense(again.pack(dense)), dense)  # what is n:m loses nothing
    layout.require_consistent("test", layout.pack(weight))


def test_nm_takes_a_mask_and_refuses_too_many() -> None:
    weight = drawn(8, 16)
    mask = torch.zeros(8, 16, dtype=torch.bool)
    mask[3, 6] = mask[3, 7] = True
    layout = Nm.from_dense(weight, n=2, m=4, mask=mask)
    assert bool(stored(layout)[mask].all()) and int(stored(layout).sum()) == 64
    with pytest.raises(Error, match=r"at most 1 elements in each group of 4, got 2 in row 3, group 1"):
        Nm.from_dense(weight, n=1, m=4, mask=mask)
    with pytest.raises(Error, match=r"a bool mask \[8, 16\]"):
        Nm.from_dense(weight, n=1, m=4, mask=mask[:2])
    with pytest.raises(Error, match="1 <= n <= m <= 256"):
        Nm.from_dense(weight, n=5, m=4)


def greedy(weight: Tensor, patterns: list[tuple[int, ...]], g: int) -> dict[int, tuple[int, ...]]:
    """The patterns of the outputs of one chunk and strip, by a sort of all pairs."""
    pairs = [
        (-sum(abs(float(row[i])) for i in pattern), r, p)
        for r, row in enumerate(weight)
        for p, pattern in enumerate(patterns)
    ]
    taken: Counter[int] = Counter()
    found: dict[int, tuple[int, ...]] = {}
    for _, r, p in sorted(pairs):
        if r not in found and taken[p] < g:
            found[r] = patterns[p]
            taken[p] += 1
    return found


@pytest.mark.parametrize(("n", "m", "g"), [(1, 4, 3), (2, 4, 2), (3, 5, 1), (4, 4, 9)])
def test_nmg_uses_each_pattern_g_times_and_takes_the_largest_first(n: int, m: int, g: int) -> None:
    chunk = math.comb(m, n) * g
    weight = drawn(2 * chunk, 3 * m).double()
    mask = stored(Nmg.from_dense(weight, n=n, m=m, g=g))
    patterns = list(combinations(range(m), n))
    for top in range(0, 2 * chunk, chunk):
        for left in range(0, 3 * m, m):
            part = mask[top : top + chunk, left : left + m]
            places = [tuple(row.nonzero().flatten().tolist()) for row in part]
            assert Counter(places) == dict.fromkeys(patterns, g)
            assert dict(enumerate(places)) == greedy(weight[top : top + chunk, left : left + m], patterns, g)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "m", "g"), [(1, 4, 2), (2, 4, 1), (1, 8, 4)])
def test_nmg_keeps_no_more_than_nm_and_decodes(shape: tuple[int, int], n: int, m: int, g: int) -> None:
    weight = drawn(*shape)
    grouped, free = Nmg.from_dense(weight, n=n, m=m, g=g), Nm.from_dense(weight, n=n, m=m)
    dense = grouped.to_dense(grouped.pack(weight))
    assert torch.equal(dense, weight * stored(grouped))
    assert float(dense.abs().sum()) <= float(free.to_dense(free.pack(weight)).abs().sum()) + 1e-4
    grouped.require_consistent("test", grouped.pack(weight))
    values = grouped.pack(grouped.to_dense(torch.randn(*grouped.order.shape, n)))
    assert torch.equal(grouped.pack(grouped.to_dense(values)), values)


MADE = [("nm", {"n": 1, "m": 4}), ("nmg", {"n": 1, "m": 4, "g": 3}), ("nmg", {"n": 2, "m": 5, "g": 1})]


@pytest.mark.parametrize(("layout", "options"), MADE)
def test_torch_does_what_the_operators_do(
    layout: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs on other devices."""
    weight = drawn(37, 45)
    made = sparseloom.layouts.get(layout).from_dense(weight, **options)
    values = made.pack(weight)
    dense = made.to_dense(values)
    monkeypatch.setattr(sparseloom.ops.nm, "on_host", lambda *tensors: False)
    assert torch.equal(made.pack(weight), values) and torch.equal(made.to_dense(values), dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("layout", "options"), MADE)
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_the_masked_twin(
    layout: str, options: dict[str, int], bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(45, 37, bias, dtype=dtype)
    layer = SparseLinear.from_dense(dense, layout, **options)
    mask = stored(layer.layout)
    twin = (dense.weight.detach() * mask).double().requires_grad_()
    x = torch.randn(6, 7, 45).to(dtype)
    mine, its = x.clone().requires_grad_(), x.double().requires_grad_()
    y = layer(mine)
    expected = F.linear(its, twin, None if dense.bias is None else dense.bias.double())
    # A few roundings of sums of some 11 products of about one.
    close = {"rtol": 0.0, "atol": 32 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y.double(), expected, **close)
    dy = torch.randn_like(y)
    y.backward(dy)
    expected.backward(dy.double())
    assert mine.grad is not None and its.grad is not None and twin.grad is not None
    torch.testing.assert_close(mine.grad.double(), its.grad, **close)
    gradient = layer.layout.to_dense(layer.values.grad).double()
    torch.testing.assert_close(gradient, twin.grad * mask, rtol=0.0, atol=160 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("layout", "options"), MADE)
def test_gradients_hold_to_the_second_order(layout: str, options: dict[str, int]) -> None:
    made = sparseloom.layouts.get(layout).from_dense(drawn(9, 7), **options)
    drawn_64 = torch.Generator().manual_seed(1)
    x = torch.randn(3, 7, generator=drawn_64, dtype=torch.float64, requires_grad=True)
    values = made.pack(drawn(9, 7).double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, v: made.linear(x, v * (v != 0), None), (x, values))
    assert torch.autograd.gradgradcheck(
        lambda x, v: products.linear(x, v * (v != 0), None, made).sin(), (x, values)
    )
    weight = drawn(9, 7).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: made.to_dense(made.pack(w) * 2), (weight,))


def test_nan_reaches_the_outputs_that_store_its_column_alone() -> None:
    weight = drawn(24, 16)
    for layout in (Nm.from_dense(weight, n=1, m=4), Nmg.from_dense(weight, n=1, m=4, g=2)):
        x = torch.ones(3, 16)
        x[1, 5] = torch.nan
        y = layout.linear(x, layout.pack(weight), None)
        if isinstance(layout, Nmg):
            assert torch.equal(y[1].isnan(), stored(layout)[:, 5])
        assert not bool(y[[0, 2]].isnan().any())
    weight[3, 2] = torch.nan
    assert bool(Nm.from_dense(weight, n=1, m=4).to_dense(torch.ones(24, 4, 1))[3, 2])  # NaN counts as Inf


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (1, 1)])
def test_nothing_stored_and_nothing_to_multiply(shape: tuple[int, int]) -> None:
    weight = drawn(*shape)
    for layout in (Nm.from_dense(weight, n=1, m=4), Nmg.from_dense(weight, n=1, m=4, g=2)):
        values, bias = layout.pack(weight), torch.randn(shape[0])
        layout.require_consistent("test", values)
        for tokens in (0, 1, 9):
            x = torch.randn(tokens, shape[1])
            expected = F.linear(x, layout.to_dense(values), bias)
            torch.testing.assert_close(layout.linear(x, values, bias), expected)


#: Largest relative error of a result that is rounded once after sums in fp32.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 1e-13}


def rows_of(layout: Nmg, direction: str, dtype: torch.dtype, tokens: int) -> dict[str, str]:
    """The kernels of a product and why each refuses it, or an empty text."""
    plan = sparseloom.ops.nm.plan(layout._numbers(), direction, dtype, tokens, direction == "forward")
    return {each["kernel"]: each["refusal"] for each in plan["candidates"]}


def product(
    layout: Nmg, direction: str, x: Tensor, dy: Tensor, values: Tensor, bias: Tensor, row: str = ""
) -> Tensor:
    numbers, nm = layout._numbers(), sparseloom.ops.nm
    if direction == "forward":
        return nm.linear(x, values, layout.order, bias, *numbers, row=row)
    if direction == "dx":
        return nm.dx(dy, values, layout.order, *numbers, row=row)
    return nm.dw(dy, x, layout.order, *numbers, row=row)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(
    ("shape", "group"),
    [
        ((130, 70), (1, 4, 16)),
        ((96, 515), (2, 4, 16)),
        ((300, 45), (1, 8, 16)),
        ((37, 45), (3, 7, 1)),  # chunks and strips that are cut; slots that fill no vector
        ((21, 30), (2, 5, 1)),
        ((40, 24), (2, 4, 8)),
        ((9, 24), (4, 4, 9)),  # everything is stored
        ((5, 3), (1, 6, 8)),
        ((4300, 4), (1, 2, 1050)),  # more outputs of a pattern than are added at once
        ((1100, 9), (1, 2, 1)),  # sums of many chunks are set aside
    ],
)
def test_every_kernel_is_right(
    dtype: torch.dtype, shape: tuple[int, int], group: tuple[int, int, int]
) -> None:
    weight = drawn(*shape).to(dtype)
    layout = Nmg.from_dense(weight, *group)
    values, (rows, cols) = layout.pack(weight), shape
    dense = layout.to_dense(values).double()
    for tokens in (1, 2, 16, 17, 130, 1025):
        x, dy, bias = (torch.randn(size).to(dtype) for size in ((tokens, cols), (tokens, rows), (rows,)))
        exact = {}
        for size in (torch.Tensor.double, lambda t: t.double().abs()):
            x_64, dy_64, w_64, bias_64 = (size(t) for t in (x, dy, dense, bias))
            for direction, found in (
                ("forward", x_64 @ w_64.t() + bias_64),
                ("dx", dy_64 @ w_64),
                ("dw", layout.pack(dy_64.t() @ x_64)),
            ):
                exact.setdefault(direction, []).append(found)
        for direction, (found, size_of) in exact.items():
            for kernel, refusal in rows_of(layout, direction, dtype, tokens).items():
                if refusal or (kernel == "reference" and (tokens > 17 or rows > 300)):
                    continue
                got = product(layout, direction, x, dy, values, bias, kernel)
                assert got.dtype == dtype and got.shape == found.shape
                # torch's own bf16 sums of the dense row are no better than a few of its roundings
                few = 4 if kernel == "dense" else 1
                bound = few * ROUNDING[dtype] * size_of + 2e-6 * size_of * (dtype != torch.float64) + 1e-7
                assert bool(((got.double() - found).abs() <= bound).all()), (kernel, direction, tokens)


def test_dw_of_so_many_tokens_sets_sums_aside() -> None:
    layout, tokens = Nmg.from_dense(drawn(8, 8), n=1, m=4, g=2), 512 * 128 + 300
    for dtype in (torch.float32, torch.bfloat16):
        x, dy = torch.rand(tokens, 8).to(dtype), torch.rand(tokens, 8).to(dtype)
        exact = layout.pack(dy.double().t() @ x.double())
        for kernel, refusal in rows_of(layout, "dw", dtype, tokens).items():
            if not refusal and kernel not in ("dense_dw", "reference"):
                got = sparseloom.ops.nm.dw(dy, x, layout.order, *layout._numbers(), row=kernel)
                assert bool(((got.double() - exact).abs() <= ROUNDING[dtype] * exact).all()), kernel


def test_a_nan_reaches_no_padding_and_the_slots_of_its_place_alone() -> None:
    weight = drawn(10, 6)
    layout = Nmg.from_dense(weight, n=1, m=4, g=3)
    values, rows, cols = layout.pack(weight), *layout.places()[:2]
    wrong = torch.zeros(10, 6, dtype=torch.bool)
    wrong[3], wrong[:, 5] = True, True
    for tokens in (1, 20):
        x, dy = torch.ones(tokens, 6), torch.ones(tokens, 10)
        x[0, 5] = dy[0, 3] = torch.nan
        for kernel, refusal in rows_of(layout, "dw", torch.float32, tokens).items():
            if not refusal:
                dw = product(layout, "dw", x, dy, values, x[0], kernel)
                assert not bool(dw[(rows >= 10) | (cols >= 6)].count_nonzero())
                if kernel != "dense_dw":
                    assert torch.equal(layout.to_dense(dw).isnan(), wrong & stored(layout))
        for kernel, refusal in rows_of(layout, "dx", torch.float32, tokens).items():
            if not refusal and kernel != "dense":
                dx = product(layout, "dx", x, dy, values, x[0], kernel)
                assert torch.equal(dx[0].isnan(), stored(layout)[3])
                assert not bool(dx[1:].isnan().any())


def test_the_bits_depend_on_no_number_of_threads() -> None:
    weight, threads = drawn(600, 520), torch.get_num_threads()
    layout = Nmg.from_dense(weight, n=1, m=8, g=8)
    values, found = layout.pack(weight), []
    bias = torch.zeros(600)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(Nmg.from_dense(weight, n=1, m=8, g=8).order, layout.order)
            operands = [(drawn(tokens, 520), drawn(tokens, 600), values, bias) for tokens in (1, 70, 1200)]
            found.append(
                [product(layout, each, *those) for each in ("forward", "dx", "dw") for those in operands]
            )
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


GROUPED = ("avx2_grouped", "avx512_grouped", "avx512bf16_grouped")


def test_nmg_says_what_it_runs() -> None:
    layer = SparseLinear(512, 256, layout="nmg", n=1, m=8, g=8)
    for direction in ("forward", "dx", "dw"):
        plan = layer.plan(tokens=64, direction=direction)
        refusals = {each["kernel"]: each["refusal"] for each in plan["candidates"]}
        assert (
            {"dense", "dense_dw", "reference"}
            <= set(refusals)
            <= {*GROUPED, "dense", "dense_dw", "reference"}
        )
        fast = not refusals.get("avx2_grouped", "no row")
        assert plan["kernel"] in (GROUPED if fast else ("dense", "dense_dw"))
    layer.strict = True
    if fast:
        assert layer.plan(tokens=64, direction="dw")["kernel"] in GROUPED


def test_the_operators_are_torchs() -> None:
    weight, x = drawn(20, 24), drawn(6, 24)
    nm, nmg = Nm.from_dense(weight, n=1, m=4), Nmg.from_dense(weight, n=1, m=4, g=3)
    ops = torch.ops.sparseloom
    values = nmg.pack(weight)
    calls = [
        (ops.nm_pack, (weight, nm.positions, 4)),
        (ops.nm_unpack, (nm.pack(weight), nm.positions, 24, 4)),
        (ops.nmg_pack, (weight, nmg.order, 1, 4, 3)),
        (ops.nmg_unpack, (values, nmg.order, 20, 24, 1, 4, 3)),
        (ops.nmg_linear, (x, values, nmg.order, 20, 24, 1, 4, 3)),
        (ops.nmg_dx, (drawn(6, 20), values, nmg.order, 20, 24, 1, 4, 3)),
        (ops.nmg_dw, (drawn(6, 20), x, nmg.order, 20, 24, 1, 4, 3)),
    ]
    for op, arguments in calls:
        torch.library.opcheck(op.default, arguments)


def test_a_wrong_index_is_refused() -> None:
    weight = drawn(24, 32)
    nmg = Nmg.from_dense(weight, n=1, m=4, g=3)
    twice = nmg.order.clone()
    twice[0, 1, 1] = twice[0, 1, 0]
    with pytest.raises(Error, match="twice in chunk 0, strip 1"):
        nmg.with_tensors({"order": twice}).require_consistent("test", nmg.pack(weight))
    with pytest.raises(Error, match=r"torch\.int16"):
        nmg.with_tensors({"order": twice.int()}).require_consistent("test", nmg.pack(weight))
    nm = Nm.from_dense(weight, n=2, m=4)
    same = nm.positions.clone()
    same[2, 3] = 1
    with pytest.raises(Error, match="1 after 1 in row 2, group 3"):
        nm.with_tensors({"positions": same}).require_consistent("test", nm.pack(weight))
    with pytest.raises(Error, match=r"values \[24, 8, 2\]"):
        nm.require_consistent("test", nm.pack(weight)[:3])
    ragged = Nm.from_dense(drawn(2, 6), n=1, m=4)
    beyond = ragged.with_tensors({"positions": torch.full_like(ragged.positions, 3)})
    with pytest.raises(Error, match="zeros as padding"):
        beyond.require_consistent("test", torch.ones(2, 2, 1))
    beyond.require_consistent("test", torch.tensor([[[1.0], [0]], [[1], [0]]]))
    outside = nmg.order.clone()
    outside[0, 0, 0] = 30000
    with pytest.raises(Error, match="30000 in chunk 0, strip 0"):  # no product reads or writes beyond W
        nmg.with_tensors({"order": outside}).linear(torch.randn(2, 32), nmg.pack(weight), None)
    with pytest.raises(Error, match="1 <= n <= m <= 256"):
        Nmg(4, 4, order=nmg.order, n=1, m=0, g=1)
    with pytest.raises(Error, match=r"2\^15"):
        Nmg.from_dense(weight, n=10, m=20, g=1)
    for layout, options in (("nm", {"n": 1, "m": 4}), ("nmg", {"n": 1, "m": 4})):
        with pytest.raises(Error, match=r"a strided weight"):
            sparseloom.layouts.get(layout).from_dense(torch.randn(3), **options)


def test_sparsifiers_feed_nm() -> None:
    """An unstructured choice is no n:m, and says so."""
    weight = drawn(16, 16)
    mask = ScalarFraction(0.5).select_mask(weight)
    with pytest.raises(Error, match="at most 2 elements in each group of 4"):
        Nm.from_dense(weight, n=2, m=4, mask=mask)
