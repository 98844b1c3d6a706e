"""The built-in methods, each composed of its five parts. Steps are those of the optimizer.

Recipes take them by name too, with their defaults: method="rigl". Steps that are not given are those of a
short training, of a thousand steps.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch

from .._arguments import named_arguments, renamed
from .._checks import not_negative, whole
from ..errors import Error
from . import gradients, regrow, schedules, select
from .method import Method
from .scores import Learned, Norm


@named_arguments
def magnitude(at: int = 1000, norm: str = "l2", scope: str = "layer") -> Method:
    """Block magnitude pruning: trains dense, keeps the blocks with the largest ``norm`` after step ``at``,
    and trains those."""
    return Method(Norm(norm), select.TopK(scope), schedules.Cubic(at, at), gradients.Masked())


@renamed(begin="start")
def gradual(
    start: int = 0,
    end: int = 1000,
    every: int = 100,
    norm: str = "l2",
    scope: str = "layer",
    returns: bool = True,
) -> Method:
    """Gradual magnitude pruning (Zhu & Gupta 2017): density 1 at ``start`` falls to the target at ``end``
    along a cubic. With ``returns``, pruned weights keep their values, and a block may come back with them;
    without, they are zero from then on."""
    rule = gradients.Straight(share=0.0) if returns else gradients.Masked()
    return Method(Norm(norm), select.TopK(scope), schedules.Cubic(start, end, every), rule)


@renamed(end_step="end")
def set_(
    every: int = 100,
    share: float = 0.3,
    end: int | None = None,
    seed: int | torch.Generator = 0,
    warm_up: int = 0,
    grace: int = 0,
) -> Method:
    """SET (Mocanu et al. 2018): every ``every`` steps the weakest ``share`` of the blocks is dropped, and as
    many others grow at random, from zero. ``warm_up`` and ``grace`` are as in
    ``rigl``."""
    moving = regrow.Random(share, seed=seed, warm_up=warm_up, grace=grace)
    return Method(schedule=schedules.Constant(every, end), regrow=moving)


@renamed(end_step="end")
def rigl(
    end: int | None = None,
    every: int = 100,
    share: float = 0.3,
    steps: int = 1,
    warm_up: int = 0,
    grace: int = 0,
) -> Method:
    """RigL (Evci et al. 2020): as SET, but the blocks with the largest gradient grow, and the share falls
    along a cosine to ``end``, three quarters of the training (None: it stays). The optimizer's step is made
    as well, where the paper skips it. ``steps``: the gradient is summed over so many steps before a change,
    the paper's is of one. With Adam, take ``optim.AdamW``: torch's has no correction for the moments of new
    blocks, whose first hundred steps are several times too large.

    The rules of SMET (Xiao et al. 2026, arXiv 2606.00888) for Adam: ``optim.AdamW`` begins the count of steps
    anew for a new block, ``warm_up`` lets its rate rise on a line over so many steps, and
    ``densities.rates`` divides rates by the density. ``grace`` keeps a new block for so many steps: it starts
    at zero, and without that most are the weakest, and dropped, at the next change."""
    moving = regrow.Gradient(share, steps=steps, warm_up=warm_up, grace=grace)
    return Method(schedule=schedules.Constant(every, end), regrow=moving)


@renamed(begin="start")
def decreasing(start: int = 0, end: int = 1000, every: int = 100, share: float = 0.3) -> Method:
    """Prune and grow under a falling budget (as in BLaST, Okanovic et al. 2025): RigL's changes along gradual
    pruning's cubic. With share 0 it is gradual pruning without return."""
    return Method(
        schedule=schedules.Cubic(start, end, every),
        gradient=gradients.Masked(),
        regrow=regrow.Gradient(share),
    )


@renamed(begin="start")
def movement(start: int = 0, end: int = 1000, every: int = 10, lr: float | None = None) -> Method:
    """Movement pruning (Sanh et al. 2020): scores, zero at first, gather -lr * sum of G * W; the best ones
    stay, along gradual pruning's cubic. ``lr`` is that of the scores, often larger than the weights'."""
    rule = gradients.Scores(lr=lr)
    return Method(Learned("zeros"), select.TopK(), schedules.Cubic(start, end, every), rule)


@renamed(begin="start")
def soft_movement(
    start: int = 0, end: int = 1000, every: int = 10, penalty: float = 1.0, lr: float | None = None
) -> Method:
    """Soft movement pruning (Sanh et al. 2020): blocks stay whose sigmoid of the score is above a threshold,
    which rises to half of one at ``end``. The penalty on these sigmoids decides on the density, so that none
    is given. Add ``Run.penalty()`` to the loss."""
    schedules.Cubic(start, end, every)  # checks them
    rising = schedules.Rising(0.5 * every / max(1, end - start), start, end, end, every)
    rule = gradients.Scores(lr=lr, squash=True, penalty=penalty)
    return Method(Learned("zeros"), select.Threshold(), rising, rule)


@named_arguments
def supermask(frozen: bool = False, lr: float | None = None) -> Method:
    """Supermasks of blocks, as superblock trains them (Ramanujan et al. 2020): random scores choose the
    blocks from the first step on, weights train along unless ``frozen``."""
    return Method(Learned("kaiming"), select.TopK(), gradient=gradients.Scores(frozen=frozen, lr=lr))


@named_arguments
def spartan(end: int = 1000, warm_up: int = 200, sharpness: float = 20.0) -> Method:
    """Spartan (Tai et al. 2022): the density falls linearly to the target in ``warm_up`` steps; the soft
    factors sharpen until ``end``, four fifths of the training, when the mask is fixed."""
    schedule = schedules.Sharpening(warm_up, end)
    return Method(Norm("l1"), select.TopK(), schedule, gradients.Transport(sharpness))


