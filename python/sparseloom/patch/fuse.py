"""fuse_ lets sparse layers apply the activations that follow them, if the forward of the module around both
proves that nothing else uses the layer's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils import parametrize

from .._home import is_ours
from ..nn import MaskedLinear
from ..nn.held.fused import Fused, FusedFunction
from ..nn.held.options import takes
from ..nn.held.sparse_weight import sparse_layers
from ..nn.linears import holder_of_convolution
from .activations import activation_of, is_activation, products_have
from .exchange import Exchange
from .sources import mentioned
from .traced import Forwards, Held

#: Functions that the products can fuse -> their names in reports.
_FUNCTIONS: dict[Any, str] = {
    F.relu: "F.relu", F.relu_: "F.relu_", torch.relu: "torch.relu", torch.relu_: "torch.relu_",
    F.gelu: "F.gelu", F.silu: "F.silu",
}  # fmt: skip
#: Those that a layer can apply in the place of an attribute that holds them -> the products' names.
_HELD: dict[Any, str] = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
_METHODS = ("relu", "relu_")
_CALLED = {"relu", "relu_", "gelu", "silu"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Behind(NamedTuple):
    """The activation after a layer that the layer applies now, or why it was not fused; both "" if none
    follows."""

    fused: str = ""
    reason: str = ""


class New(NamedTuple):
    """A sparse module of a model, the layer in it that has its values, and why that layer must not apply an
    activation ("": it may)."""

    module: nn.Module
    layer: Any
    reason: str = ""


def takes_activation(module: nn.Module, layer: Any) -> bool:
    """Returns whether the result of a sparse module is that of its layer, and whether the layer can have an
    activation."""
    is_result = module is layer or holder_of_convolution(module) is layer
    ours = is_ours(type(layer))  # a foreign forward may ignore the attribute
    return is_result and ours and (isinstance(layer, MaskedLinear) or takes(layer, "activation"))


def fuse_(model: nn.Module, layers: Sequence[New]) -> list[Behind]:
    """Lets each layer apply the activation that follows it if the result is proven to be the same, and puts a
    ``Fused`` in the activation's place. Returns the outcome for each layer."""
    search, exchange, outcomes = _Search(model), Exchange(model), list[Behind]()
    for new in layers:
        outcome, activation, name = search.behind(new)
        outcomes.append(outcome)
        if activation is not None:
            new.layer.activation = outcome.fused
        if isinstance(activation, nn.Module):
            exchange.modules.append((activation, Fused(activation, new.layer, name)))
        elif activation is not None:
            owner, attribute = activation.owner, activation.attribute
            setattr(owner, attribute, FusedFunction(activation.function, new.layer, name, owner, attribute))
    if exchange.modules:
        exchange.put()
    return outcomes


def fuse_named_(model: nn.Module, names: Collection[str]) -> None:
    """Does what ``fuse_`` does for the layers of a model that have these names, as ``names_of_fused`` gives
    them."""
    new_modules: dict[int, New] = {}
    for layer in sparse_layers(model):
        module: Any = layer.module
        if layer.matched in names and takes_activation(module, layer.weight.owner):
            new_modules[id(module)] = New(module, layer.weight.owner)
    fuse_(model, list(new_modules.values()))


@dataclass
class _Call:
    """One call of a layer in a forward, and the nodes that use its result."""

    graph: fx.Graph
    node: fx.Node

    @property
    def users(self) -> list[fx.Node]:
        return list(self.node.users)


