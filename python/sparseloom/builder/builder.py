"""SparsityBuilder: makes tensors of a model sparse by name, in a copy or in place."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import named_init
from .._checks import as_optimizers
from ..errors import Error
from ..layouts import Csr, Dense, Layout
from ..ops.registry import Registry
from ..patch.exchange import Exchange
from ..patch.survey import require_patchable
from ..sparsify import DENSE, KeepAll
from ..tensors.base import require_registry
from ..tensors.sparsifying import Format, require_sparsifier
from .interms import Intermediate, OutputHook, Traced, modules_named, refuse_script
from .weights import Weights, WeightSpec, hook_gradient

_OP = "SparsityBuilder"
Kind = str | type[Layout]


@named_init
class SparsityBuilder:
    """Collects which tensors of a model become sparse, and in which format; then makes a sparse copy, or
    changes the model.

    Args:
        model: any nn.Module.
        registry: where its tensors look up implementations; None stands for the one in use at each call.

    Names are those of ``named_parameters`` and ``named_modules``, or regexes that match them whole
    (re.fullmatch); of several that match, the last one counts. Sparsifiers and formats are those of
    ``sparsified_op``.
    """

    def __init__(self, model: nn.Module, registry: Registry | None = None) -> None:
        require_patchable(_OP, model)
        require_registry(_OP, registry)
        self.model, self.registry = model, registry
        self._weights: dict[str, WeightSpec] = {}
        self._weight_grads: dict[str, Format] = {}
        self._interms: dict[str, Format] = {}
        self._interm_grads: dict[str, Format] = {}

    def set_weight(
        self,
        name: str,
        initial_sparsifier: Any = KeepAll(),  # noqa: B008 - frozen
        inline_sparsifier: Any = KeepAll(),  # noqa: B008
        tmp_format: Kind = Dense,
        external_sparsifier: Any = KeepAll(),  # noqa: B008
        out_format: Kind = Csr,
        input_statistics: Tensor | None = None,
    ) -> None:
        """Makes a weight sparse: the three sparsifiers run once, one after the other, when the model is
        built; what an optimizer writes afterwards keeps the format.

        An nn.Linear becomes an nn.SparseLinear by ``sparsify_``. Any other module keeps its class; its weight
        is a SparseTensor, made from values and an index by torch's parametrization. With ``Dense`` the weight
        stays dense, with zeros. ``input_statistics`` is passed to the sparsifiers' Context.
        """
        if not isinstance(input_statistics, (Tensor, type(None))):
            got = type(input_statistics).__name__
            raise Error(_OP, "a tensor as input_statistics, or None", got, "leave them out")
        require_sparsifier(_OP, initial_sparsifier)
        target_format = Format.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._weights[_regex(name)] = WeightSpec(
            initial_sparsifier, target_format, input_statistics, self.registry
        )

    def set_weight_grad(
        self,
        name: str,
        inline_sparsifier: Any = KeepAll(),  # noqa: B008
        tmp_format: Kind = Dense,
        external_sparsifier: Any = KeepAll(),  # noqa: B008
        out_format: Kind = Dense,
    ) -> None:
        """Makes each gradient of a weight sparse. The gradient of a sparse weight's values is sparsified as a
        gradient of the weight, and stays in the values' format."""
        target_format = Format.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._weight_grads[_regex(name)] = target_format

    def set_interm(
        self,
        name: str,
        inline_sparsifier: Any = KeepAll(),  # noqa: B008
        tmp_format: Kind = Dense,
        external_sparsifier: Any = KeepAll(),  # noqa: B008
        out_format: Kind = Dense,
    ) -> None:
        """Makes an intermediate sparse: the output of the modules with that name. Where no module has it, a
        node of that name in the traced forward (torch.fx) of a module is meant: ``layer.gelu`` is the node
        ``gelu`` of ``layer``. A trace keeps the value that ``training`` had."""
        target_format = Format.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._interms[_regex(name)] = target_format

    def set_interm_grad(
        self,
        name: str,
        inline_sparsifier: Any = KeepAll(),  # noqa: B008
        tmp_format: Kind = Dense,
        external_sparsifier: Any = KeepAll(),  # noqa: B008
        out_format: Kind = Dense,
    ) -> None:
        """Makes the gradient of an intermediate sparse; names as in ``set_interm``."""
        target_format = Format.of((inline_sparsifier, tmp_format, external_sparsifier, out_format))
        self._interm_grads[_regex(name)] = target_format

    def get_sparse_model(self) -> nn.Module:
        """Returns a sparse copy of the model, which is not changed. Raises Error as the in-place version."""
        copied = copy.deepcopy(self.model)
        for original, copied_parameter in zip(self.model.parameters(), copied.parameters(), strict=True):
            copied_parameter.grad = original.grad  # sparsifiers may ask for it; a copy has none
        sparse = self._build(copied, [])
        for parameter in sparse.parameters():
            parameter.grad = None
        return sparse

    def sparsify_model_inplace(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Makes the model itself sparse, without a copy. ``optimizer``, one or several, gets the new
        Parameters with the state of what is stored.

        Raises Error for a name that nothing has, for a weight that the format cannot store or that several
        modules share, and for a node of the model's own forward, which only a copy can have. Whatever is
        raised, model and optimizers are as before.
        """
        self._build(self.model, as_optimizers(_OP, optimizer), in_place=True)

    def _build(self, model: nn.Module, optimizers: list[Optimizer], in_place: bool = False) -> nn.Module:
        traced = Traced(model)
        interms, grads = self._resolved(model, traced), self._named(model, self._weight_grads)
        weights = Weights(model, self._named(model, self._weights))
        for path in {path for path, node, _, _ in interms if node is not None}:
            if not path and in_place:
                remedy = "use get_sparse_model, or name a node of a module inside"
                raise Error(_OP, "nodes of modules inside the model", "one of its own forward", remedy)
            traced.require_traceable(path, weights.parametrized(path))
        for name in grads:
            if not model.get_parameter(name).requires_grad:
                raise Error(_OP, f"{name} to train", "a frozen weight", "call requires_grad_() on it first")
        with Exchange(model).whole(optimizers, weights.written()) if in_place else nullcontext():
            weights.put(optimizers)
            for name, target_format in grads.items():
                path, _, attribute = name.rpartition(".")
                hook_gradient(model.get_submodule(path), attribute, target_format, self.registry)
            for path, node, out, grad in interms:
                if node is not None:
                    traced.insert(path, node, Intermediate(out, grad, self.registry))
            sparse = traced.put()
            for path, node, out, grad in interms:
                if node is None:
                    hook = OutputHook(path, Intermediate(out, grad, self.registry))
                    module: Any = sparse.get_submodule(path)
                    module.register_forward_hook(hook)
                    module.__prepare_scriptable__ = refuse_script
        return sparse

    def _resolved(self, model: nn.Module, traced: Traced) -> list[tuple[str, Any, Format, Format]]:
        """Returns (module's name, node or None, format, gradient's format) of each intermediate."""
        dense = Format.of(DENSE)
        formats_of: dict[tuple[str, Any], list[Format]] = {}
        for which, requests in enumerate((self._interms, self._interm_grads)):
            for regex, target_format in requests.items():
                pattern = re.compile(regex)
                keys: list[tuple[str, Any]] = [(name, None) for name in modules_named(model, pattern)]
                keys = keys or list(traced.nodes_named(pattern))
                if not keys:
                    names = [name for name, _ in model.named_modules() if name]
                    failed = f"; not traced: {', '.join(traced.failed[:3])}" if traced.failed else ""
                    raise _nothing(f"a module or a traced node for {regex!r}", regex, names, failed)
                for key in keys:
                    formats_of.setdefault(key, [dense, dense])[which] = target_format
        return [(path, node, *formats) for (path, node), formats in formats_of.items()]  # type: ignore[misc]

    def _named(self, model: nn.Module, requests: dict[str, Any]) -> dict[str, Any]:
        """Returns {name: request}."""
        requested: dict[str, Any] = {}
        names = [name for name, _ in model.named_parameters()]
        for regex, request in requests.items():
            matching = [name for name in names if re.fullmatch(regex, name)]
            if not matching:
                raise _nothing(f"a weight for {regex!r}", regex, names)
            requested |= dict.fromkeys(matching, request)
        return requested


def _regex(name: str) -> str:
    expected, remedy = "a name or a regular expression", "escape dots and brackets of a regex"
    if not isinstance(name, str):
        raise Error(_OP, expected, repr(name), "pass a str; of a compiled one its .pattern")
    try:
        re.compile(name)
    except re.error as error:
        raise Error(_OP, expected, f"{name!r} ({error})", remedy) from error
    return name


def _nothing(expected: str, regex: str, names: Iterable[str], note: str = "") -> Error:
    similar = difflib.get_close_matches(regex.replace("\\", ""), list(names), 3, 0.4)
    remedy = f"names are matched whole; near ones are {', '.join(similar) or 'none'}{note}"
    return Error(_OP, expected, "none", remedy)
