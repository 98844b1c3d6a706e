"""Inductor's share of the operators: a pass that moves what follows a product into its epilogue.

Importing Inductor takes as long as importing torch, so importing this package does not. Every compilation
that meets one of our operators runs its fake kernel first, which calls ``join``.
"""

import sys


def join() -> None:
    """Lets Inductor run our pass behind the user's, if it is what compiles. Each compilation calls this
    anew, because a program may set passes of its own, for good or for one compilation, at any time."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        from .beside import join_users  # it imports Inductor's classes

        join_users(config)
