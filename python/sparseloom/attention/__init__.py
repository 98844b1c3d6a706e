"""Attention over kept blocks: the call, its patterns, and what other libraries call it through."""

from .call import attention as attention
from .merge import merge as merge
from .pattern import AttentionPattern as AttentionPattern
