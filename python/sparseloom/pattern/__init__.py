"""Pattern (the set of blocks that a weight stores), the generators of patterns, and how fast signals spread
through them."""

from .generators import Seed as Seed
from .generators import balanced as balanced
from .generators import banded as banded
from .generators import biregular as biregular
from .generators import block_diagonal as block_diagonal
from .generators import draw_seed as draw_seed
from .generators import from_mask as from_mask
from .generators import full as full
from .generators import random as random
from .graphs import barabasi_albert as barabasi_albert
from .graphs import butterfly as butterfly
from .graphs import expander as expander
from .graphs import extra_edges as extra_edges
from .graphs import fixed as fixed
from .graphs import strided as strided
from .graphs import watts_strogatz as watts_strogatz
from .graphs import watts_strogatz_2d as watts_strogatz_2d
from .heads import Head as Head
from .heads import head_shape as head_shape
from .heads import heads_without_blocks as heads_without_blocks
from .measures import SmallWorld as SmallWorld
from .measures import distances as distances
from .measures import mixing as mixing
from .measures import small_world as small_world
from .pattern import Block as Block
from .pattern import Pattern as Pattern
from .pattern import PatternStats as PatternStats
from .pattern import block_shape as block_shape
from .scored import block_count as block_count
from .scored import from_dense as from_dense
from .scored import from_nonzero as from_nonzero
from .scored import require_any_scope as require_any_scope
from .scored import require_scope as require_scope
from .scored import top_k as top_k
