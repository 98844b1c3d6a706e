"""Runtimes beside which models on a CPU stand: onnxruntime and OpenVINO, each as far as its package is
installed. They use as many threads as torch."""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: A call of tensors in the order of the export's inputs; the model's first result.
Call = Callable[[Sequence[Tensor]], Tensor]
#: What makes the calls of one runtime, by kind. Each is made alone, so that one that fails leaves the others.
Makers = Mapping[str, Callable[[], Call]]

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
    import onnx

    proto = program.model_proto
    # torch notes shapes of weights before it transposes some; inference of shapes, which the quantisation of
    # onnxruntime begins with, refuses the difference
    del proto.graph.value_info[:]
    onnx.save(proto, path)
    return path


def by_onnxruntime(path: Callable[[], Path], names: Sequence[str]) -> Makers:
    """Returns what makes "fp32" and "int8" (weights by channel, dynamic inputs) of the file of ``path``."""

    def made(file: Path) -> Call:
        import onnxruntime

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

    def small() -> Call:
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process

        ready, file = path().with_suffix(".ready.onnx"), path().with_suffix(".int8.onnx")
        quant_pre_process(str(path()), str(ready), skip_symbolic_shape=True)
        quantize_dynamic(ready, file, weight_type=QuantType.QInt8, per_channel=True)
        return made(file)

    return {"fp32": lambda: made(path()), "int8": small}


def by_openvino(
    path: Callable[[], Path], names: Sequence[str], inputs: Sequence[Tensor], transformer: bool
) -> Makers:
    """Returns what makes "fp32" and "bf16" of the file of ``path`` and, with nncf, "int8" (weights and
    inputs, whose ranges ``inputs`` give) and "int8 weights" (inputs in groups of 32, as they come). What int8
    leaves is bf16 where the CPU has it. ``transformer``: whether nncf is told that it is one."""

    @cache
    def core() -> Any:
        import openvino

        made = openvino.Core()
        made.set_property("CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads()})
        return made

    def made(model: Any, precision: str, **options: str) -> Call:
        compiled = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision, **options})
        fed = [each.get_any_name() for each in compiled.inputs]

        def call(inputs: Sequence[Tensor]) -> Tensor:
            given = {name: inputs[names.index(name)].numpy() for name in fed}
            return torch.from_numpy(compiled(given)[0].copy())

        return call

    def read(precision: str) -> Call:
        return made(core().read_model(path()), precision)

    def quantized(weights: bool) -> Call:
        with redirect_stdout(io.StringIO()):  # tables and bars
            import nncf

            nncf.set_log_level(logging.ERROR)
            model = core().read_model(path())
            if weights:
                return made(nncf.compress_weights(model), "bf16", DYNAMIC_QUANTIZATION_GROUP_SIZE="32")
            fed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
            kind = nncf.ModelType.TRANSFORMER if transformer else None
            small = nncf.quantize(model, nncf.Dataset([fed]), model_type=kind, subset_size=1)
            return made(small, "bf16")

    found: dict[str, Callable[[], Call]] = {"fp32": partial(read, "f32"), "bf16": partial(read, "bf16")}
    if installed("nncf"):
        found |= {"int8": partial(quantized, False), "int8 weights": partial(quantized, True)}
    return found
