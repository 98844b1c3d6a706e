"""Checks the arguments of a block-sparse linear layer, when it is made and when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy, Tracer

from .. import ops
from .._checks import share, whole
from ..errors import Error, unsupported_layout
from ..pattern import Pattern

if TYPE_CHECKING:
    from .linear import BlockSparseLinear
    from .semi24.linear import Semi24Linear

_OP = "BlockSparseLinear"


def checked(
    in_features: int,
    out_features: int,
    density: float | None,
    pattern: Pattern | None,
    activation: str | None,
    like: Tensor,
    op: str = _OP,
) -> tuple[int, int, float | None]:
    """Returns both feature counts and the density as Python numbers. Raises Error, in the name of ``op``,
    unless a layer can be made of these arguments. ``like`` is a tensor with the layer's device and dtype."""
    ops.dtype_name(op, like.dtype)
    require_device(like.device, op)
    require_activation(activation, op)
    in_features, out_features = (
        whole(op, "in_features", in_features),
        whole(op, "out_features", out_features),
    )
    if (density is None) == (pattern is None):
        got = "neither" if density is None else "both"
        raise Error(
            op, "one of density and pattern", got, "pass density=0.1 for a balanced pattern, or pattern="
        )
    return in_features, out_features, None if density is None else share(op, density)


def like_of(op: str, device: Any, dtype: Any) -> Tensor:
    """Returns an empty tensor with the device and dtype of a new layer. Raises Error for what torch has
    not."""
    try:
        return torch.empty(0, device=device, dtype=dtype)
    except (RuntimeError, TypeError) as error:
        got = f"device={device!r}, dtype={dtype!r} ({str(error).splitlines()[0][:80]})"
        remedy = f"pass device='cpu' or 'cuda' and dtype=torch.float32; this build has {_devices()}"
        raise Error(op, "a device and a dtype of this torch", got, remedy) from None


def require_activation(activation: str | None, op: str = _OP) -> None:
    """Raises Error unless the products support that activation."""
    if unknown := ops.unknown_activation(op, activation, "apply any other one after the layer"):
        raise unknown


def generator_of(op: str, seed: torch.Generator | int | None) -> torch.Generator | None:
    """Returns the given generator, a CPU generator for a given seed, or None for torch's default ones. Raises
    Error for anything else."""
    if seed is None or isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(whole(op, "seed", seed, None))


@contextmanager
def drawing(op: str, seed: torch.Generator | int | None, device: torch.device) -> Iterator[None]:
    """Lets torch's default generators give what a seed says in the body, and restores them. Raises Error for
    anything but an int, a generator or None, which leaves them alone."""
    generator = generator_of(op, seed)
    if generator is None:
        yield
        return
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(drawn))
        yield


