"""Finds the lists of repeated blocks of a model: modules that are called one after the other, each with what
the one before returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..patch.forms import Site
from ..recover.padding import tensors_of


@dataclass(eq=False)
class Chain:
    """Blocks in the order of their calls, with the sites in each. ``key`` is the place of a block's input
    among its arguments: a number or a name."""

    names: list[str]
    blocks: list[nn.Module]
    sites: list[list[Site]]
    key: int | str = 0
    hidden_bytes: int = 0  # of the input of the first block for one batch


@dataclass
class _Calls:
    """The calls of a container's children in one run of the model."""

    container: nn.Module
    name: str
    children: list[tuple[str, nn.Module]]
    called: list[int] = field(default_factory=list)
    inputs: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    hidden_bytes: int = 0


def chains_of(model: nn.Module, sites: Sequence[Site], run: Callable[[], object]) -> list[Chain]:
    """Returns the chains that hold sites, in the order of their calls. ``run`` runs the model once.

    A container counts whose children are called once each, in their order, each with the very tensor that
    the one before returned (or has first in a tuple), and no other that depends on one before. Of containers
    inside each other that counts which has the most children with sites. Sites outside of all chains, and
    those that several blocks share, are in none.
    """
    holders = _holders(model, sites)
    watched = [
        _Calls(module, name, list(module.named_children()))
        for name, module in model.named_modules()
        if _is_container(module) and _with_sites(module, holders) > 1
    ]
    order: list[int] = []
    handles = [handle for calls in watched for handle in _watch(calls, order)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    keys = {id(calls.container): _key(calls) for calls in watched}
    chosen: list[_Calls] = []
    for calls in sorted(watched, key=lambda each: -_with_sites(each.container, holders)):
        inside = {id(module) for other in chosen for module in other.container.modules()}
        around = {id(other.container) for other in chosen}
        overlaps = id(calls.container) in inside or any(
            id(module) in around for module in calls.container.modules()
        )
        if keys[id(calls.container)] is not None and not overlaps:
            chosen.append(calls)
    chosen.sort(key=lambda calls: order.index(id(calls.container)))
    chains = [_chain(calls, keys[id(calls.container)], sites) for calls in chosen]
    counts = Counter(id(site) for chain in chains for of_block in chain.sites for site in of_block)
    for chain in chains:  # what several blocks share is pruned once, by the inputs of all of them
        chain.sites = [[site for site in each if counts[id(site)] == 1] for each in chain.sites]
    return chains


def parts_of(model: nn.Module, sites: Sequence[Site]) -> list[nn.Module]:
    """Returns the children of the outermost containers that hold sites in several of them; of a child that
    holds a container with more, that one's children."""
    holders, parts = _holders(model, sites), list[nn.Module]()

    def most(module: nn.Module) -> int:
        """Returns how many children with sites the widest container in a module has."""
        return max(
            (_with_sites(each, holders) for each in module.modules() if _is_container(each)), default=0
        )

    def walk(module: nn.Module) -> None:
        count = _with_sites(module, holders) if _is_container(module) else 0
        for child in module.children():
            if count > 1 and most(child) <= count:
                parts.append(child)
            else:
                walk(child)

    walk(model)
    return parts


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def first_tensor(output: Any) -> Tensor | None:
    """Returns what a block hands on: its output, or the first of several."""
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def _holders(model: nn.Module, sites: Sequence[Site]) -> set[int]:
    own = {id(site.module) for site in sites}
    return {id(module) for module in model.modules() if any(id(inner) in own for inner in module.modules())}


def _with_sites(container: nn.Module, holders: set[int]) -> int:
    return sum(id(child) in holders for child in container.children())


def _watch(calls: _Calls, order: list[int]) -> list[Any]:
    def before(at: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            order.append(id(calls.container))
            calls.called.append(at)
            calls.inputs.append((args, kwargs))

        return hook

    def after(module: nn.Module, args: Any, output: Any) -> None:
        calls.outputs.append(output)

    handles: list[Any] = []
    for at, (_, child) in enumerate(calls.children):
        handles.append(child.register_forward_pre_hook(before(at), with_kwargs=True))
        handles.append(child.register_forward_hook(after))
    return handles


def _key(calls: _Calls) -> int | str | None:
    """Returns where the children take what the one before returned; None if they are no chain."""
    count = len(calls.children)
    if calls.called != list(range(count)) or len(calls.outputs) != count:
        return None
    keys = set[int | str]()
    for (args, kwargs), output in zip(calls.inputs[1:], calls.outputs, strict=False):
        handed = first_tensor(output)
        places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        found = [key for key, value in places if handed is not None and value is handed]
        if len(found) != 1:  # two would have to follow the block before
            return None
        keys.add(found[0])
    (args, kwargs), key = calls.inputs[0], keys.pop()
    first = kwargs.get(key) if isinstance(key, str) else args[key] if key < len(args) else None
    if keys or not isinstance(first, Tensor) or _hands_on_more(calls, key):
        return None
    calls.hidden_bytes = first.numel() * first.element_size()
    return key


def _hands_on_more(calls: _Calls, key: int | str) -> bool:
    """Returns whether a child gets a second tensor that one before it made, such as the c of h, c = f(h, c):
    it would have to be computed anew as the children change. One that the first child makes of no input of
    its own, such as the position bias of T5, is as good as one from outside."""
    made = dict[int, int]()  # id of a tensor: the child that made it
    given = {id(tensor) for tensor in tensors_of(calls.inputs[0])}
    for at, (args, kwargs) in enumerate(calls.inputs):
        others = {name: value for name, value in kwargs.items() if name != key}
        others_of = [value for place, value in enumerate(args) if place != key]
        for tensor in tensors_of((others_of, others)):
            if id(tensor) in given:
                continue
            if id(tensor) in made and (made[id(tensor)] or not _is_constant(calls, key, tensor)):
                return True
            given.add(id(tensor))
        for tensor in tensors_of(calls.outputs[at]):
            if id(tensor) not in given:
                made.setdefault(id(tensor), at)
    return False


def _is_constant(calls: _Calls, key: int | str, tensor: Tensor) -> bool:
    """Returns whether the first child makes the same tensor of another input."""
    args, kwargs = calls.inputs[0]
    hidden = kwargs[key] if isinstance(key, str) else args[key]
    if not hidden.is_floating_point():
        return False
    other = torch.zeros_like(hidden)
    if isinstance(key, str):
        kwargs = {**kwargs, key: other}
    else:
        args = (*args[:key], other, *args[key + 1 :])
    again = tensors_of(calls.children[0][1](*args, **kwargs))
    pairs = zip(tensors_of(calls.outputs[0]), again, strict=False)
    return any(one is tensor and torch.equal(one, two) for one, two in pairs)


def _chain(calls: _Calls, key: int | str | None, sites: Sequence[Site]) -> Chain:
    assert key is not None
    inside = [{id(module) for module in child.modules()} for _, child in calls.children]
    names = [f"{calls.name}.{name}" if calls.name else name for name, _ in calls.children]
    blocks = [child for _, child in calls.children]
    of_blocks = [[site for site in sites if id(site.module) in modules] for modules in inside]
    return Chain(names, blocks, of_blocks, key, calls.hidden_bytes)
