"""Runtimes beside which `sparseloom experiment encoder` stands: onnxruntime and OpenVINO, in fp32 and 8 bits,
each as far as its package is installed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[dict[str, Tensor]], Tensor]


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
    """Returns the calls of the runtimes that are installed, each of a batch to the last hidden state. They
    use as many threads as torch."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        return {}
    path = folder / "dense.onnx"
    names = ("input_ids", "attention_mask", "token_type_ids")
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _State(model).eval(), tuple(batch[name] for name in names), dynamo=True, verbose=False,
            input_names=list(names), output_names=["state"], dynamic_shapes=tuple(axes for _ in names),
        )  # fmt: skip
    assert program is not None
    program.save(path)
    found = dict[str, Call]()
    if importlib.util.find_spec("onnxruntime") is not None:
        found |= _onnxruntime(path)
    if importlib.util.find_spec("openvino") is not None:
        found |= _openvino(path)
    return found


def _onnxruntime(path: Path) -> dict[str, Call]:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, small = path.with_name("dense.ready.onnx"), path.with_name("dense.int8.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    quantize_dynamic(ready, small, weight_type=QuantType.QInt8, per_channel=True)

    def made(file: Path) -> Call:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        known = [each.name for each in session.get_inputs()]

        def call(batch: dict[str, Tensor]) -> Tensor:
            (state,) = session.run(None, {name: batch[name].numpy() for name in known})
            return torch.from_numpy(state)

        return call

    version = onnxruntime.__version__
    return {f"onnxruntime {version}": made(path), f"onnxruntime {version}, int8": made(small)}


def _openvino(path: Path) -> dict[str, Call]:
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads()})

    def made(model: Any, precision: str) -> Call:
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
        known = [each.get_any_name() for each in compiled.inputs]

        def call(batch: dict[str, Tensor]) -> Tensor:
            state = compiled({name: batch[name].numpy() for name in known})[0]
            return torch.from_numpy(state.copy())

        return call

    version = openvino.__version__.split("-")[0]
    found = {f"openvino {version}, f32": made(core.read_model(path), "f32")}
    if importlib.util.find_spec("nncf") is not None:
        import nncf

        small = nncf.compress_weights(core.read_model(path))
        options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"}
        compiled = core.compile_model(small, "CPU", options)
        known = [each.get_any_name() for each in compiled.inputs]

        def call(batch: dict[str, Tensor]) -> Tensor:
            return torch.from_numpy(compiled({name: batch[name].numpy() for name in known})[0].copy())

        found[f"openvino {version}, int8 weights, dynamic activations"] = call
    return found