def exact(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wraps the ``fn`` of ``module._apply`` so that integers only move: ``.type(torch.bfloat16)`` and its
    like would convert an index or a mask."""

    def moved(tensor: Tensor) -> Tensor:
        converted = fn(tensor)
        is_integer = not tensor.is_floating_point() and not tensor.is_complex()
        return tensor.to(converted.device) if is_integer and converted.dtype != tensor.dtype else converted

    return moved


def keep_float32(buffers: dict[str, Tensor | None], before: Mapping[str, Tensor | None]) -> None:
    """Gives ``buffers`` the values that they had before ``module._apply`` in their dtype, on the device that
    they have now: statistics and factors that ``.bfloat16()`` and its like would round."""
    for name, old in before.items():
        new = buffers[name]
        if old is not None and new is not None and new.dtype != old.dtype:
            buffers[name] = old.to(new.device)


def require_tensor(x: Any) -> Tensor:
    """Returns x. Raises Error unless it is a tensor whose sizes can be asked for, which those of a nested
    tensor cannot."""
    if not isinstance(x, Tensor):
        raise Error("linear", "x to be a tensor", type(x).__name__, "convert it with torch.as_tensor")
    if x.is_nested:
        raise unsupported_layout("linear", "x", "a nested tensor")
    return x


def prologue(
    x: Tensor, values: Tensor, bias: Tensor | None, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Casts the operands of a product to the dtype of autocast, if it is on; fp64 stays, as in torch."""
    kind = "cpu" if x.is_cpu else "cuda" if x.is_cuda else x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x, values, bias, residual
    dtype = torch.get_autocast_dtype(kind)
    bias = None if bias is None else bias.to(dtype)
    return x.to(dtype), values.to(dtype), bias, None if residual is None else residual.to(dtype)


def added(y: Tensor, residual: Tensor | None) -> Tensor:
    """Returns y + residual, for layers whose product does not add it itself. Raises Error unless the residual
    has the shape, dtype and device of y; autocast casts it."""
    if residual is None:
        return y
    kind = y.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and isinstance(residual, Tensor):
        residual = residual.to(y.dtype)
    ops.require_residual(residual, y)
    return y + residual


def recorded_by_fx(module: nn.Module, first: Any, **operands: Any) -> Any:
    """If an operand is a proxy of torch.fx.symbolic_trace, records and returns a node that calls the module,
    as for torch.nn's own leaf modules. Returns None without a proxy. Raises Error when the first operand is
    not a tensor, or when the module is traced alone."""
    keywords = {name: operand for name, operand in operands.items() if operand is not None}
    proxy = next((operand for operand in (first, *keywords.values()) if isinstance(operand, Proxy)), None)
    if proxy is not None:
        tracer = proxy.tracer
        path = tracer.path_of_module(module) if isinstance(tracer, Tracer) else ""
        if not path:
            got, remedy = "the module alone", "trace torch.nn.Sequential(module), or use torch.export"
            raise Error("symbolic_trace", f"a model that holds the {type(module).__name__}", got, remedy)
        return tracer.create_proxy("call_module", path, (first,), keywords)
    require_tensor(first)
    return None


def require_module(op: str, model: object) -> None:
    """Raises Error for anything that is not an nn.Module."""
    if not isinstance(model, nn.Module):
        raise Error(op, "an nn.Module", type(model).__name__, "pass the model")
    if isinstance(model, torch.jit.ScriptModule):
        raise Error(op, "a model of Python", "one of torch.jit", "pass the model that it was made from")


def require_device(device: torch.device, op: str = _OP) -> None:
    """Raises Error unless layers can be made on that device."""
    if not ops.has_kernels_for(device):
        raise Error(
            op, f"a device with kernels in this build ({_devices()}, meta)", str(device), "pass device='cpu'"
        )


def require_shape(pattern: Pattern, out_features: int, in_features: int, op: str = _OP) -> None:
    """Raises Error unless ``pattern`` is a Pattern of that shape."""
    if not isinstance(pattern, Pattern):
        raise Error(
            op, "pattern to be a sparseloom.Pattern", type(pattern).__name__, "see sparseloom.pattern"
        )
    if (pattern.rows, pattern.cols) != (out_features, in_features):
        expected = f"a pattern of {out_features} x {in_features} (out x in features)"
        raise Error(
            op,
            expected,
            f"{pattern.rows} x {pattern.cols}",
            "make it with rows=out_features, cols=in_features",
        )


def refuse(layer: BlockSparseLinear | Semi24Linear, x: Tensor, values: Tensor) -> None:
    """Raises the Error that says why x does not fit the layer."""
    if not ops.has_kernels_for(x.device):
        kernels = f"a device with kernels in this build ({_devices()})"
        raise Error("linear", kernels, str(x.device), "move x and layer with .to('cpu')")
    if x.dim() == 0 or x.shape[-1] != layer.in_features:
        raise Error(
            "linear", f"x [..., {layer.in_features}]", f"{list(x.shape)}", "the last dimension is in_features"
        )
    if x.dtype != values.dtype:
        raise Error(
            "linear",
            f"x of {values.dtype}, the layer's dtype",
            str(x.dtype),
            "convert one of them, or use autocast",
        )
    raise Error(
        "linear", f"x on {values.device}, the layer's device", str(x.device), "move one of them with .to()"
    )


def _devices() -> str:
    return "cpu, cuda" if ops.has_kernels_for(torch.device("cuda")) else "cpu"
