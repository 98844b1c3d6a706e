"""Forwards: finds the calls in the forwards of a model's modules, by torch.fx and by their source, and proves
which of them happen in every call."""

from __future__ import annotations

import copy
import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from .sources import handed_on, read

#: Torch's own modules whose forward cannot be traced -> the method in which alone they call linear1,
#: activation and linear2, in every mode that update_fast_paths leaves them.
_FEED_FORWARD: dict[type, str] = dict.fromkeys(
    (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), "_ff_block"
)
#: The largest number of traces of one forward: each argument that may be None, True or False doubles it.
_MOST = 32
_MORE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Held:
    """Stands for a function that a module holds as an attribute, while the module's forward is traced: its
    calls are nodes, which no other call of the same function is."""

    def __init__(self, owner: nn.Module, attribute: str, function: Callable[..., Any]) -> None:
        self.owner, self.attribute, self.function = owner, attribute, function
        self.__name__ = attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        proxy = next((each for each in args if isinstance(each, fx.Proxy)), None)
        if proxy is None:
            return self.function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", self, args, kwargs)


@contextmanager
def _held(module: nn.Module, functions: Collection[Any]) -> Iterator[None]:
    """Puts a Held in the place of each of the functions that is an attribute of a module."""
    attributes = vars(module)
    originals = {name: each for name, each in attributes.items() if _is_one(each, functions)}
    for name, function in originals.items():
        attributes[name] = Held(module, name, function)
    try:
        yield
    finally:
        attributes.update(originals)


def _is_one(value: Any, functions: Collection[Any]) -> bool:
    return any(value is function for function in functions)


