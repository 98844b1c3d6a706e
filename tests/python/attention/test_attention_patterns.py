"""AttentionPattern, its generators, and torch's BlockMask."""

import copy
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask

import sparseloom
from sparseloom import AttentionPattern, Error
from sparseloom.attention import patterns

TOKENS = 300


def of_elements(mask, block=64):
    """Returns which blocks hold an element of a mask."""
    pad = -mask.shape[0] % block, -mask.shape[1] % block
    mask = F.pad(mask, (0, pad[1], 0, pad[0]))
    return mask.unflatten(0, (-1, block)).unflatten(2, (-1, block)).any(3).any(1)


def distances(queries=TOKENS, keys=TOKENS):
    return torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)


GENERATED = [
    ("full", lambda: patterns.full(TOKENS, block=64), distances() < 10**6),
    ("causal", lambda: patterns.full(TOKENS, block=64, causal=True), distances() >= 0),
    ("window", lambda: patterns.sliding_window(TOKENS, 70, block=64), distances().abs() <= 70),
    ("causal window", lambda: patterns.sliding_window(TOKENS, 70, block=64, causal=True),
     (distances() >= 0) & (distances() <= 70)),
    ("window over more keys", lambda: patterns.sliding_window(TOKENS, 70, kv_tokens=500, block=64),
     distances(keys=500).abs() <= 70),
    ("global", lambda: patterns.global_tokens(TOKENS, 10, block=64),
     (torch.arange(TOKENS)[:, None] < 10) | (torch.arange(TOKENS) < 10) | (distances() == 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "mask"), GENERATED, ids=[name for name, *_ in GENERATED])
def test_a_generated_pattern_keeps_the_blocks_of_its_elements(name, make, mask):
    kept = make().map()[0, 0]
    needed = of_elements(mask)
    assert not (needed & ~kept).any()
    # A window is judged by blocks of whole length, so that the last one may be kept in vain.
    assert torch.equal(kept[:, :-1] & needed.any(0)[:-1], needed[:, :-1]) or name == "window over more keys"


def test_factorised_patterns_are_those_of_weights():
    strided = patterns.strided(TOKENS, 2, block=64, causal=True)
    assert torch.equal(strided.map()[0, 0], sparseloom.pattern.strided(TOKENS, TOKENS, 64, 2, True).mask)
    fixed = patterns.fixed(TOKENS, 2, block=64)
    assert torch.equal(fixed.map()[0, 0], sparseloom.pattern.fixed(TOKENS, TOKENS, 64, 2).mask)
    assert strided.causal and not fixed.causal


def test_dilated_windows_have_gaps():
    kept = patterns.dilated(640, 256, 2, block=64).map()[0, 0]
    apart = (torch.arange(10)[:, None] - torch.arange(10)).abs()
    assert torch.equal(kept, (apart <= 5) & (apart % 2 == 0))


def test_radial_patterns_thin_out_with_the_distance_of_frames():
    kept = patterns.radial(32, 512, block=64).map()[0, 0]
    assert torch.equal(kept, kept.T) and kept.diagonal().all()
    frames = kept.unflatten(0, (32, 8)).unflatten(2, (32, 8)).transpose(1, 2).float().mean((2, 3))
    shares = [frames.diagonal(n).mean().item() for n in range(32)]
    assert shares[0] == shares[1] == 1.0 and shares[2] > shares[4] > shares[8] >= shares[16] > shares[17] == 0
    assert kept.float().mean() < 0.5


@pytest.mark.parametrize("causal", [False, True])
def test_documents_are_exact(causal):
    ids = torch.tensor([[0] * 130 + [1] * 10 + [2] * 160, [5] * 300])
    pattern = patterns.documents(ids, block=64, causal=causal)
    q, k, v = (torch.randn(2, 2, TOKENS, 64) for _ in range(3))
    mask = ids[:, None, :, None] == ids[:, None, None, :]
    if causal:
        mask = mask & (distances() >= 0)
    torch.testing.assert_close(
        sparseloom.attention(q, k, v, pattern), F.scaled_dot_product_attention(q, k, v, mask)
    )
    assert pattern.map()[0].sum() < pattern.map()[1].sum()


def test_keys_may_be_left_out():
    kept = torch.rand(2, TOKENS) < 0.5
    q, k, v = (torch.randn(2, 2, n, 64) for n in (200, TOKENS, TOKENS))
    pattern = patterns.full(200, kv_tokens=TOKENS).where_keys(kept)
    torch.testing.assert_close(
        sparseloom.attention(q, k, v, pattern), F.scaled_dot_product_attention(q, k, v, kept[:, None, None])
    )


def test_lists_maps_and_patterns_are_one():
    kept = torch.rand(2, 3, 4, 5) < 0.4
    kept[1, 2, 3] = False
    pattern = AttentionPattern.from_map(kept, 64)
    assert torch.equal(pattern.map(), kept)
    again = AttentionPattern(pattern.counts, pattern.indices, 64)
    assert torch.equal(again.map(5), kept)
    assert pattern.density == pytest.approx(kept.float().mean().item())
    assert torch.equal(AttentionPattern.from_map(kept[0, 0], (128, 256)).map(),
                       kept[0, 0].repeat_interleave(2, 1)[None, None])  # fmt: skip
    weight = sparseloom.pattern.random(256, 320, 64, density=0.5, seed=0)
    assert torch.equal(AttentionPattern.from_pattern(weight).map()[0, 0], weight.mask)
    joined = AttentionPattern.from_map(kept[0], 64) | AttentionPattern.from_map(kept[1], 64)
    assert torch.equal(joined.map()[0], kept[0] | kept[1])
    twin = copy.deepcopy(pattern)
    assert torch.equal(twin.map(), kept) and "5 blocks" in repr(twin)


def test_whole_and_partial_lists():
    whole, partial = torch.tensor([[1, 0], [1, 0]]).bool(), torch.tensor([[0, 0], [0, 1]]).bool()
    parts = [AttentionPattern.from_map(each) for each in (whole, partial)]
    lists = [each for part in parts for each in (part.counts, part.indices)]
    q, k, v = (torch.randn(1, 1, 256, 64) for _ in range(3))
    expected = sparseloom.attention(q, k, v, whole | partial, causal=True)
    assert torch.equal(sparseloom.attention(q, k, v, tuple(lists), causal=True), expected)
    assert torch.equal(sparseloom.attention(q, k, v, tuple(lists[:2])), sparseloom.attention(q, k, v, whole))
    names = "mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx"
    flash4 = namedtuple("BlockSparseTensors", names)
    assert torch.equal(sparseloom.attention(q, k, v, flash4(*lists[2:], *lists[:2]), causal=True), expected)
    only = flash4(*lists[:2], None, None)
    assert torch.equal(sparseloom.attention(q, k, v, only), sparseloom.attention(q, k, v, whole))
    halves = AttentionPattern.from_map(whole.repeat_interleave(2, 0).repeat_interleave(2, 1), 64)
    of_64 = sparseloom.attention(q, k, v, (halves.counts, halves.indices))
    assert torch.equal(of_64, sparseloom.attention(q, k, v, whole))


def test_the_lists_of_keys_are_made_once_unless_they_change():
    pattern = AttentionPattern.from_map(torch.rand(4, 6) < 0.5, 64)
    counts, indices = pattern.keys(6)
    assert torch.equal(AttentionPattern(counts, indices, 64).map(4)[0, 0], pattern.map()[0, 0].T)
    assert pattern.keys(6)[0] is counts
    pattern.counts[:] = 1
    assert pattern.keys(6)[0] is not counts


def test_a_copy_on_another_device_is_kept_until_the_lists_change():
    pattern = AttentionPattern.from_map(torch.rand(4, 6) < 0.5, 64)
    there = pattern.to("meta")
    assert pattern.to("meta") is there and pattern.to("cpu") is pattern
    pattern.indices[:] = 0
    assert pattern.to("meta") is not there


BY_BATCH = torch.tensor([120, 290])
IDS = torch.tensor([0] * 100 + [1] * 50 + [2] * 150)
MASKS = {
    "all": (lambda b, h, q, k: q >= 0, 1, TOKENS, TOKENS),
    "causal": (lambda b, h, q, k: q >= k, 1, TOKENS, TOKENS),
    "causal from the end": (lambda b, h, q, k: q + 100 >= k, 1, 200, TOKENS),
    "documents": (lambda b, h, q, k: IDS[q] == IDS[k], 1, TOKENS, TOKENS),
    "causal documents": (lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k), 1, TOKENS, TOKENS),
    "length": (lambda b, h, q, k: k < 210, 1, TOKENS, TOKENS),
    "lengths": (lambda b, h, q, k: k < BY_BATCH[b], 2, 200, TOKENS),
    "causal length": (lambda b, h, q, k: (k < 210) & (q >= k), 1, TOKENS, TOKENS),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("side", [128, 256])
def test_block_masks(name, side):
    function, batch, queries, keys = MASKS[name]
    mask = create_block_mask(function, batch, None, queries, keys, device="cpu", BLOCK_SIZE=side)
    q, k, v = (torch.randn(2, 2, n, 64) for n in (queries, keys, keys))
    b, i, j = torch.arange(batch)[:, None, None], torch.arange(queries)[:, None], torch.arange(keys)
    elements = function(b, 0, i, j).expand(batch, queries, keys)[:, None]
    ours = sparseloom.attention(q, k, v, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, elements))
    assert AttentionPattern.from_block_mask(mask) is AttentionPattern.from_block_mask(mask)


