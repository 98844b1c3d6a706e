"""Chain: layers between which the channels may have any order; and the chains that are found by the names of
modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..nn.held.sparse_weight import joined

#: Modules that treat each channel alike, and norms whose parameters follow their channels.
_ALIKE = (
    nn.Identity, nn.Dropout, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU,
    nn.Hardswish, nn.Hardtanh, nn.Mish, nn.Softplus,
)  # fmt: skip
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d)
#: Names of the children of one module: the outputs of the first layers (multiplied where there are two) are
#: the inputs of the last.
_FEED_FORWARD = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("w1", "w3"), "w2"),
    (("wi_0", "wi_1"), "wo"),
    (("up_proj",), "down_proj"),
    (("linear1",), "linear2"),
    (("fc1",), "fc2"),
    (("lin1",), "lin2"),
    (("wi",), "wo"),
    (("c_fc",), "c_proj"),
    (("intermediate.dense",), "output.dense"),
)
#: Names of an attention's children: the layer that gives the values, whether they are the last third of its
#: outputs, and the output projection.
_ATTENTION = (
    ("v_proj", False, "o_proj"),
    ("v_proj", False, "out_proj"),
    ("self.value", False, "output.dense"),
    ("in_proj", True, "out_proj"),
    ("qkv", True, "proj"),
    ("c_attn", True, "c_proj"),
)


@dataclass(frozen=True)
class Chain:
    """Linear layers whose outputs are the inputs of another one, channel by channel.

    Args:
        consumer: the name of the layer whose inputs may be reordered.
        producers: the layers that give these inputs, several where their outputs are multiplied or added
            elementwise; an nn.MultiheadAttention's projections are attn.in_proj and attn.out_proj.
        through: norms in between, whose weights, biases and statistics follow their channels.
        heads: how many equal parts the producers' outputs consist of, whose channels stay together: the
            heads of an attention's values.
        last_third: whether the producer gives queries, keys and values in one tensor; the chain takes the
            values.

    Where the consumer has several times as many inputs as the producers give, its heads share theirs
    (grouped-query attention).
    """

    consumer: str
    producers: tuple[str, ...]
    through: tuple[str, ...] = ()
    heads: int = 1
    last_third: bool = False


def chains_of(model: nn.Module) -> Iterator[Chain]:
    """Yields the chains that the classes and names of modules suggest. Their forward methods are not read;
    permute_channels_ compares the model's outputs instead."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential):
            yield from _in_sequence(name, module)
            continue
        for producers, consumer in _FEED_FORWARD:
            if all(_child(module, child) is not None for child in (*producers, consumer)):
                yield Chain(joined(name, consumer), tuple(joined(name, child) for child in producers))
                break
        for producer, last_third, consumer in _ATTENTION:
            if (heads := _heads(module, producer, last_third, consumer)) is not None:
                names = joined(name, consumer), (joined(name, producer),)
                yield Chain(*names, heads=heads, last_third=last_third)
                break


def _in_sequence(name: str, sequence: nn.Sequential) -> Iterator[Chain]:
    producer, through = "", list[str]()
    for child_name, module in sequence.named_children():
        full_name = joined(name, child_name)
        if isinstance(module, nn.Linear):
            if producer:
                yield Chain(full_name, (producer,), tuple(through))
            producer, through = full_name, []
        elif isinstance(module, NORMS):
            through.append(full_name)
        elif not isinstance(module, _ALIKE):
            producer, through = "", []


def _heads(module: nn.Module, producer: str, last_third: bool, consumer: str) -> int | None:
    """Returns how many heads of values an attention has; None for anything else."""
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads if producer == "in_proj" else None
    if _child(module, consumer) is None or (values := _child(module, producer)) is None:
        return None
    inner: Any = module.get_submodule(producer.rpartition(".")[0])
    size = next((s for n in ("head_dim", "attention_head_size") if (s := getattr(inner, n, None))), None)
    outputs = getattr(values, "out_features", None) or getattr(values, "nf", None)
    if not isinstance(size, int) or not isinstance(outputs, int):
        return None
    outputs = outputs // 3 if last_third else outputs
    return None if outputs % size else outputs // size


def _child(module: nn.Module, name: str) -> nn.Module | None:
    try:
        return module.get_submodule(name)
    except AttributeError:
        return None