class Forwards:
    """The forwards of a model's modules, each traced lazily, in every mode. Calls of ``functions`` that a
    module holds as attributes have a Held as their target."""

    def __init__(self, model: nn.Module, functions: Collection[Any] = ()) -> None:
        self.model, self.functions = model, functions
        self._found: dict[nn.Module, list[fx.Graph] | str] = {}

    def around(self, name: str) -> tuple[nn.Module, str] | None:
        """Returns the innermost module around the one of that name that has a forward (an nn.ModuleList has
        none), and the name relative to it."""
        parts = name.split(".") if name else []
        for count in reversed(range(len(parts))):
            module = self.model.get_submodule(".".join(parts[:count]))
            if type(module).forward is not nn.Module.forward:
                return module, ".".join(parts[count:])
        return None

    def of(self, module: nn.Module) -> list[fx.Graph] | str:
        """Returns the calls of a module's forward, one graph for each mode; or why there are none."""
        if module not in self._found:
            with _held(module, self.functions):
                self._found[module] = _traced(module)
        return self._found[module]

    def unproven(self, within: str, names: Sequence[str]) -> str:
        """Returns where the source of the module ``within``, or of modules around it, could call one of the
        parts ``names`` beyond the calls in ``of``; "" if nowhere."""
        owner = self.model.get_submodule(within)
        if is_sequence(owner):
            return self._not_whole(within)
        kind = type(owner).__name__
        firsts = {name.partition(".")[0] for name in names}
        if (source := read(type(owner), firsts)) is None:
            return f"the source of {kind} cannot be read"
        for first, _, rest in (name.partition(".") for name in names):
            if (places := (source.methods if rest else source.uses)[first]) > 1:
                return f"{kind} uses {first} in {places} places"
        last = {name.rpartition(".")[2] for name in names}
        parts = within.split(".") if within else []
        for count in range(len(parts)):
            around = type(self.model.get_submodule(".".join(parts[:count])))
            around_source = read(around, last)
            if around_source is not None and around_source.inside:
                return f"{around.__name__} calls {min(around_source.inside)} of another module"
        return ""

    def _not_whole(self, name: str) -> str:
        """Returns why an nn.Sequential of that name might be run in part; "" if it is always called as a
        whole."""
        if not name or (around := self.around(name)) is None:
            return ""
        owner, path = around
        if is_sequence(owner):
            return self._not_whole(name[: -len(path) - 1] if name != path else "")
        graphs, kind = self.of(owner), type(owner).__name__
        first, _, rest = path.partition(".")
        if (source := read(type(owner), {first})) is None:
            return f"the source of {kind} cannot be read"
        if not rest and source.uses[first]:
            only_called = source.uses[first] == source.calls[first]
            return "" if only_called else f"{kind} takes {first} apart"
        if isinstance(graphs, str):
            return graphs
        targets = [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_module"]
        if path not in targets or any(target.startswith(f"{path}.") for target in targets):
            return f"{kind} does not call {path} as one"
        return ""


def is_sequence(module: nn.Module) -> bool:
    """Returns whether a module calls its children one after the other, and does nothing else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


@contextmanager
def untouched(module: nn.Module) -> Iterator[Callable[[], bool]]:
    """Restores a module's own attributes, its buffers and the random generators after the body. Yields a
    function that returns afterwards whether the body changed them."""
    changes = list[bool]()
    saved = {name: (value, _content(value)) for name, value in vars(module).items()}
    buffers = [
        (buffer, buffer.detach().clone()) for buffer in module.buffers(recurse=False) if not buffer.is_meta
    ]
    rng_state, python_rng_state = torch.get_rng_state(), random.getstate()
    try:
        yield lambda: any(changes)
    finally:
        now = vars(module)
        changes.append(
            not torch.equal(torch.get_rng_state(), rng_state) or random.getstate() != python_rng_state
        )
        torch.set_rng_state(rng_state)
        random.setstate(python_rng_state)
        for name, (value, content) in saved.items():
            unchanged = name in now and now[name] is value and _ids(value) == _ids(content)
            changes.append(name != "training" and not unchanged)
            if content is not None and _ids(value) != _ids(content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)
            now[name] = value
        for name in now.keys() - saved.keys():
            changes.append(True)
            del now[name]
        with torch.no_grad():
            for buffer, content_before in buffers:
                if not torch.equal(buffer, content_before):
                    changes.append(True)
                    buffer.copy_(content_before)


def _content(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, (dict, list, set)) else None


def _ids(value: Any) -> Any:
    if isinstance(value, dict):
        return [(id(key), id(item)) for key, item in value.items()]
    return [id(item) for item in value] if isinstance(value, (list, set)) else None


class _Tracer(fx.Tracer):
    """Records the call of any child as one node, so that only one forward is traced. ``fixed_arguments`` are
    the arguments that are no tensors. Where the forward branches on a tensor, the next of ``answers``
    decides, and False after the last."""

    def __init__(self, fixed_arguments: dict[str, Any], answers: Sequence[bool]) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.fixed_arguments, self.answers = fixed_arguments, list(answers)
        self._asked = 0

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Returns a function that calls the forward by the names of its arguments. fx's own version cannot
        see through a decorator, and makes a Proxy of *args and **kwargs, which no call can hand on."""
        arguments = {
            name: self.fixed_arguments[name]
            if name in self.fixed_arguments
            else self.create_proxy("placeholder", name, (), {})
            for name, parameter in inspect.signature(root_fn).parameters.items()
            if parameter.kind not in _MORE
        }
        (first, *_) = arguments  # self
        arguments[first] = self.root
        return (lambda: root_fn(arguments.pop(first), **arguments)), []

    def create_arg(self, a: Any) -> Any:
        return a.__name__ if isinstance(a, type) else super().create_arg(a)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True

    def to_bool(self, obj: Any) -> bool:
        if self._asked == len(self.answers):
            self.answers.append(False)
        self._asked += 1
        return self.answers[self._asked - 1]


def _paths(module: nn.Module, fixed_arguments: dict[str, Any]) -> list[fx.Graph]:
    """Returns one graph for each path that branches on tensors can take. Raises what the forward raises."""
    graphs, pending = list[fx.Graph](), [list[bool]()]
    while pending:
        answers = pending.pop()
        tracer = _Tracer(fixed_arguments, answers)
        tracer.traced_func_name = _method_of(module)
        try:
            graphs.append(tracer.trace(module))
        except AssertionError:  # the call itself would fail, too: the path computes nothing
            if not tracer.answers:
                raise
        pending += [[*tracer.answers[:i], True] for i in range(len(answers), len(tracer.answers))]
        if len(graphs) + len(pending) > _MOST:
            raise RecursionError
    return graphs


def _traced(module: nn.Module) -> list[fx.Graph] | str:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None:
        return f"{kind} is compiled"
    if not vars(module).keys().isdisjoint(("forward", _method_of(module))):
        return f"the forward of {kind} was replaced"
    graphs = list[fx.Graph]()
    try:
        argument_sets = _ways(module)
        if len(argument_sets) > _MOST:
            return f"the forward of {kind} can be called in {len(argument_sets)} ways"
        with untouched(module) as was_changed, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for training, fixed_arguments in itertools.product((True, False), argument_sets):
                module.training = training  # only of this module: its children are not run
                graphs += _paths(module, fixed_arguments)
    except MemoryError:
        raise
    except Exception as error:  # a forward may raise anything for what stands for a tensor
        return f"the forward of {kind} cannot be traced ({type(error).__name__})"
    return f"the forward of {kind} changes its state, or draws random numbers" if was_changed() else graphs


def _ways(module: nn.Module) -> list[dict[str, Any]]:
    """Returns the sets of arguments that decide what a forward does: arguments whose default is None, True or
    False, each fixed or varied; all others are traced as tensors. Raises TypeError if a forward reads its
    *args or **kwargs."""
    fixed, free = (
        list[list[tuple[str, Any]]](),
        inspect.signature(getattr(module, _method_of(module))).parameters,
    )
    special = {
        name for name, parameter in free.items() if parameter.kind in _MORE or _decides(parameter.default)
    }
    special -= handed_on(module) if special else set()
    for name, parameter in ((name, free[name]) for name in free if name in special):
        if parameter.kind in _MORE:
            raise TypeError
        if parameter.default is None:
            fixed.append([(name, None), ("", None)])
        else:
            fixed.append([(name, True), (name, False)])
    return [{name: value for name, value in pairs if name} for pairs in itertools.product(*fixed)]


def _method_of(module: nn.Module) -> str:
    return _FEED_FORWARD.get(type(module), "forward")


def _decides(default: Any) -> bool:
    return default is None or isinstance(default, bool)
