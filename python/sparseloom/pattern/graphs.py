"""Generators of patterns that are graphs. The block rows and block columns of a square grid are the nodes,
and a block is present where an edge joins its two nodes, and on the diagonal.

A grid that is not square has the nodes of its shorter side. Along the longer side neighbouring lines stand
for one node, so that signals spread through it as through the graph.
"""

from __future__ import annotations

from .. import ops
from .._arguments import named_arguments
from .._checks import share, whole
from ..errors import Error
from .generators import Seed, draw_seed, generated, truth
from .pattern import Block, Pattern


@named_arguments
def watts_strogatz(rows: int, cols: int, block: Block, k: int, p: float, seed: Seed = None) -> Pattern:
    """Draws a small world (Watts & Strogatz 1998) of n nodes, the grid's shorter side, plus the diagonal.

    The nodes form a ring, each joined to its ``k`` nearest ones (k even, below n); then each edge moves its
    far end with probability ``p`` in [0, 1] to a node drawn uniformly. A square pattern has n (k + 1) blocks
    and is symmetric; a few steps join any two nodes. Raises Error for an odd k, or one that is too large.
    """
    numbers = whole("pattern", "k", k, None), share("pattern", p, "p")
    return generated("watts_strogatz", rows, cols, block, *numbers, seed=draw_seed(seed))


@named_arguments
def watts_strogatz_2d(
    rows: int, cols: int, block: Block, k: int, p: float, seed: Seed = None, height: int | None = None
) -> Pattern:
    """Draws the same small world on a torus of ``height`` x n / height nodes, numbered line by line.

    The ``k`` nearest nodes are those of the smallest distance in the plane: 4 are those above, below, left
    and right, 8 also the corners. Without ``height`` the torus is the squarest. Raises Error for a height
    that does not divide n, a side below 3, an odd k, or more neighbours than lie less than half a side away.
    """
    numbers = [whole("pattern", "k", k, None), share("pattern", p, "p")]
    if height is not None:
        numbers.append(whole("pattern", "height", height, 1))
    return generated("watts_strogatz_2d", rows, cols, block, *numbers, seed=draw_seed(seed))


@named_arguments
def barabasi_albert(rows: int, cols: int, block: Block, m: int, seed: Seed = None) -> Pattern:
    """Draws a graph by preferential attachment (Barabasi & Albert 1999) of n nodes, the grid's shorter side.
    It grows from ``m`` nodes, and each further node is joined to m others in proportion to the edges that
    they have.

    With the diagonal, and the first m nodes all joined to each other, a square pattern has 2 m (n - m) + n +
    m (m - 1) blocks. It is symmetric, and a few block rows have many times the mean. Raises Error for m
    outside [1, n - 1].
    """
    return generated(
        "barabasi_albert", rows, cols, block, whole("pattern", "m", m, None), seed=draw_seed(seed)
    )


@named_arguments
def extra_edges(pattern: Pattern, edges: int, seed: Seed = None) -> Pattern:
    """Adds ``edges`` edges to a pattern, one after the other, each from a node that has the fewest to one
    drawn uniformly among those that it is not joined to.

    Of a symmetric pattern an edge is two blocks, and no node is joined to itself. Of any other the block rows
    are joined to the block columns, an edge is one block, and the emptiest line, by its share of present
    blocks, comes first. Raises Error for more edges than are absent.
    """
    if not isinstance(pattern, Pattern):
        raise Error("pattern_extra_edges", "a Pattern", type(pattern).__name__, "see sparseloom.pattern")
    mask = ops.call(
        "pattern_extra_edges",
        *pattern._arguments,
        whole("pattern_extra_edges", "edges", edges, None),
        draw_seed(seed),
    )
    return Pattern(pattern.rows, pattern.cols, pattern.block, mask)


@named_arguments
def strided(rows: int, cols: int, block: Block, stride: int, causal: bool = False) -> Pattern:
    """Takes the strided pattern of sparse transformers (Child et al. 2019), both heads in one: the blocks (q,
    k) with q and k less than ``stride`` apart, or a multiple of it. ``causal`` takes those with k <= q alone.
    Raises Error for a stride below 1."""
    numbers = whole("pattern", "stride", stride, None), truth("pattern_strided", "causal", causal)
    return generated("strided", rows, cols, block, *numbers)


@named_arguments
def fixed(rows: int, cols: int, block: Block, stride: int, summary: int = 1, causal: bool = False) -> Pattern:
    """Takes the fixed pattern of sparse transformers (Child et al. 2019), both heads in one: the blocks (q,
    k) with q and k in one box of ``stride`` lines, or with k among the last ``summary`` lines of its box.
    ``causal`` takes those with k <= q alone. Raises Error for a stride below 1, or a summary outside [1,
    stride]."""
    numbers = whole("pattern", "stride", stride, None), whole("pattern", "summary", summary, None)
    return generated("fixed", rows, cols, block, *numbers, truth("pattern_fixed", "causal", causal))


@named_arguments
def butterfly(rows: int, cols: int, block: Block, factors: int | None = None) -> Pattern:
    """Joins the nodes whose numbers differ in one of the lowest ``factors`` bits, by default all: the flat
    butterfly (Chen et al. 2022, Pixelated Butterfly), the factors of a fast Fourier transform in one.

    n is the largest power of two that the grid's shorter side holds. On a square grid of n lines there are n
    (factors + 1) blocks, and log2 n steps join any two nodes. Raises Error for factors outside [1, log2 n].
    """
    numbers = [] if factors is None else [whole("pattern", "factors", factors, 1)]
    return generated("butterfly", rows, cols, block, *numbers)


@named_arguments
def expander(rows: int, cols: int, block: Block, degree: int, seed: Seed = None) -> Pattern:
    """Draws a biregular pattern in which every part is joined to the rest by about its even share of edges,
    and steps reach as many nodes as they can. Its second singular value is at most 1.05 (sqrt(a - 1) + sqrt(b
    - 1)), near the least that lines of a and b blocks allow.

    ``degree`` is a, the blocks of each line of the grid's longer side; the shorter side has the same total.
    Unlike the graphs above it is not symmetric and has no diagonal. Raises Error for a degree outside [3,
    shorter side], or where a hundred draws have no such pattern.
    """
    number = whole("pattern", "degree", degree, None)
    return generated("expander", rows, cols, block, number, seed=draw_seed(seed))
