"""What the weights of nn.LSTM and nn.GRU multiply: the inputs of each layer, and its states of the step
before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence


def inputs_of(module: Any, x: Any, state: Any = None) -> Iterator[tuple[str, Tensor]]:
    """Yields (name of a weight, what it multiplies), [batch, steps, features], or [tokens, features] of a
    packed sequence, for a call of the module."""
    lengths = None
    if isinstance(x, PackedSequence):
        x, lengths = pad_packed_sequence(x, batch_first=True)
    elif x.dim() == 2:
        x = x[None]
    elif not module.batch_first:
        x = x.transpose(0, 1)
    steps = torch.arange(x.shape[1], device=x.device)
    inside = None if lengths is None else steps < lengths.to(x.device)[:, None]
    back = steps.flip(0).expand(x.shape[:2])
    if inside is not None and lengths is not None:  # each from its own end; what lies behind stays
        last = lengths.to(x.device)[:, None] - 1
        back = torch.where(inside, last - steps, steps)

    def counted(tensor: Tensor) -> Tensor:
        return tensor if inside is None else tensor[inside]

    at = 0
    for layer in range(module.num_layers):
        outputs = []
        for end in ("", "_reverse") if module.bidirectional else ("",):
            suffix = f"l{layer}{end}"
            turned = back.unsqueeze(-1)
            begin = x.gather(1, turned.expand_as(x)) if end else x
            first = _first(module, begin, state, at)
            output = _run(module, begin, first, suffix)
            before = torch.cat([first[0].transpose(0, 1), output[:, :-1]], 1)
            yield f"weight_ih_{suffix}", counted(begin)
            yield f"weight_hh_{suffix}", counted(before)
            if getattr(module, "proj_size", 0):
                yield f"weight_hr_{suffix}", counted(_cells(module, begin, before, first[1], suffix))
            outputs.append(output.gather(1, turned.expand_as(output)) if end else output)
            at += 1
        x = torch.cat(outputs, -1)


def _first(module: Any, x: Tensor, state: Any, at: int) -> list[Tensor]:
    """Returns h, and c of an LSTM, before the first step of one layer and direction, [1, batch, features]."""
    sizes = [module.proj_size or module.hidden_size]
    sizes += [module.hidden_size] if module.mode == "LSTM" else []
    if state is None:
        return [x.new_zeros(1, len(x), size) for size in sizes]
    given = state if isinstance(state, (tuple, list)) else (state,)
    return [each.reshape(each.shape[0], -1, each.shape[-1])[at : at + 1] for each in given]


def _weights(module: Any, suffix: str) -> list[Tensor]:
    names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())]
    names += ["weight_hr"] if module.proj_size else []
    return [getattr(module, f"{name}_{suffix}") for name in names]


def _run(module: Any, x: Tensor, first: list[Tensor], suffix: str) -> Tensor:
    """Returns the outputs [batch, steps, features] of one layer in one direction."""
    options = (_weights(module, suffix), module.bias, 1, 0.0, False, False, True)
    output: Tensor
    if module.mode == "LSTM":
        output = torch.lstm(x, first, *options)[0]
    else:
        output = torch.gru(x, first[0], *options)[0]
    return output


def _cells(module: Any, x: Tensor, before: Tensor, cell: Tensor, suffix: str) -> Tensor:
    """Returns what an LSTM's projection multiplies, o tanh(c) of each step, [batch, steps, hidden]."""
    weights = _weights(module, suffix)
    biases = weights[2:4] if module.bias else [None, None]
    gates = torch.nn.functional.linear(x, weights[0], biases[0])
    gates = gates + torch.nn.functional.linear(before, weights[1], biases[1])
    into, keep, new, out = gates.chunk(4, -1)
    made, c = [], cell[0]
    for step in range(x.shape[1]):
        c = keep[:, step].sigmoid() * c + into[:, step].sigmoid() * new[:, step].tanh()
        made.append(out[:, step].sigmoid() * c.tanh())
    return torch.stack(made, 1)
