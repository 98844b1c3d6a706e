"""Runs a model over the calibration data block by block: the inputs of one block lie on the CPU, and only
the block that runs lies on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..errors import Error
from ..recover.padding import Padding, Paddings, tensors_of
from ..report.inputs import run, running
from .chains import Chain, first_tensor
from .modes import Autocast, autocast_now, autocasting
from .residence import Residence
from .statistics import Observer

_OP = "prune_"


class _Reached(BaseException):
    """Ends a run of the model behind the last block; no handler of the model's own catches it."""


class Data:
    """The batches of a calibration, checked: anything that ``forward`` takes; by default a tensor is the
    model's argument, a mapping its named arguments, and a tuple or list all of its arguments."""

    def __init__(self, data: Iterable[Any], forward: Callable[[nn.Module, Any], object] | None) -> None:
        if isinstance(data, (Tensor, str, bytes, Mapping)) or not isinstance(data, Iterable):
            remedy = "pass a list of batches, or a DataLoader; one batch in a list: data=[batch]"
            raise Error(_OP, "data to be an iterable of batches", type(data).__name__, remedy)
        # transformers' BatchEncoding is a mapping that tree_map takes for a leaf
        self.batches = [dict(batch) if isinstance(batch, Mapping) else batch for batch in data]
        self._forward = forward or _called
        self._autocast = autocast_now()
        if not self.batches:
            remedy = "pass 100 to 1000 samples; an iterator that was used up is empty"
            raise Error(_OP, "at least one batch of data", "none", remedy)
        for number, batch in enumerate(self.batches):
            tensors = tensors_of(batch)
            if forward is None and not tensors:
                remedy = "pass tensors, or forward=lambda model, batch: ..."
                raise Error(_OP, "batches with tensors", f"{type(batch).__name__} as batch {number}", remedy)
            for tensor in tensors:
                if not tensor.numel():
                    got = f"{list(tensor.shape)} in batch {number}"
                    raise Error(_OP, "batches with elements", got, "leave empty batches out")
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    raise Error(_OP, "finite data", f"NaN or Inf in batch {number}", "leave that batch out")

    def run(self, model: nn.Module, batch: Any) -> object:
        """Runs the model on one batch, in autocast if the caller is."""
        with autocasting(self._autocast):
            return self._forward(model, batch)


def _called(model: nn.Module, batch: Any) -> object:
    if isinstance(batch, (Tensor, Mapping, tuple, list)):
        with running(_OP, "a batch"):
            return run(model, batch)
    raise Error(
        _OP,
        "a tensor, mapping, tuple or list as batch",
        type(batch).__name__,
        "pass forward=, a function of the model and a batch",
    )


