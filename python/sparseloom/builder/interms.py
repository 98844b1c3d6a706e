"""The builder's intermediates: the outputs of modules, and the nodes of their traced forward."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import Error
from ..ops.registry import Registry
from ..tensors.functions import formatted
from ..tensors.sparsifying import Format

_OP = "SparsityBuilder"


class Intermediate(nn.Module):
    """Converts a tensor to a format, and its gradient to another."""

    def __init__(self, out: Format, grad: Format, registry: Registry | None) -> None:
        super().__init__()
        self.out, self.grad, self.registry = out, grad, registry
        self.calls = 0

    def __prepare_scriptable__(self) -> None:
        refuse_script()

    def forward(self, tensor: Tensor) -> Tensor:
        step = None
        if not torch.compiler.is_compiling():  # the number would be a constant of compiled code
            step, self.calls = self.calls, self.calls + 1
        return formatted(tensor, self.out, self.grad, self.registry, step)

    def extra_repr(self) -> str:
        return f"{self.out.final.name}, gradient {self.grad.final.name}"


def refuse_script() -> None:
    """Raises Error; it serves as ``__prepare_scriptable__``, which torch.jit.script calls on a module."""
    remedy = "use torch.export.export(strict=False)"
    raise Error("torch.jit.script", "a model without sparsifiers", "an intermediate with one", remedy)


@dataclass(eq=False)
class OutputHook:
    """A forward hook: converts a module's output to its format."""

    name: str
    make: Intermediate

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            remedy = "name a module inside it, or a node of its traced forward"
            raise Error(_OP, f"one tensor as the output of {self.name}", type(output).__name__, remedy)
        result: Tensor = self.make(output)
        return result


class _Flat(fx.Tracer):
    """Traces one forward, without those of the modules inside."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True


def modules_named(model: nn.Module, pattern: re.Pattern[str]) -> dict[str, nn.Module]:
    """Returns the modules whose name matches as a whole, each once."""
    by_id: dict[int, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and pattern.fullmatch(name):
            by_id.setdefault(id(module), (name, module))
    return dict(by_id.values())


class Traced:
    """The graphs of a model's modules, traced lazily, and changed all at once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.failed: list[str] = []
        self._graphs: dict[str, fx.Graph | None] = {}
        self._changed: set[str] = set()

    def nodes_named(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, fx.Node]]:
        """Yields the nodes (module's name, node) whose name, after that of the module, matches as a whole."""
        literal = pattern.pattern.replace("\\", "")
        prefix, _, node = literal.rpartition(".")
        modules = dict(self.model.named_modules())
        if node.isidentifier() and prefix in modules:  # a name, not a regex: one module is enough
            modules = {prefix: modules[prefix]}
        for path, module in modules.items():
            graph = self._graph(path, module)
            for entry in [] if graph is None else list(graph.nodes):
                full = f"{path}.{entry.name}" if path else entry.name
                if entry.op in ("call_function", "call_method", "call_module") and pattern.fullmatch(full):
                    yield path, entry

    def require_traceable(self, path: str, parametrized: bool) -> None:
        """Raises Error for a module with hooks or computed weights, which a trace would lose."""
        module, described = self.model.get_submodule(path), path or "the model"
        if getattr(module, "_forward_hooks", None) or getattr(module, "_forward_pre_hooks", None):
            remedy = "remove them, or add them after the builder"
            raise Error(_OP, f"{described} without hooks", "some, which its trace would not have", remedy)
        if parametrized or hasattr(module, "parametrizations"):
            remedy = "name the output of a module instead, or leave the weight dense"
            raise Error(_OP, f"{described} with Parameters alone", "a weight that is computed", remedy)

    def insert(self, path: str, node: fx.Node, make: nn.Module) -> None:
        """Inserts the module ``make`` after a node, before all users of its result."""
        module = self.model.get_submodule(path)
        name = next(n for i in itertools.count() if not hasattr(module, n := f"sparse_{node.name}_{i}"))
        module.add_module(name, make)
        with node.graph.inserting_after(node):
            call = node.graph.call_module(name, (node,))
        node.replace_all_uses_with(call, lambda user: user is not call)
        self._changed.add(path)

    def put(self) -> nn.Module:
        """Replaces the modules by their changed graphs, and returns the model, which may be replaced, too."""
        for path in sorted(self._changed, key=len, reverse=True):
            module = self.model.get_submodule(path)
            graph = self._graphs[path]
            assert graph is not None
            traced = fx.GraphModule(module, graph, type(module).__name__)
            if not path:
                self.model = traced
                continue
            for parent in list(self.model.modules()):
                for name, child in list(parent._modules.items()):
                    if child is module:
                        parent._modules[name] = traced
        return self.model

    def _graph(self, path: str, module: nn.Module) -> fx.Graph | None:
        if path not in self._graphs:
            self._graphs[path] = None
            if not type(module).__module__.startswith("torch.nn."):
                try:
                    self._graphs[path] = _Flat().trace(module)
                except Exception as error:
                    self.failed.append(f"{path or 'the model'} ({str(error).splitlines()[0]})")
        return self._graphs[path]
