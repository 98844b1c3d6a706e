"""Forwards: what the forwards of a model's modules call, by torch.fx and by their source, and what of it
holds in every call."""

from __future__ import annotations

import copy
import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from .sources import handed_on, read

#: The most ways to call a forward that are traced: each argument that may be None, True or False doubles
#: them.
_MOST = 32
_MORE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Forwards:
    """The forwards of a model's modules, each traced when it is asked for, in every mode."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._found: dict[nn.Module, list[fx.Graph] | str] = {}

    def around(self, name: str) -> tuple[nn.Module, str] | None:
        """Returns the innermost module around the one of that name that has a forward, which lists have not,
        and the name seen from there."""
        parts = name.split(".") if name else []
        for count in reversed(range(len(parts))):
            module = self.model.get_submodule(".".join(parts[:count]))
            if type(module).forward is not nn.Module.forward:
                return module, ".".join(parts[count:])
        return None

    def of(self, module: nn.Module) -> list[fx.Graph] | str:
        """Returns the calls of a module's forward, one graph for each mode; or why there are none."""
        if module not in self._found:
            self._found[module] = _traced(module)
        return self._found[module]

    def unproven(self, within: str, names: Sequence[str]) -> str:
        """Returns where the source of the module ``within``, or of those around it, could call one of its
        parts otherwise than ``of`` found; "" where nothing does."""
        owner = self.model.get_submodule(within)
        if is_sequence(owner):
            return self._not_whole(within)
        kind = type(owner).__name__
        firsts = {name.partition(".")[0] for name in names}
        if (found := read(type(owner), firsts)) is None:
            return f"the source of {kind} cannot be read"
        for first, _, rest in (name.partition(".") for name in names):
            if (places := (found.methods if rest else found.uses)[first]) > 1:
                return f"{kind} uses {first} in {places} places"
        last = {name.rpartition(".")[2] for name in names}
        parts = within.split(".") if within else []
        for count in range(len(parts)):
            around = type(self.model.get_submodule(".".join(parts[:count])))
            others = read(around, last)
            if others is not None and others.inside:
                return f"{around.__name__} calls {min(others.inside)} of another module"
        return ""

    def _not_whole(self, name: str) -> str:
        """Returns why an nn.Sequential of that name might be run in part; "" where it is always called as
        one."""
        if not name or (around := self.around(name)) is None:
            return ""
        owner, own = around
        if is_sequence(owner):
            return self._not_whole(name[: -len(own) - 1] if name != own else "")
        graphs, kind = self.of(owner), type(owner).__name__
        first, _, rest = own.partition(".")
        if (found := read(type(owner), {first})) is None:
            return f"the source of {kind} cannot be read"
        if not rest and found.uses[first]:
            whole = found.uses[first] == found.calls[first]
            return "" if whole else f"{kind} takes {first} apart"
        if isinstance(graphs, str):
            return graphs
        targets = [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_module"]
        if own not in targets or any(target.startswith(f"{own}.") for target in targets):
            return f"{kind} does not call {own} as one"
        return ""


def is_sequence(module: nn.Module) -> bool:
    """Returns whether a module calls its children one after the other, and does nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


@contextmanager
def untouched(module: nn.Module) -> Iterator[Callable[[], bool]]:
    """Puts a module's own attributes, buffers and the random generators back as they were. Gives what tells
    afterwards whether the body changed them."""
    changes = list[bool]()
    held = {name: (value, _content(value)) for name, value in vars(module).items()}
    buffers = [(each, each.detach().clone()) for each in module.buffers(recurse=False) if not each.is_meta]
    drawn, drawn_by_python = torch.get_rng_state(), random.getstate()
    try:
        yield lambda: any(changes)
    finally:
        now = vars(module)
        changes.append(not torch.equal(torch.get_rng_state(), drawn) or random.getstate() != drawn_by_python)
        torch.set_rng_state(drawn)
        random.setstate(drawn_by_python)
        for name, (value, content) in held.items():
            same = name in now and now[name] is value and _ids(value) == _ids(content)
            changes.append(name != "training" and not same)
            if content is not None and _ids(value) != _ids(content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)
            now[name] = value
        for name in now.keys() - held.keys():
            changes.append(True)
            del now[name]
        with torch.no_grad():
            for each, before in buffers:
                if not torch.equal(each, before):
                    changes.append(True)
                    each.copy_(before)


def _content(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, (dict, list, set)) else None


def _ids(value: Any) -> Any:
    if isinstance(value, dict):
        return [(id(key), id(each)) for key, each in value.items()]
    return [id(each) for each in value] if isinstance(value, (list, set)) else None


class _Tracer(fx.Tracer):
    """Records the call of any child as one node, so that a forward alone is traced. ``way`` has the arguments
    that are no tensors; where the forward asks what the tensors decide, ``answers`` tell, and once they are
    used up: False."""

    def __init__(self, way: dict[str, Any], answers: Sequence[bool]) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.way, self.answers = way, list(answers)
        self._asked = 0

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Returns what calls the forward by the names of its arguments. fx's own cannot take those behind a
        decorator, and gives a Proxy for *args and **kwargs, which no call can hand on."""
        given = {
            name: self.way[name] if name in self.way else self.create_proxy("placeholder", name, (), {})
            for name, each in inspect.signature(root_fn).parameters.items()
            if each.kind not in _MORE
        }
        (first, *_) = given  # self
        given[first] = self.root
        return (lambda: root_fn(given.pop(first), **given)), []

    def create_arg(self, a: Any) -> Any:
        return a.__name__ if isinstance(a, type) else super().create_arg(a)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True

    def to_bool(self, obj: Any) -> bool:
        if self._asked == len(self.answers):
            self.answers.append(False)
        self._asked += 1
        return self.answers[self._asked - 1]


def _paths(module: nn.Module, way: dict[str, Any]) -> list[fx.Graph]:
    """Returns one graph for each path that the numbers can choose. Raises what the forward does."""
    graphs, left = list[fx.Graph](), [list[bool]()]
    while left:
        answers = left.pop()
        tracer = _Tracer(way, answers)
        try:
            graphs.append(tracer.trace(module))
        except AssertionError:  # so would the call, and nothing is computed on that path
            if not tracer.answers:
                raise
        left += [[*tracer.answers[:i], True] for i in range(len(answers), len(tracer.answers))]
        if len(graphs) + len(left) > _MOST:
            raise RecursionError
    return graphs


def _traced(module: nn.Module) -> list[fx.Graph] | str:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None:
        return f"{kind} is compiled"
    if "forward" in vars(module):
        return f"the forward of {kind} was replaced"
    graphs = list[fx.Graph]()
    try:
        ways = _ways(module)
        if len(ways) > _MOST:
            return f"the forward of {kind} can be called in {len(ways)} ways"
        with untouched(module) as changed, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for training, way in itertools.product((True, False), ways):
                module.training = training  # of this one alone: its children are not run
                graphs += _paths(module, way)
    except MemoryError:
        raise
    except Exception as error:  # a forward may raise anything for what stands for a tensor
        return f"the forward of {kind} cannot be traced ({type(error).__name__})"
    return f"the forward of {kind} changes its state, or draws random numbers" if changed() else graphs


def _ways(module: nn.Module) -> list[dict[str, Any]]:
    """Returns the arguments that decide what a forward does: those that are None, True or False where a call
    leaves them out. Each is given in both ways; a tensor is what any other one stands for. Raises TypeError
    where a forward looks into its *args or **kwargs."""
    fixed, free = list[list[tuple[str, Any]]](), inspect.signature(module.forward).parameters
    special = {name for name, each in free.items() if each.kind in _MORE or _decides(each.default)}
    special -= handed_on(module) if special else set()
    for name, each in ((name, free[name]) for name in free if name in special):
        if each.kind in _MORE:
            raise TypeError
        if each.default is None:
            fixed.append([(name, None), ("", None)])
        else:
            fixed.append([(name, True), (name, False)])
    return [{name: value for name, value in way if name} for way in itertools.product(*fixed)]


def _decides(default: Any) -> bool:
    return default is None or isinstance(default, bool)
