"""bitmap_pack and bitmap_unpack, which copy between a bitmap's values and the dense weight: their operators.
What they copy: tests/cpp/layout/bitmap_test.cpp."""

import pytest
import torch

from sparseloom.layouts import Bitmap

OPERATORS = torch.ops.sparseloom


def operands():
    torch.manual_seed(0)
    weight = torch.randn(9, 7)
    layout = Bitmap.of_mask(torch.ones(9, 7, dtype=torch.bool).tril(3))
    return weight, weight[layout.mask()], (layout.bits, layout.bounds())


def test_opcheck():
    weight, values, bits = operands()
    for op, arguments in (
        (OPERATORS.bitmap_pack.default, (weight, *bits, values.numel())),
        (OPERATORS.bitmap_unpack.default, (values, *bits, 7)),
    ):
        assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}, op


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda w, v, bits: OPERATORS.bitmap_pack(w[:, :5], *bits, v.numel()), "no bit behind column 4"),
        (lambda w, v, bits: OPERATORS.bitmap_pack(w[:8], *bits, v.numel()), r"a matrix \[9, 7\]"),
        (lambda w, v, bits: OPERATORS.bitmap_pack(w[None], *bits, v.numel()), r"a matrix \[9, 7\]"),
        (lambda w, v, bits: OPERATORS.bitmap_pack(w, *bits, v.numel() - 1), "stored = .* as the bits say"),
        (lambda w, v, bits: OPERATORS.bitmap_unpack(v[:-1], *bits, 7), "values"),
        (lambda w, v, bits: OPERATORS.bitmap_unpack(v, *bits, 9), "bits uint8"),
    ],
)
def test_copies_of_bitmaps_that_do_not_fit_are_refused(call, says: str):
    with pytest.raises(RuntimeError, match=says):
        call(*operands())