@pytest.mark.parametrize(("function", "text"), [
    (lambda b, h, q, k: (q - k).abs() < 20, "a window of 19 tokens by elements"),
    (lambda b, h, q, k: (q >= k) & (q - k <= 64), "a window of 64 tokens by elements"),
    (lambda b, h, q, k: (q >= k) & (q - k <= 64) & (IDS[q] == IDS[k]), "on the partial blocks"),
    (lambda b, h, q, k: (q + k) % 2 == 0, "on the partial blocks"),
    (lambda b, h, q, k: k < 100 + 50 * h, "on the partial blocks"),
    (lambda b, h, q, k: q <= k, "on the partial blocks"),
], ids=["window", "causal window", "window in documents", "checkers", "by head", "anticausal"])  # fmt: skip
def test_other_mask_functions_are_refused(function, text):
    mask = create_block_mask(function, 1, 2, TOKENS, TOKENS, device="cpu")
    with pytest.raises(Error, match=rf"a mask function of causal order.* got .*lambda.*{text}"):
        AttentionPattern.from_block_mask(mask)


def test_what_the_refusal_of_a_window_names_holds_it():
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k <= 64), 1, 1, TOKENS, TOKENS, device="cpu")
    with pytest.raises(Error) as refused:
        AttentionPattern.from_block_mask(mask)
    call = str(refused.value).partition("patterns.")[2].partition(")")[0]
    made = eval(f"patterns.{call})", {"patterns": patterns})
    kept = made.map()[0, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:TOKENS, :TOKENS]
    assert made.causal and kept[(distances() >= 0) & (distances() <= 64)].all()