@dataclass
class _Search:
    """Looks for the activations that follow layers."""

    model: nn.Module
    names: dict[nn.Module, list[str]] = field(default_factory=dict)
    forwards: Forwards = field(init=False)
    _known: dict[nn.Module, tuple[bool, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forwards = Forwards(self.model, _HELD)
        for name, module in self.model.named_modules(remove_duplicate=False):
            self.names.setdefault(module, []).append(name)

    def behind(self, new: New) -> tuple[Behind, nn.Module | Held | None, str]:
        """Returns the outcome for the activation after a layer; if it can be fused, also the activation, and
        the layer's name relative to the module whose forward calls both."""
        nothing = Behind(), None, ""
        name = self.names[new.module][0]
        if (around := self.forwards.around(name)) is None:
            return nothing
        owner, path = around
        has_activation = any(map(self.is_activation, _own_parts(owner))) or _holds_function(owner)
        if not has_activation and mentioned(owner).isdisjoint(_CALLED):
            return nothing  # which saves tracing it
        graphs = self.forwards.of(owner)
        if isinstance(graphs, str):
            return (Behind(reason=graphs), None, "") if has_activation else nothing
        calls = [
            _Call(graph, node)
            for graph in graphs
            for node in graph.nodes
            if _called(owner, node) is new.module
        ]
        followers = [user for call in calls for user in call.users if self._name(owner, user)]
        if not followers:
            return nothing
        activation = _called(owner, followers[0])
        if activation is None:
            return Behind(reason=f"{self._name(owner, followers[0])} is a function, not a module"), None, ""
        reason = (
            self._other_semantics(activation)
            or new.reason
            or ("" if getattr(new.layer, "activation", None) is None else "it has another one")
            or self._elsewhere(new.module, "it")
            or (self._elsewhere(activation, "its activation") if isinstance(activation, nn.Module) else "")
            or _not_alone(owner, graphs, calls, activation)
            or self.forwards.unproven(name[: -len(path) - 1], [path, _place(followers[0])])
        )
        if reason:
            return Behind(reason=reason), None, ""
        return Behind(self._named(activation)), activation, path

    def is_activation(self, module: nn.Module) -> bool:
        if module not in self._known:
            self._known[module] = is_activation(module), activation_of(module)
        return self._known[module][0]

    def _name(self, owner: nn.Module, node: fx.Node) -> str:
        """Returns the name of an activation; "" for any other node."""
        called = _called(owner, node)
        if isinstance(called, Held):
            return _FUNCTIONS[called.function]
        if called is not None:
            return type(called).__name__ if self.is_activation(called) else ""
        if node.op == "call_method":
            return f"Tensor.{node.target}" if node.target in _METHODS else ""
        return _FUNCTIONS.get(node.target, "") if node.op == "call_function" else ""

    def _named(self, activation: nn.Module | Held) -> str:
        """Returns the products' name of an activation; "" if they do not have it."""
        return _HELD[activation.function] if isinstance(activation, Held) else self._known[activation][1]

    def _other_semantics(self, activation: nn.Module | Held) -> str:
        if isinstance(activation, Held):
            return ""
        kind = type(activation).__name__
        if next(activation.parameters(), None) is not None or next(activation.buffers(), None) is not None:
            return f"{kind} has parameters or buffers"
        return "" if self._known[activation][1] else f"{kind} is none of {products_have()}"

    def _elsewhere(self, module: nn.Module, who: str) -> str:
        """Returns why a module may not be changed at all."""
        if len(self.names[module]) > 1:
            return f"{who} is used in {len(self.names[module])} places"
        if any(getattr(module, hooks, None) for hooks in _HOOKS):
            return f"{who} has hooks"
        if parametrize.is_parametrized(module):
            return f"{who} is parametrized"
        if "forward" in vars(module) or getattr(module, "_compiled_call_impl", None) is not None:
            return f"the forward of {'the layer' if who == 'it' else who} was replaced"
        return ""


def _called(owner: nn.Module, node: fx.Node) -> nn.Module | Held | None:
    if node.op == "call_module":
        return owner.get_submodule(str(node.target))
    return node.target if isinstance(node.target, Held) else None


def _place(node: fx.Node) -> str:
    """Returns the name of what a node calls, relative to the module whose forward calls it."""
    return node.target.attribute if isinstance(node.target, Held) else str(node.target)


def _holds_function(owner: nn.Module) -> bool:
    return any(value is function for value in vars(owner).values() for function in _HELD)


def _own_parts(owner: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules that a forward calls: the children, and those of lists among them."""
    for child in owner.children():
        yield from [child] if type(child).forward is not nn.Module.forward else _own_parts(child)


def _not_alone(
    owner: nn.Module, graphs: Sequence[fx.Graph], calls: Sequence[_Call], activation: nn.Module | Held
) -> str:
    """Returns why a layer and an activation are not an exclusive pair: the activation has another input, or
    the layer's result another user; "" if they are."""
    follows = [sum(_called(owner, node) is activation for node in graph.nodes) for graph in graphs]
    if (count := max(Counter(id(call.graph) for call in calls).values())) > 1:
        return f"it is called {count} times"
    if any(len(call.users) > 1 for call in calls):
        return "something else takes its result, too"
    if (count := max(follows)) > 1:
        return f"its activation is called {count} times"
    alone = all(
        _called(owner, user) is activation and user.args == (call.node,) and not user.kwargs
        for call in calls
        for user in call.users
    )
    if not alone or any(not call.users for call in calls) or sum(follows) != len(calls):
        return "its activation does not follow in every mode of the forward"
    return ""
