"""Beside: our pass over joint graphs, behind those that the user has set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import autograd
from .epilogues import fold
from .gated import join_gated


class Beside(CustomGraphPass):
    """Runs the user's passes in their order, then ours: they see the operators as the model calls them."""

    def __init__(self, users: tuple[Callable[[fx.Graph], None], ...]) -> None:
        self.users = users

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.users:
            each(graph)
        fold(graph)
        join_gated(graph)

    def uuid(self) -> Any:
        """Returns the key of compiled code that was kept on disk: that of the user's passes and ours. None,
        which forbids to keep any, if one of theirs has none, as torch does for it alone."""
        theirs = tuple(each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.users)
        return None if None in theirs else (_contents(), autograd.CPU_FUSES, *theirs)


@cache
def _contents() -> str:
    own = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in own)).hexdigest()


def _has_ours(given: Any) -> bool:
    """Returns whether a pass is ours or runs ours: another copy of the package in the process has a class
    Beside of its own, which may stand behind ours."""
    return isinstance(given, Beside) or any(map(_has_ours, getattr(given, "users", ())))


def join_users(config: Any) -> None:
    """Puts our pass behind those in Inductor's config, unless it is there."""
    # The joint graph of forward and backward, before it is parted: only there does one pass see both what
    # the forward part stores and what the backward part reads. Inference has a joint graph of its own.
    now = config.joint_custom_post_pass
    users = () if now is None else tuple(now) if isinstance(now, (list, tuple)) else (now,)
    if not any(map(_has_ours, users)):
        config.joint_custom_post_pass = Beside(users)