class Stream:
    """The arguments of a chain's blocks for all batches, at the block that comes next."""

    def __init__(self, chain: Chain, residence: Residence) -> None:
        self._chain, self._residence = chain, residence
        self._rest: list[list[tuple[Any, Any]]] = []  # of each batch and block: the other arguments
        self.hidden: list[Tensor] = []  # of each batch: the input of the block that comes next
        self.paddings: list[Padding] = []
        self._autocast: list[list[Autocast]] = []  # of each batch and block

    def capture(self, model: nn.Module, data: Data, others: Sequence[nn.Module]) -> None:
        """Runs the model up to the chain for each batch: its first block computes, and the others hand their
        input on, so that each is called with its own arguments. ``others`` are the blocks of other chains."""
        before, paddings = None, Paddings(model)
        first = {id(module) for module in self._chain.blocks[0].modules()}
        later = (module for block in self._chain.blocks[1:] for module in block.modules())
        with self._residence.running(others, (module for module in later if id(module) not in first)):
            for batch in data.batches:
                calls: list[tuple[Any, Any]] = []
                self._autocast.append([])
                with self._handing_on(calls), suppress(_Reached):
                    data.run(model, self._residence.there(batch))
                hidden, rest = self._taken(calls)
                before = rest = _shared(rest, before)
                self.hidden.append(hidden)
                self._rest.append(rest)
                self.paddings.append(paddings.of(batch))

    def arguments(self, at: int, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of block ``at`` for a batch, on the device."""
        args, kwargs = self._rest[batch][at]
        key, hidden = self._chain.key, self.hidden[batch]
        if self._residence.device is None:
            hidden = hidden.clone()  # a block may write to its input, and runs more than once
        if isinstance(key, str):
            kwargs = {**kwargs, key: hidden}
        else:
            args = (*args[:key], hidden, *args[key:])
        there: tuple[tuple[Any, ...], dict[str, Any]] = self._residence.there((args, kwargs))
        return there

    def others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns a block's arguments without what the one before handed on."""
        key = self._chain.key
        return [each for place, each in [*enumerate(args), *kwargs.items()] if place != key]

    def autocasting(self, at: int, batch: int) -> AbstractContextManager[None]:
        """Returns the state of autocast in which the model calls block ``at`` with a batch."""
        return autocasting(self._autocast[batch][at])

    def run(self, at: int, observer: Observer | None = None, keep: bool = False) -> list[Tensor]:
        """Runs block ``at``, which is on the device, on all batches. Returns its outputs on the CPU if they
        are kept."""
        outputs = []
        for batch, padding in enumerate(self.paddings):
            args, kwargs = self.arguments(at, batch)
            if observer is not None:
                padding.encoded = tensors_of(self.others(args, kwargs))
                observer.next_batch(padding)
            with self.autocasting(at, batch):
                output = first_tensor(self._chain.blocks[at](*args, **kwargs))
            padding.encoded = ()
            assert output is not None
            if keep:
                outputs.append(self._residence.home(output))
        return outputs

    def _another(self, at: int) -> Error:
        got = f"another input of {self._chain.names[at]}, or none, in batch {len(self._rest)}"
        remedy = "prune with data that the model treats alike, in calls of their own"
        return Error(_OP, "each block's output to enter the next one, as in the first batch", got, remedy)

    @contextmanager
    def _handing_on(self, calls: list[tuple[Any, Any]]) -> Iterator[None]:
        blocks, outputs, handed = self._chain.blocks, list[Any](), list[Any]()
        last = len(blocks) - 1

        def forward_of(at: int, own: Any) -> Any:
            def forward(*args: Any, **kwargs: Any) -> Any:
                hidden = _taken(self._chain.key, args, kwargs)
                if len(calls) != at or (at and hidden is not first_tensor(handed[-1])):
                    raise self._another(at)
                calls.append((args, kwargs))
                self._autocast[-1].append(autocast_now())
                if at == last:
                    raise _Reached
                if at == 0:
                    outputs.append(own(*args, **kwargs))
                    return outputs[0]
                output = outputs[0]
                return type(output)((hidden, *output[1:])) if isinstance(output, (tuple, list)) else hidden

            return forward

        handles = [  # the last hooks: what the model's own have made of the output
            block.register_forward_hook(lambda block, args, output: handed.append(output)) for block in blocks
        ]
        owns = [vars(block).get("forward") for block in blocks]
        try:
            for at, block in enumerate(blocks):
                block.forward = forward_of(at, block.forward)
            yield
        finally:
            for handle in handles:
                handle.remove()
            for block, own in zip(blocks, owns, strict=True):
                if own is None:
                    del block.forward
                else:
                    block.forward = own

    def _taken(self, calls: Sequence[tuple[Any, Any]]) -> tuple[Tensor, list[tuple[Any, Any]]]:
        """Returns the input of the first block, and all blocks' other arguments, on the CPU; tensors that
        several blocks get are stored once."""
        if len(calls) != len(self._chain.blocks):
            raise self._another(len(calls))
        key, memo = self._chain.key, dict[int, Tensor]()

        def home(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) not in memo:
                memo[id(leaf)] = self._residence.home(leaf)
            return memo[id(leaf)]

        rest, hidden = [], None
        for args, kwargs in calls:
            if isinstance(key, str):
                taken, kwargs = kwargs[key], {k: v for k, v in kwargs.items() if k != key}
            else:
                taken, args = args[key], args[:key] + args[key + 1 :]
            hidden = taken if hidden is None else hidden
            rest.append(tree_map(home, (args, kwargs)))
        assert isinstance(hidden, Tensor)
        if not bool(hidden.isfinite().all()):
            got = f"NaN or Inf before {self._chain.names[0]}"
            raise Error(_OP, "finite inputs of the first block", got, "check the data")
        return self._residence.home(hidden), rest


def _taken(key: int | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(key, str):
        return kwargs.get(key)
    return args[key] if key < len(args) else None


def _shared(rest: Any, before: Any) -> Any:
    """Returns arguments in which tensors equal to those of the batch before are the same: masks and
    positions of batches of one length."""
    if before is None:
        return rest
    leaves, shape = tree_flatten(rest)
    others, other_shape = tree_flatten(before)
    if shape != other_shape:
        return rest
    memo: dict[int, Any] = {}
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(leaf, Tensor) and id(leaf) not in memo:
            same = isinstance(other, Tensor) and other.dtype == leaf.dtype and torch.equal(leaf, other)
            memo[id(leaf)] = other if same else leaf
    return tree_unflatten([memo.get(id(leaf), leaf) for leaf in leaves], shape)
