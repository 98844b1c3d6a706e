"""Runtimes beside which `sparseloom experiment encoder` stands: onnxruntime and OpenVINO, in fp32 and 8 bits,
each as far as its package is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from ..bench.models import runtimes

Call = Callable[[dict[str, Tensor]], Tensor]
_NAMES = ("input_ids", "attention_mask", "token_type_ids")


class _State(nn.Module):
    """The encoder with its last hidden state as the only result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        state: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        return state


def peers(model: nn.Module, batch: dict[str, Tensor], folder: Path) -> dict[str, Call]:
    """Returns the calls of the runtimes that are installed, each of a batch to the last hidden state."""
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    inputs = {name: batch[name] for name in _NAMES}
    path = runtimes.exported(_State(model), inputs, folder / "dense.onnx", axes)
    found: dict[str, runtimes.Call] = {}
    if path is None:
        return {}
    makers: dict[str, Callable[[], runtimes.Makers]] = {
        "onnxruntime": lambda: runtimes.by_onnxruntime(lambda: path, _NAMES),
        "openvino": lambda: runtimes.by_openvino(lambda: path, _NAMES, list(inputs.values()), True),
    }
    for package, made in makers.items():
        if runtimes.installed(package):
            found |= {
                f"{package} {version(package)}, {precision}": maker()
                for precision, maker in made().items()
                if precision != "bf16"
            }
    return {name: _of_batch(call) for name, call in found.items()}


def _of_batch(call: runtimes.Call) -> Call:
    return lambda batch: call([batch[name] for name in _NAMES])
