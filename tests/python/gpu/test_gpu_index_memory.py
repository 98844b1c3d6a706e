"""An index in device memory was validated once: no other one gets to its address and is believed, and what
is kept for that is bounded."""

import gc

import pytest
import torch
from on_gpu import sleeping

from sparseloom import Error, ops, pattern

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def blocks(side=64, density=0.5):
    """A product's lists on the CPU, the same with two columns exchanged, and the product of lists there."""
    made = pattern.random(side, side, 8, density, 1)
    index = ops.make_index(*made.index(), side, side, (8, 8))
    values, x = torch.randn(index.blocks, 8, 8, device=DEVICE), torch.randn(3, side, device=DEVICE)
    rest = None, 0, None, -1, False, False, index.digest
    return [index.packed], index.col, lambda packed: ops.call("bsr_linear", x, values, packed, side, *rest)


def elements():
    weight = torch.randn(64, 64) * (torch.rand(64, 64) < 0.5)
    csr = weight.to_sparse_csr()
    crow, col = csr.crow_indices().int(), csr.col_indices().int()
    values, x = csr.values().to(DEVICE), torch.randn(3, 64, device=DEVICE)
    return [crow, col], col, lambda *lists: ops.call("csr_linear", x, values, *lists, None, 0, None)


def both_of(kind):
    """Returns valid lists, invalid ones that no kernel could follow out of its memory, and the product."""
    lists, col, product = kind()
    good = [each.clone() for each in lists]
    col[:2] = col[:2].flip(0).clone()
    return good, lists, product


def there(lists):
    return [each.to(DEVICE, copy=True) for each in lists]


def require_refused(bad, product, tries=20):
    """So many copies, one of which gets memory that is free."""
    kept = []
    for _ in range(tries):
        kept.append(there(bad))
        with pytest.raises(Error, match="ascending"):
            product(*kept[-1])


@pytest.mark.parametrize("kind", [blocks, elements])
def test_a_freed_index_leaves_its_address_to_none_that_is_believed(kind):
    good, bad, product = both_of(kind)
    for _ in range(3):
        lists = there(good)
        expected = product(*lists)
        del lists
        torch.cuda.synchronize()
        require_refused(bad, product)
        assert torch.equal(product(*there(good)), expected)


@pytest.mark.parametrize("kind", [blocks, elements])
def test_an_index_that_was_given_other_memory_leaves_its_address_to_none(kind):
    good, bad, product = both_of(kind)
    lists = there(good)
    product(*lists)
    for each in lists:
        each.set_(torch.zeros(1, dtype=torch.int32, device=DEVICE))
    require_refused(bad, product)


def test_an_index_may_be_freed_while_a_graph_is_captured():
    good, bad, product = both_of(blocks)
    lists = there(good)
    product(*lists)
    kept = there(good)
    expected, graph = product(*kept), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del lists
        y = product(*kept)
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected)
    require_refused(bad, product)


def test_the_memory_that_is_kept_is_bounded():
    lists, _, product = blocks(4096, 0.5)  # 1.6 MB
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(80):
        product(*there(lists))
    assert torch.cuda.memory_allocated() - before <= 66 << 20
    last = there(lists)
    product(*last)
    with sleeping() as event:  # what was validated is not read again
        product(*last)
        assert not event.query()
