#!/usr/bin/env bash
# onnxruntime runs an ONNX model with a sparse weight; its own float16, int8 and shape tools break it or blame the model.
#
# Seen with onnxruntime 1.32.0, onnx 1.23.2. The model X @ W with W a sparse_initializer runs, and session options save it
# with the weight still sparse. convert_float_to_float16 raises nothing, leaves W in float32 and turns the rest to
# float16: no session takes the result. quantize_dynamic raises "Invalid model with unknown initializers/tensors", and
# quant_pre_process, which its documentation recommends before, "Invalid model with cyclic graph" of a single MatMul.
# MatMulNBitsQuantizer says that MatMul has no constant weight and changes nothing. With a dense W all four work.
#
# Whom it hurts: whoever stores pruned weights sparse and then wants them in half precision or quantised.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  onnx-ir==1.1.0 sympy==1.14.0
cat >"$folder/program.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

source, target = f"{sys.argv[1]}/source.onnx", f"{sys.argv[1]}/target.onnx"
weight = np.zeros((32, 32), np.float32)
weight.ravel()[::9] = 1.5
x = np.ones((2, 32), np.float32)


def model(form):
    at = np.flatnonzero(weight)
    values = numpy_helper.from_array(weight.ravel()[at], "W")
    stored = {"sparse_initializer": [helper.make_sparse_tensor(values, numpy_helper.from_array(at, "at"), weight.shape)]}
    if form == "dense":
        stored = {"initializer": [numpy_helper.from_array(weight, "W")]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 32]) for name in "XY"]
    graph = helper.make_graph([helper.make_node("MatMul", ["X", "W"], ["Y"])], "g", ends[:1], ends[1:], **stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(proto):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    right = np.allclose(session.run(None, {"X": x})[0], x @ weight, rtol=0.05)
    kinds = "+".join(node.op_type for node in proto.graph.node)
    return f"{'right' if right else 'wrong'}, {kinds}, sparse weights: {len(proto.graph.sparse_initializer)}"


def files(step):
    def convert(proto):
        onnx.save(proto, source)
        step(source, target)
        return onnx.load(target)

    return convert


def optimize(given, made):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = made
    onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def four_bits(proto):
    quantizer = MatMulNBitsQuantizer(proto)
    quantizer.process()
    return quantizer.model.model


steps = {"as it is": lambda proto: proto, "optimized model": files(optimize)}
steps.update({"float16": lambda proto: convert_float_to_float16(proto, keep_io_types=True)})
steps.update({"quantize_dynamic": files(quantize_dynamic), "quant_pre_process": files(quant_pre_process)})
steps.update({"MatMulNBitsQuantizer": four_bits})
with open(f"{sys.argv[1]}/seen", "w") as seen:
    for form in ("dense", "sparse"):
        for name, step in steps.items():
            try:
                said = "runs: " + run(step(model(form)))
            except Exception as error:
                said = f"{type(error).__name__}: {str(error).removeprefix('[ONNXRuntimeError] : ')[:49]}"
            print(f"{form}, {name}: {said}", file=seen)
PY
"$folder/venv/bin/python" "$folder/program.py" "$folder" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
said=$(cat "$folder/seen")
printf '%s\n' "$said"
wanted='dense, as it is: runs: right, MatMul, sparse weights: 0
dense, optimized model: runs: right, MatMul, sparse weights: 0
dense, float16: runs: right, MatMul+Cast+Cast, sparse weights: 0
dense, quantize_dynamic: runs: right, DynamicQuantizeLinear+Mul+MatMulInteger+Cast+Mul, sparse weights: 0
dense, quant_pre_process: runs: right, MatMul, sparse weights: 0
dense, MatMulNBitsQuantizer: runs: right, MatMulNBits, sparse weights: 0
sparse, as it is: runs: right, MatMul, sparse weights: 1
sparse, optimized model: runs: right, MatMul, sparse weights: 1
sparse, float16: Fail: 1 : FAIL : Type Error: Type parameter (T) of Opty
sparse, quantize_dynamic: RuntimeError: Invalid model with unknown initializers/tensors.{
sparse, quant_pre_process: Exception: Invalid model with cyclic graph
sparse, MatMulNBitsQuantizer: runs: right, MatMul, sparse weights: 1'
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
