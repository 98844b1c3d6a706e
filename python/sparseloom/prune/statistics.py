"""Observes what enters the weights of a model while it runs, and sums up its squares and products."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import Error
from ..patch.forms import Site
from ..patch.forms.attention import AttentionForm
from ..patch.forms.conv import ConvForm
from ..patch.forms.conv1x1 import Conv1x1Form
from ..patch.forms.recurrent import RecurrentForm
from ..recover.padding import Padding, counted
from .recurrences import inputs_of
from .windows import way_of, windows_of

_OP = "prune_"
#: Tokens that are converted to float32 at once.
_TOKENS = 8192


@dataclass(eq=False)
class Statistics:
    """What is known of the inputs x of one layer.

    ``tokens`` is their number, ``squares`` [in features] the mean of the squares of each input, and
    ``hessian`` [in features, in features] the mean of x x^T; None where nobody asked for it. They are float32
    (float64 for float64 inputs), on the device of the block. ``weight`` is the layer's [out features, in
    features], before it is pruned. The in features of a convolution are its inputs times its taps, and its
    tokens the positions of its output.
    """

    weight: Tensor
    tokens: int = 0
    squares: Tensor | None = None
    hessian: Tensor | None = None
    means: Tensor | None = None  # [in features], of the inputs themselves


class Sums:
    """The sums over the inputs of one weight, or of several that read the same tensor (q, k and v)."""

    def __init__(self, cols: int, gram: bool) -> None:
        self._cols, self._needs_gram = cols, gram
        self.tokens = 0
        self._sum: Tensor | None = None
        self._squares: Tensor | None = None
        self._gram: Tensor | None = None
        self._hessian: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Adds tokens x [tokens, in features]."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if self._squares is None or self._sum is None:
            self._sum = torch.zeros(self._cols, dtype=dtype, device=x.device)
            self._squares = torch.zeros(self._cols, dtype=dtype, device=x.device)
            if self._needs_gram:
                self._gram = torch.zeros(self._cols, self._cols, dtype=dtype, device=x.device)
        self.tokens += len(x)
        for part in x.split(_TOKENS):
            part = part.to(dtype)
            self._sum += part.sum(0)
            if self._gram is None:
                self._squares += part.square().sum(0)
            else:
                self._gram.addmm_(part.t(), part)
        if self._gram is not None:
            self._squares = self._gram.diagonal()

    def join(self, other: Sums) -> None:
        """Adds the sums over other tokens."""
        assert self._squares is not None and other._squares is not None
        assert self._sum is not None and other._sum is not None
        self.tokens += other.tokens
        self._sum += other._sum
        if self._gram is not None and other._gram is not None:
            self._gram += other._gram
            self._squares = self._gram.diagonal()
        else:
            self._squares += other._squares

    def copy(self) -> Sums:
        """Returns sums of their own memory."""
        made = copy.copy(self)
        made._gram = None if self._gram is None else self._gram.clone()
        squares = self._squares
        made._sum = None if self._sum is None else self._sum.clone()
        made._squares = (
            made._gram.diagonal() if made._gram is not None else None if squares is None else squares.clone()
        )
        return made

    def statistics(self, site: Site) -> Statistics:
        """Returns the means. Raises Error if there were no inputs, or one is NaN or infinite."""
        if self._squares is None or self._sum is None or not self.tokens:
            remedy = "pass batches that reach it, or leave it out of the pattern"
            raise Error(_OP, f"inputs of {site.name} in the data", "none", remedy)
        if not bool(self._squares.isfinite().all()):
            got = f"NaN or Inf among those of {site.name}"
            raise Error(_OP, "finite inputs of all layers", got, "check the data and the weights before it")
        if self._hessian is None and self._gram is not None:  # one tensor for all weights that share it
            self._hessian = self._gram / self.tokens
        means = self._squares / self.tokens, self._hessian, self._sum / self.tokens
        return Statistics(matrix_of(site), self.tokens, *means)


class _Read(NamedTuple):
    tensor: Tensor
    writes: int
    way: tuple[object, ...]

    def same(self, other: _Read) -> bool:
        return self.tensor is other.tensor and self[1:] == other[1:]


class Observer:
    """Hooks on the modules of some weights. ``padding`` says which tokens of the batch that runs count.

    Weights that read the same tensors in the first batch (q, k and v) share their sums from then on.
    """

    def __init__(self, sites: Sequence[Site], gram: bool) -> None:
        self._sites, self._gram = sites, gram
        self._sums: dict[int, Sums] = {}
        self._leader: dict[int, int] | None = None  # of the weights that share; None in the first batch
        # of this batch and each weight: its inputs, how often each had been written to by then, and how it
        # reads them
        self._inputs: dict[int, list[_Read]] = {}
        self._last: tuple[_Read, Sums] | None = None
        self._inside: set[int] = set()
        self.padding = Padding()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observes while the body runs."""
        handles = []
        try:
            for module, sites in _by_module(self._sites).items():
                hook = self._hook_of(sites)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def next_batch(self, padding: Padding) -> None:
        """Ends the batch before. Raises Error where weights that share their sums read other tensors in
        it."""
        self._end_batch()
        self.padding = padding

    def statistics(self, site: Site) -> Statistics:
        """Returns what was observed. Raises Error if that was nothing, or is not finite."""
        self._end_batch()
        key = (self._leader or {}).get(id(site), id(site))
        return self._sums.get(key, Sums(0, self._gram)).statistics(site)

    def _end_batch(self) -> None:
        read = {
            key: sorted((id(x), writes, str(way)) for x, writes, way in each)
            for key, each in self._inputs.items()
        }
        if self._leader is None and read:
            first = {tuple(each): key for key, each in reversed(read.items())}
            self._leader = {key: first[tuple(each)] for key, each in read.items()}
            for key, leader in self._leader.items():
                if key != leader:
                    del self._sums[key]
        for key, leader in (self._leader or {}).items():
            if read and read.get(key) != read.get(leader):
                names = " and ".join(site.name for site in self._sites if id(site) in (key, leader))
                remedy = "prune these layers in calls of their own"
                got = f"{names}, which did so in the first batch alone"
                raise Error(_OP, "layers that read the same tensors to do so in every batch", got, remedy)
        self._inputs, self._last = {}, None

    def _hook_of(self, sites: Sequence[Site]) -> Any:
        if isinstance(sites[0].form, AttentionForm):
            return self._attention_hook(sites)
        return (
            self._recurrent_hook(sites) if isinstance(sites[0].form, RecurrentForm) else self._hook(sites[0])
        )

    def _hook(self, site: Site) -> Any:
        slides = isinstance(site.form, (Conv1x1Form, ConvForm))

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            self._count(site, _Read(x, x._version, way_of(module) if slides else ()))

        return hook

    def _recurrent_hook(self, sites: Sequence[Site]) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            named = dict(zip(("input", "hx"), args, strict=False)) | kwargs
            inputs = dict(inputs_of(module, named["input"], named.get("hx")))
            for site in sites:
                self._add(site, inputs[site.weight])

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
        tokens = counted(x.detach(), self.padding.of(site.module, x))
        self._of(site).add(tokens.reshape(-1, x.shape[-1]))

    def _of(self, site: Site) -> Sums:
        return self._sums.setdefault(id(site), Sums(matrix_of(site).shape[1], self._gram))

    def _count(self, site: Site, read: _Read) -> None:
        self._inputs.setdefault(id(site), []).append(read)
        if self._leader is None:
            # each weight has its own sums until it is known which go together
            self._join(site, *self._sums_over(site, read))
        elif self._leader.get(id(site), id(site)) == id(site):
            self._add_read(self._of(site), site, read)

    def _sums_over(self, site: Site, read: _Read) -> tuple[Sums, bool]:
        """Returns the sums over one tensor, and whether they are new: those of the tensor that was read last
        are made once."""
        if self._last is not None and self._last[0].same(read):
            return self._last[1], False
        sums = Sums(matrix_of(site).shape[1], self._gram)
        self._add_read(sums, site, read)
        self._last = read, sums
        return sums, True

    def _add_read(self, sums: Sums, site: Site, read: _Read) -> None:
        x, mask = read.tensor.detach(), self.padding.of(site.module, read.tensor)
        if not read.way:
            sums.add(counted(x, mask).reshape(-1, x.shape[-1]))
            return
        for sample, windows in enumerate(windows_of(site.module, x)):
            fits = mask is not None and mask.shape == (len(x), *windows.shape[:-1])
            tokens = windows[mask[sample].to(x.device)] if fits and mask is not None else windows
            sums.add(tokens.reshape(-1, windows.shape[-1]))

    def _join(self, site: Site, sums: Sums, new: bool) -> None:
        own = self._sums.get(id(site))
        if own is None:
            self._sums[id(site)] = sums if new else sums.copy()
            return
        own.join(sums)
        if own is sums:  # it read its tensor twice
            self._last = None


def _by_module(sites: Sequence[Site]) -> dict[nn.Module, list[Site]]:
    grouped: dict[nn.Module, list[Site]] = {}
    for site in sites:
        grouped.setdefault(site.module, []).append(site)
    return grouped


def matrix_of(site: Site) -> Tensor:
    """Returns the weight as [out features, in features], of a convolution [out, in x taps]."""
    return site.value.flatten(1)
