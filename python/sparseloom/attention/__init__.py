"""Attention over kept blocks: the call, its patterns, and what other libraries call it through."""

from . import patterns as patterns
from .call import attention as attention
from .merge import merge as merge
from .pattern import AttentionPattern as AttentionPattern
from .plans import plan as plan
from .serving import serve as serve
from .serving import use_pattern as use_pattern

# sparseloom.attention is the function, since torch.compile cannot call a module. It has the module's names
# too, so that sparseloom.attention.use_pattern is there whichever of both a program got.
attention.__dict__.update(
    AttentionPattern=AttentionPattern,
    merge=merge,
    patterns=patterns,
    plan=plan,
    serve=serve,
    use_pattern=use_pattern,
)
