"""Patterns that are graphs, and how fast signals spread through them: properties that hold for every size,
and the tables of the graphs that small-world LSTMs were built with."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sparseloom
from sparseloom import Pattern, pattern

KB = 8  # the side of a block in these tests
NODES = 576 * KB
grids = st.integers(1, 40)
seeds = st.integers(0, 2**31)
often = settings(deadline=None, max_examples=60, derandomize=True)


def made(generate, rows: int, cols: int, *numbers, **options) -> Pattern:
    return generate(rows * KB, cols * KB, KB, *numbers, **options)


def graph_of(stretched: Pattern) -> torch.Tensor:
    """The graph behind a stretched pattern: one line for each node, whose other lines are equal."""
    mask, shorter = stretched.mask, min(stretched.mask.shape)
    for axis, lines in enumerate(stretched.mask.shape):
        node = (2 * torch.arange(lines) + 1) * shorter // (2 * lines)
        first = torch.searchsorted(node, torch.arange(shorter))
        assert torch.equal(mask, mask.index_select(axis, first[node])), "lines of one node differ"
        mask = mask.index_select(axis, first)
    return mask


@often
@given(grids, grids, st.integers(0, 10), st.floats(0, 1), seeds)
def test_watts_strogatz_on_any_grid(rows, cols, half, p, seed):
    n = min(rows, cols)
    assume(half == 0 or 2 * half < n)
    graph = graph_of(made(pattern.watts_strogatz, rows, cols, 2 * half, p, seed))
    assert torch.equal(graph, graph.T) and graph.diagonal().all()
    assert int(graph.sum()) == n * (2 * half + 1)


@often
@given(st.integers(3, 7), st.integers(3, 7), grids, st.integers(0, 4), st.floats(0, 1), seeds)
def test_tori_on_any_grid(height, width, more, half, p, seed):
    n = height * width
    assume(2 * half < (height - 1 + height % 2) * (width - 1 + width % 2))
    graph = graph_of(made(pattern.watts_strogatz_2d, n, n + more, 2 * half, p, seed, height))
    assert torch.equal(graph, graph.T) and graph.diagonal().all()
    assert int(graph.sum()) == n * (2 * half + 1)


@often
@given(grids, grids, st.integers(1, 12), seeds)
def test_barabasi_albert_on_any_grid(rows, cols, m, seed):
    n = min(rows, cols)
    assume(m < n)
    graph = graph_of(made(pattern.barabasi_albert, rows, cols, m, seed))
    assert torch.equal(graph, graph.T) and graph.diagonal().all()
    assert int(graph.sum()) == 2 * m * (n - m) + n + m * (m - 1)
    assert int(graph.sum(0).min()) >= m + (m < n)


@often
@given(grids, grids, st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_strided_and_fixed_are_their_formulas(rows, cols, stride, summary, causal):
    summary = min(summary, stride)
    n = min(rows, cols)
    q, k = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    order = (k <= q) | torch.tensor(not causal)
    apart = (q - k).abs()
    expected = ((apart < stride) | (apart % stride == 0)) & order
    assert torch.equal(graph_of(made(pattern.strided, rows, cols, stride, causal)), expected)
    expected = ((q // stride == k // stride) | (k % stride >= stride - summary)) & order
    assert torch.equal(graph_of(made(pattern.fixed, rows, cols, stride, summary, causal)), expected)


@often
@given(grids, grids, st.integers(0, 6))
def test_butterflies_have_a_node_for_each_power_of_two(rows, cols, factors):
    nodes = 1 << int(math.log2(min(rows, cols)))
    assume(factors <= math.log2(nodes))
    found = made(pattern.butterfly, rows, cols, factors or None)
    number = [(2 * torch.arange(side) + 1) * nodes // (2 * side) for side in (rows, cols)]
    differ = number[0][:, None] ^ number[1][None, :]
    most = 1 << (factors or int(math.log2(nodes)))
    assert torch.equal(found.mask, (differ & (differ - 1) == 0) & (differ < most))


@often
@given(grids, grids, st.integers(3, 12), seeds)
def test_expanders_have_their_degrees_and_their_spectrum(rows, cols, degree, seed):
    shorter, longer = min(rows, cols), max(rows, cols)
    assume(degree <= shorter)
    mask = made(pattern.expander, rows, cols, degree, seed).mask.double()
    along, across = (mask.sum(1), mask.sum(0)) if rows >= cols else (mask.sum(0), mask.sum(1))
    assert along.unique().tolist() == [degree] and across.max() - across.min() <= 1
    bound = math.sqrt(degree - 1) + math.sqrt(degree * longer / shorter - 1)
    # 2 % of what the generator's power iteration may miss.
    assert float(torch.linalg.svdvals(mask)[1]) <= 1.05 * 1.02 * bound


@often
@given(grids, grids, st.data())
def test_shuffled_boxes_are_the_boxes_with_their_columns_dealt(rows, cols, data):
    groups = data.draw(st.integers(1, min(rows, cols)))
    plain, shuffled = (made(pattern.block_diagonal, rows, cols, groups, shuffle=s) for s in (False, True))
    group = plain.mask.int().argmax(0)  # the first row of a column's box: its group
    place = torch.arange(cols) - torch.searchsorted(group, group)
    order = torch.argsort(place * rows + group, stable=True)
    assert torch.equal(shuffled.mask[:, order], plain.mask)
    if cols % groups == 0:  # torch's own channel shuffle
        dealt = torch.nn.functional.channel_shuffle(torch.arange(cols).reshape(1, cols, 1, 1), groups)
        assert torch.equal(dealt.flatten(), order)


@often
@given(grids, grids, st.floats(0, 1), st.booleans(), seeds, st.data())
def test_extra_edges_serve_the_emptiest(rows, cols, density, symmetric, seed, data):
    base = made(pattern.random, rows, rows if symmetric else cols, density, seed)
    if symmetric:
        base = base | base.transposed()
    alike = bool(torch.equal(base.mask, base.mask.T)) if rows == base.mask.shape[1] else False
    off = ~torch.eye(rows, dtype=torch.bool) if alike else torch.ones_like(base.mask)
    room = int((~base.mask & off).sum()) // (2 if alike else 1)
    edges = data.draw(st.integers(0, room))
    after = pattern.extra_edges(base, edges, seed)
    assert after.blocks == base.blocks + edges * (2 if alike else 1) and (base - after).blocks == 0
    assert torch.equal((after - base).mask & ~off, torch.zeros_like(off))
    if alike and edges:
        assert torch.equal(after.mask, after.mask.T)
        degrees, before = ((p.mask & off).sum(1) for p in (after, base))
        # Whoever got more than one edge was drawn as an end, or was still among the fewest.
        assert degrees.min() >= before.min() and int((degrees - before).sum()) == 2 * edges
    with pytest.raises(sparseloom.Error, match=f"0 to {room} edges"):
        pattern.extra_edges(base, room + 1, seed)


@often
@given(grids, st.floats(0, 1), seeds, st.integers(1, 6))
def test_mixing_and_distances_are_powers_of_the_mask(n, density, seed, steps):
    one, two = (made(pattern.random, n, n, density, seed + i) for i in range(2))
    reached, expected = torch.eye(n), []
    for step in range(steps):
        reached = ((one, two)[step % 2].mask.float() @ reached > 0).float()
        expected.append(float(reached.mean()))
    assert pattern.mixing([one, two], steps) == pytest.approx(expected)
    assert pattern.mixing([one, two][: min(2, steps)]) == pytest.approx(expected[:2])
    found = pattern.distances(one, n - 1)
    now = torch.eye(n)[:, n - 1] > 0
    for step in range(n):
        assert torch.equal(found == step, now)
        now = (one.mask.float() @ now.float() > 0) & ((found > step) | (found < 0))
    assert int((found >= 0).sum()) == int((found != -1).sum())


def reference_figures(mask: torch.Tensor) -> tuple[float, float, float]:
    """Path length, diameter and clustering, by whole matrices."""
    edges = (mask | mask.T).float().fill_diagonal_(0)
    nodes = len(edges)
    steps = torch.where(edges > 0, edges, torch.inf).fill_diagonal_(0)
    for middle in range(nodes):  # Floyd & Warshall
        steps = torch.minimum(steps, steps[:, middle, None] + steps[None, middle])
    degree = edges.sum(1)
    triangles = ((edges @ edges) * edges).sum(1) / (degree * (degree - 1)).clamp(min=1)
    pairs = max(1, nodes * (nodes - 1))
    return float(steps.sum()) / pairs, float(steps.max()), float(triangles.mean())


@often
@given(st.integers(1, 30), st.floats(0, 1), seeds)
def test_figures_are_those_of_whole_matrices(n, density, seed):
    drawn = made(pattern.random, n, n, density, seed)
    length, diameter, clustering = reference_figures(drawn.mask)
    found = pattern.small_world(drawn)
    assert found.path_length == pytest.approx(length) and found.diameter == diameter
    assert found.clustering == pytest.approx(clustering, abs=1e-6)
    if math.isfinite(length) and found.degree_mean > 1:
        random_length = math.log(n) / math.log(found.degree_mean)
        figure = clustering / (found.degree_mean / n) / (length / random_length)
        assert found.figure == pytest.approx(figure, rel=1e-5)
    else:
        assert found.figure == 0


# Measured with networkx on 576 nodes: mean path length, clustering, small-world figure, percent reached. Over
# five seeds within 5, 10 and 10 %, and 3 points.
@pytest.mark.parametrize(
    ("generate", "numbers", "length", "clustering", "figure", "mixed"),
    [
        (pattern.barabasi_albert, (8,), 2.52, 0.079, None, [2.9, 45, 99.8, 100]),
        (pattern.watts_strogatz, (16, 0.20), 2.93, 0.370, 10.4, [3, 19.6, 85, 100]),
        (pattern.watts_strogatz, (16, 0.05), 3.53, 0.592, None, [3]),
        (pattern.watts_strogatz, (16, 0.0), 18.5, 0.70, None, [3]),
        (pattern.watts_strogatz, (16, 1.0), 2.60, 0.025, 0.8, [3]),
        (pattern.biregular, (17 / 576,), 2.07, 0.056, None, [3, 40, 100]),
        (pattern.expander, (17,), 2.07, 0.056, None, [3, 40, 100]),
    ],
)
def test_graphs_are_as_small_a_world_as_networkx_s(generate, numbers, length, clustering, figure, mixed):
    drawn = [generate(NODES, NODES, KB, *numbers, seed=seed) for seed in range(5)]
    worlds = [pattern.small_world(each) for each in drawn]
    mean = lambda name: sum(getattr(world, name) for world in worlds) / 5  # noqa: E731
    assert mean("path_length") == pytest.approx(length, rel=0.05)
    assert mean("clustering") == pytest.approx(clustering, rel=0.10)
    if figure:
        assert mean("figure") == pytest.approx(figure, rel=0.10)
    shares = [pattern.mixing(each, len(mixed)) for each in drawn]
    for expected, found in zip(mixed, zip(*shares, strict=True), strict=True):
        assert 100 * sum(found) / 5 == pytest.approx(expected, abs=min(3, 0.1 * expected))


def test_graphs_take_seeds_and_refuse_what_is_no_graph():
    make = lambda seed: pattern.watts_strogatz(640, 640, 32, 4, 0.3, seed)  # noqa: E731
    assert make(3) == make(3) != make(4)
    assert make(torch.Generator().manual_seed(1)) == make(torch.Generator().manual_seed(1))
    assert pattern.barabasi_albert(640, 640, 32, 2, 1) == pattern.barabasi_albert(640, 640, 32, 2, 1)
    square = pattern.full(64, 64, 32)
    for wrong, said in {
        lambda: pattern.watts_strogatz(640, 320, 32, 10, 0.3): "10 nodes, the grid's shorter side",
        lambda: pattern.watts_strogatz(640, 640, 32, 3, 0.3): "k even",
        lambda: pattern.watts_strogatz(640, 640, 32, 4, 1.3): r"p in \[0, 1\]",
        lambda: pattern.watts_strogatz(640, 640, 32, 4, "x"): r"p in \[0, 1\]",
        lambda: pattern.watts_strogatz(640, 640, 32, 4.5, 0.3): "k to be an int",
        lambda: pattern.watts_strogatz_2d(416, 416, 32, 4, 0.3): "3 x 3 nodes, got 1 x 13",
        lambda: pattern.watts_strogatz_2d(512, 512, 32, 4, 0.3, height=5): "divides the 16 nodes",
        lambda: pattern.watts_strogatz_2d(512, 512, 32, 4, 0.3, height=0): "height to be an int >= 1",
        lambda: pattern.barabasi_albert(640, 640, 32, 0): "m from 1",
        lambda: pattern.barabasi_albert(640, 640, 32, 20): "m from 1",
        lambda: pattern.strided(640, 640, 32, 0): "stride >= 1",
        lambda: pattern.strided(640, 640, 32, 4, causal=1): "causal to be True or False",
        lambda: pattern.fixed(640, 640, 32, 4, 5): "summary from 1",
        lambda: pattern.butterfly(640, 640, 32, 5): "0 to 4 factors",
        lambda: pattern.butterfly(640, 640, 32, 0): "factors to be an int >= 1",
        lambda: pattern.expander(640, 640, 32, 2): "degree from 3 to 20",
        lambda: pattern.block_diagonal(640, 640, 32, 2, shuffle=3): "shuffle to be True or False",
        lambda: pattern.extra_edges(square.mask, 1): "a Pattern",
        lambda: pattern.mixing([]): "at least one pattern",
        lambda: pattern.mixing([square, 3]): "a Pattern, or a list of them",
        lambda: pattern.mixing([square, pattern.full(96, 96, 32)]): "pattern 1 to take the 64 features",
        lambda: pattern.mixing(square, 0): "steps to be an int >= 1",
        lambda: pattern.distances(square, 2): "a start among the 2 blocks",
        lambda: pattern.small_world(pattern.full(64, 96, 32)): "as many block rows",
        lambda: pattern.small_world(square.mask): "a Pattern",
    }.items():
        with pytest.raises(sparseloom.Error, match=said):
            wrong()