@named_arguments
def l0(penalty: float, drop: float = 0.5, lr: float | None = None) -> Method:
    """L0 regularisation by hard-concrete gates (Louizos et al. 2018). ``penalty`` decides on the density, so
    that none is given. Add ``Run.penalty()`` to the loss."""
    return Method(Learned("open", drop), select.TopK(), gradient=gradients.HardConcrete(penalty, lr))


@renamed(begin="start")
def group_lasso(rate: float, threshold: float, start: int, turn: int, end: int, every: int = 10) -> Method:
    """Group lasso on blocks with a rising threshold, as for block-sparse RNNs (Narang et al. 2017): blocks
    shrink by lr * ``rate`` in each step, and those whose norm is below the threshold, which has risen to
    ``threshold`` at ``end``, are pruned. They decide on the density, so that none is given."""
    schedules.Rising(0.0, start, turn, end, every)  # checks them
    changes = ((turn - start) + 1.5 * (end - turn)) / every
    rising = schedules.Rising(threshold / max(1.0, changes), start, turn, end, every)
    return Method(Norm("l2"), select.Threshold(), rising, gradients.Masked(), regrow.GroupLasso(rate))


#: The rules of ``semi24``: the gradient rule, and what happens after a step, for a decay.
_RULES: dict[str, Callable[[float], tuple[gradients.Gradient, regrow.Regrow | None]]] = {
    "ste": lambda decay: (gradients.Straight(), None),
    "masked": lambda decay: (gradients.Straight(share=0.0), None),
    "sr_ste": lambda decay: (gradients.Straight(decay=decay), None),
    "sr_ste_decoupled": lambda decay: (gradients.Straight(), regrow.PrunedDecay(decay)),
    "cast": lambda decay: (gradients.Straight(), regrow.PrunedDecay(decay, adaptive=True)),
    "s_ste": lambda decay: (gradients.Soft(), None),
}


@named_arguments
def semi24(
    rule: str = "sr_ste",
    every: int = 10,
    end: int | None = None,
    prune: str | None = None,
    decay: float = 2e-4,
) -> Method:
    """2:4 training of a dense weight, for ``InLayout("semi24", method=...)``: Y and dX by 2:4 products, dW
    dense; the mask is chosen anew by |w| every ``every`` steps, before ``end``.

    ``rule``: "ste" gives the weight the whole gradient, "masked" its kept part. "sr_ste" adds ``decay``
    times the pruned weights to it (Zhou et al. 2021, arXiv 2102.04010), "sr_ste_decoupled" subtracts that
    after the step; "cast" shrinks them by ``decay`` over the root of Adam's second moment (after Huang et al.
    2025, arXiv 2509.25996, whose products are dense until the end). "s_ste" has soft thresholds (Hu et al.
    2024, arXiv 2409.09099). ``prune`` is select.Semi24's: transposable_greedy, for s_ste magnitude.
    ``Run.dense_tail()`` ends the sparse phase, ``Run.flip_rates()`` says how much masks still change. Raises
    Error for another rule, a negative decay, and steps below 1.
    """
    if rule not in _RULES:
        expected = f"a rule of {', '.join(map(repr, _RULES))}"
        raise Error("methods.semi24", expected, repr(rule), "pass one of them")
    if prune is None:
        prune = "magnitude" if rule == "s_ste" else "transposable_greedy"
    if rule == "s_ste" and prune != "magnitude":
        expected = 'prune="magnitude" with s_ste, whose threshold is that of a group of a row'
        raise Error("methods.semi24", expected, repr(prune), "leave prune out")
    not_negative("methods.semi24", "decay", decay)
    whole("methods.semi24", "every", every, 1)
    if end is not None:
        whole("methods.semi24", "end", end, 1)
    gradient, after = _RULES[rule](decay)
    schedule = schedules.Constant(every, end)
    return Method(Norm("l1"), select.Semi24(prune), schedule, gradient, after)


@renamed(warm_up="start", phase="every")
def ac_dc(start: int = 100, every: int = 100, end: int = 1000) -> Method:
    """AC/DC (Peste et al. 2021): compressed and dense phases in turn; what was pruned starts a dense phase at
    zero, with zero moments."""
    return Method(schedule=schedules.Alternating(start, every, end), gradient=gradients.Masked())


#: The functions of this module by the names that recipes take.
_BY_NAME: dict[str, Callable[..., Method]] = {
    "ac_dc": ac_dc,
    "decreasing": decreasing,
    "gradual": gradual,
    "group_lasso": group_lasso,
    "l0": l0,
    "magnitude": magnitude,
    "movement": movement,
    "rigl": rigl,
    "semi24": semi24,
    "set": set_,
    "soft_movement": soft_movement,
    "spartan": spartan,
    "supermask": supermask,
}


def by_name(op: str, method: Any) -> Method | None:
    """Returns a method as it is, and that of a name with its defaults; None for None. Raises Error for
    another name, for a method without defaults, and for anything else."""
    if method is None or isinstance(method, Method):
        return method
    if not isinstance(method, str):
        remedy = 'pass method="rigl", or one of sparseloom.sparsify.methods: methods.rigl(end=7500)'
        raise Error(op, "method to be a Method or its name", repr(method), remedy)
    make = _BY_NAME.get("set" if method == "set_" else method)
    if make is None:
        close = difflib.get_close_matches(method, _BY_NAME, 1, 0.5)
        remedy = f"did you mean {close[0]!r}?" if close else "pass one of them"
        raise Error(op, f"a method of {', '.join(_BY_NAME)}", repr(method), remedy)
    try:
        return make()
    except Error as error:
        remedy = f"pass {method} with its arguments: methods.{make.__name__}(...)"
        raise Error(op, f"{error.expected} of {method!r}", error.actual, remedy) from None
