"""Attention over kept blocks: the call, its patterns, and what other libraries call it through."""

from . import patterns as patterns
from .call import attention as attention
from .merge import merge as merge
from .pattern import AttentionPattern as AttentionPattern
from .plans import plan as plan
from .serving import serve as serve
from .serving import use_pattern as use_pattern
