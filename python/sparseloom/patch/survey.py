"""Surveys a model: lists its linear weights under all their names, and checks whether it may be changed."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import Error
from ..nn import Semi24FeedForward
from ..nn.arguments import require_module
from ..nn.held.sparse_weight import is_sparse, joined
from .forms import Site, form_of
from .forms.computed import computed_by_nncf

#: (name, id of the module, attribute, Parameter)
Owner = tuple[str, int, str, nn.Parameter]


@dataclass
class Survey:
    """Every name of a model, in four groups: linear weights, other modules with parameters of their own,
    containers, and modules with neither parameters nor children."""

    sites: list[Site] = field(default_factory=list)
    others: dict[str, nn.Module] = field(default_factory=dict)
    containers: list[str] = field(default_factory=list)
    bare: dict[str, nn.Module] = field(default_factory=dict)


def survey(model: nn.Module) -> Survey:
    """Returns the names of a model. The sites of a module used in several places come once, with all their
    names."""
    surveyed, by_module = Survey(), dict[int, list[Site]]()
    for name, module in _walk(model, ""):
        form = None if is_sparse(module) else form_of(module)
        if form is not None:
            if id(module) not in by_module:
                by_module[id(module)] = form.sites(module)
                for site in by_module[id(module)]:
                    site.around = _around(model, name)
                surveyed.sites += by_module[id(module)]
            holder = model.get_submodule(name.rpartition(".")[0]) if name else None
            for site in by_module[id(module)]:
                if isinstance(holder, Semi24FeedForward):
                    site.reader = type(holder).__name__
                site.names.append(site.matched(name))
                if site.matched(name) != name:
                    site.groups.append(name)
        elif is_sparse(module) or next(module.parameters(recurse=False), None) is not None:
            surveyed.others[name] = module
        elif next(module.children(), None) is not None:
            surveyed.containers.append(name)
        else:
            surveyed.bare[name] = module
    return surveyed


def _around(model: nn.Module, name: str) -> list[nn.Module]:
    """Returns the modules that contain the one of that name, innermost first."""
    holders = [model]
    for part in name.split(".")[:-1]:
        inner = holders[-1]._modules[part]
        assert inner is not None
        holders.append(inner)
    return holders[::-1] if name else []


def regex_of(op: str, names: object) -> re.Pattern[str]:
    """Returns the regular expression that the argument ``names`` is. Raises Error for anything else."""
    if not isinstance(names, (str, re.Pattern)):
        remedy = "pass other arguments by their names, such as optimizer="
        raise Error(op, "names as a regular expression", type(names).__name__, remedy)
    try:
        return re.compile(names)
    except re.error as error:
        got, remedy = f"{names!r} ({error})", "escape dots and brackets"
        raise Error(op, "names as a regular expression", got, remedy) from error


def require_patchable(op: str, model: nn.Module) -> None:
    """Raises Error for anything that is not a module, and for a module in a wrapper that has already
    registered the Parameters."""
    require_module(op, model)
    if computed_by_nncf(model):
        remedy = (
            "call nncf.strip(model, strip_format=nncf.StripFormat.IN_PLACE) first, or load its state_dict"
        )
        raise Error(op, "weights of the model's own", "a model whose weights nncf computes", remedy)
    wrapper = nn.parallel.DistributedDataParallel
    wrapped = any(isinstance(module, wrapper) for module in model.modules())
    if not wrapped and torch.distributed.is_available() and torch.distributed.is_initialized():
        # when the inner module was passed, the wrapper lies outside of it
        module_ids = {id(module) for module in model.modules()}
        wrapped = any(
            issubclass(type(obj), wrapper) and id(obj.module) in module_ids for obj in gc.get_objects()
        )
    if wrapped:
        remedy = (
            f"call {op} first, then wrap: DistributedDataParallel({op}'s "
            "model); it reduces the gradients it saw at wrapping"
        )
        raise Error(op, "a model that is not wrapped", "one under DistributedDataParallel", remedy)
    for name, parameter in model.named_parameters():
        # checked by name, because importing the class takes longer than the check
        if type(parameter.data).__name__ == "DTensor":
            raise Error(
                op, "whole parameters", f"{name} sharded as a DTensor", f"call {op} first, then fully_shard"
            )


def parameter_count(model: nn.Module) -> int:
    """Returns the number of elements in the model's parameters; shared ones count once."""
    return sum(0 if is_lazy(parameter) else parameter.numel() for parameter in model.parameters())


def tied_to(site: Site, owners: list[Owner]) -> str:
    """Returns the name of another Parameter that shares memory with the site's weight; "" when there is
    none."""
    holder, attribute_name = site.holder
    for name, module, attribute, parameter in owners:
        if (module, attribute) != (id(holder), attribute_name) and _same_memory(site.parameter, parameter):
            return name
    return ""


def owners_of(model: nn.Module) -> list[Owner]:
    """Returns every Parameter of every module; shared modules count once."""
    owners: list[Owner] = []
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                owners.append(
                    (f"{prefix}.{attribute}" if prefix else attribute, id(module), attribute, parameter)
                )
    return owners


def _same_memory(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    if is_lazy(b) or a.is_meta or b.is_meta or a.device != b.device or not a.numel() or not b.numel():
        return False
    if is_traceable_wrapper_subclass(a) or is_traceable_wrapper_subclass(b):
        return False  # they have no memory of their own to compare
    if (
        a.layout != torch.strided
        or b.layout != torch.strided
        or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    ):
        return False
    (a_begin, a_end), (b_begin, b_end) = _span(a), _span(b)
    return a_begin < b_end and b_begin < a_end


def _span(tensor: Tensor) -> tuple[int, int]:
    """Returns the address of the first byte and the one after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields each module under each of its names, but nothing inside a linear layer of any form or a sparse
    layer."""
    yield name, module
    if is_sparse(module) or form_of(module) is not None:
        return
    for child, inner in module._modules.items():
        if inner is not None:
            yield from _walk(inner, joined(name, child))
