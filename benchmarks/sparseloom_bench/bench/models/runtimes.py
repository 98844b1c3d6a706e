"""Runtimes beside which models on a CPU stand: onnxruntime and OpenVINO, each as far as its package is
installed. They use as many threads as torch."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: A call of tensors in the order of the export's inputs; the model's first result.
Call = Callable[[Sequence[Tensor]], Tensor]

NOT_INSTALLED = "not installed"


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def exported(
    model: nn.Module, inputs: Mapping[str, Tensor], path: Path, dynamic: Mapping[int, Any] | None = None
) -> Path | None:
    """Writes a model, called with ``inputs`` by position, as ONNX; returns the path, None where the packages
    for it are not installed. ``dynamic``: the dimensions of every input that may differ."""
    if not installed("onnx", "onnxscript"):
        return None
    shapes = None if dynamic is None else tuple(dict(dynamic) for _ in inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), tuple(inputs.values()), dynamo=True, verbose=False, input_names=list(inputs),
            dynamic_shapes=shapes,
        )  # fmt: skip
    assert program is not None
    program.save(path)
    return path


def by_onnxruntime(path: Path, names: Sequence[str]) -> dict[str, Call]:
    """Returns the calls "fp32" and "int8" (weights by channel, dynamic inputs) of an ONNX file."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, small = path.with_suffix(".ready.onnx"), path.with_suffix(".int8.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    quantize_dynamic(ready, small, weight_type=QuantType.QInt8, per_channel=True)

    def made(file: Path) -> Call:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        known = [names.index(each.name) for each in session.get_inputs()]
        fed = [each.name for each in session.get_inputs()]

        def call(inputs: Sequence[Tensor]) -> Tensor:
            given = {name: inputs[at].numpy() for name, at in zip(fed, known, strict=True)}
            return torch.from_numpy(session.run(None, given)[0])

        return call

    return {"fp32": made(path), "int8": made(small)}


def by_openvino(path: Path, names: Sequence[str]) -> dict[str, Call]:
    """Returns the calls "fp32" and "bf16" of an ONNX file, and with nncf "int8" (weights, dynamic inputs)."""
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads()})

    def made(model: Any, precision: str, **options: str) -> Call:
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision, **options})
        fed = [each.get_any_name() for each in compiled.inputs]

        def call(inputs: Sequence[Tensor]) -> Tensor:
            given = {name: inputs[names.index(name)].numpy() for name in fed}
            return torch.from_numpy(compiled(given)[0].copy())

        return call

    found = {"fp32": made(core.read_model(path), "f32"), "bf16": made(core.read_model(path), "bf16")}
    if installed("nncf"):
        import nncf

        small = nncf.compress_weights(core.read_model(path))
        found["int8"] = made(small, "f32", DYNAMIC_QUANTIZATION_GROUP_SIZE="32")
    return found
