"""Observes what enters the weights of a model while it runs, and sums up its squares and products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..patch.forms import Site
from ..patch.forms.attention import AttentionForm
from ..patch.forms.conv1x1 import Conv1x1Form

_OP = "prune_"
#: Tokens that are converted to float32 at once.
_TOKENS = 8192


@dataclass(eq=False)
class Statistics:
    """What is known of the inputs x of one layer.

    ``tokens`` is their number, ``squares`` [in features] the mean of the squares of each input, and
    ``hessian`` [in features, in features] the mean of x x^T; None where nobody asked for it. They are float32
    (float64 for float64 inputs), on the device of the block. ``weight`` is the layer's [out features, in
    features], before it is pruned.
    """

    weight: Tensor
    tokens: int = 0
    squares: Tensor | None = None
    hessian: Tensor | None = None


class Sums:
    """The sums over the inputs of one weight, or of several that read the same tensor (q, k and v)."""

    def __init__(self, cols: int, gram: bool) -> None:
        self._cols, self._needs_gram = cols, gram
        self.tokens = 0
        self._squares: Tensor | None = None
        self._gram: Tensor | None = None
        self._hessian: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Adds tokens x [tokens, in features]."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if self._squares is None:
            self._squares = torch.zeros(self._cols, dtype=dtype, device=x.device)
            if self._needs_gram:
                self._gram = torch.zeros(self._cols, self._cols, dtype=dtype, device=x.device)
        self.tokens += len(x)
        for part in x.split(_TOKENS):
            part = part.to(dtype)
            if self._gram is None:
                self._squares += part.square().sum(0)
            else:
                self._gram.addmm_(part.t(), part)
        if self._gram is not None:
            self._squares = self._gram.diagonal()

    def statistics(self, site: Site) -> Statistics:
        """Returns the means. Raises Error if there were no inputs, or one is NaN or infinite."""
        if self._squares is None or not self.tokens:
            remedy = "pass batches that reach it, or leave it out of the pattern"
            raise Error(_OP, f"inputs of {site.name} in the data", "none", remedy)
        if not bool(self._squares.isfinite().all()):
            got = f"NaN or Inf among those of {site.name}"
            raise Error(_OP, "finite inputs of all layers", got, "look at the data and the weights before it")
        if self._hessian is None and self._gram is not None:  # one tensor for all weights that share it
            self._hessian = self._gram / self.tokens
        return Statistics(site.value, self.tokens, self._squares / self.tokens, self._hessian)


class Observer:
    """Hooks on the modules of some weights. ``padding`` is a bool mask [batch, tokens] of the batch that
    runs: what it leaves out is not counted."""

    def __init__(self, sites: Sequence[Site], gram: bool) -> None:
        self._sites, self._gram = sites, gram
        self._sums: dict[int, Sums] = {}
        self._leader: dict[int, int] = {}
        # of this batch: (input, how often it was written to, the site that counts it)
        self._seen: list[tuple[Tensor, int, int]] = []
        self._inside: set[int] = set()
        self.padding: Tensor | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observes while the body runs."""
        handles = []
        try:
            for module, sites in _by_module(self._sites).items():
                hook = self._attention_hook(sites) if _is_attention(sites) else self._hook(sites[0])
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def next_batch(self, padding: Tensor | None = None) -> None:
        """Forgets the inputs of the batch before, which may lie at the same place in memory."""
        self._seen.clear()
        self.padding = padding

    def statistics(self, site: Site) -> Statistics:
        """Returns what was observed. Raises Error if that was nothing, or is not finite."""
        return self._of(self._leader.get(id(site), id(site)), site.shape[1]).statistics(site)

    def _of(self, key: int, cols: int) -> Sums:
        if key not in self._sums:
            self._sums[key] = Sums(cols, self._gram)
        return self._sums[key]

    def _hook(self, site: Site) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            self._count(site, x.movedim(1, -1) if isinstance(site.form, Conv1x1Form) else x)

        return hook

    def _attention_hook(self, sites: Sequence[Site]) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if id(module) in self._inside:
                return
            named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            for site in sites:
                if site.weight == "in_proj_weight":
                    query, key, value = named["query"], named["key"], named["value"]
                    self._add(site, query)
                    if key is not query:  # one statistic for the stacked weight of all three
                        self._add(site, key)
                    if value is not key and value is not query:
                        self._add(site, value)
                    continue
                # out_proj is no module that is called: as the identity it returns what it would get
                assert isinstance(module, nn.MultiheadAttention)
                weight, bias = module.out_proj.weight, module.out_proj.bias
                swapped = {
                    "out_proj.weight": torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
                }
                if bias is not None:
                    swapped["out_proj.bias"] = torch.zeros_like(bias)
                self._inside.add(id(module))
                try:
                    mixed = torch.func.functional_call(module, swapped, args, kwargs)[0]
                finally:
                    self._inside.discard(id(module))
                self._add(site, mixed)

        return hook

    def _add(self, site: Site, x: Tensor) -> None:
        self._of(id(site), site.shape[1]).add(self._tokens(x))

    def _count(self, site: Site, x: Tensor) -> None:
        seen = (key for tensor, writes, key in self._seen if tensor is x and writes == x._version)
        leader = next(seen, None)
        if leader is None:
            leader = id(site)
            self._seen.append((x, x._version, leader))
            if self._leader.setdefault(id(site), leader) == leader:
                self._add(site, x)
                return
        elif self._leader.setdefault(id(site), leader) == leader:
            return
        remedy = "prune these layers in calls of their own"
        got = f"{site.name}, which did so in the first batch alone"
        raise Error(_OP, "layers that read one tensor to do so in every batch", got, remedy)

    def _tokens(self, x: Tensor) -> Tensor:
        return counted(x.detach(), self.padding).reshape(-1, x.shape[-1])


def counted(x: Tensor, padding: Tensor | None) -> Tensor:
    """Returns the tokens of x [batch, tokens, features] that count, all of x where its shape is another."""
    if padding is None or x.dim() != 3 or x.shape[:2] != padding.shape:
        return x
    return x[padding.to(x.device)]


def padding_of(batch: object) -> Tensor | None:
    """Returns the tokens of a batch that count, bool [batch, tokens], where it says so."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()):
        return mask.bool()
    return None


def _by_module(sites: Sequence[Site]) -> dict[nn.Module, list[Site]]:
    grouped: dict[nn.Module, list[Site]] = {}
    for site in sites:
        grouped.setdefault(site.module, []).append(site)
    return grouped


def _is_attention(sites: Sequence[Site]) -> bool:
    return isinstance(sites[0].form, AttentionForm)
