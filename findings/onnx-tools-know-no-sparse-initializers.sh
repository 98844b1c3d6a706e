#!/usr/bin/env bash
# A valid ONNX model with a sparse weight runs in onnxruntime, and the onnx package's own tools refuse or lose the weight.
#
# Seen with onnx 1.23.2 and onnxruntime 1.32.0. onnx.proto has initializers "both TensorProto as well SparseTensorProto".
# checker.check_model passes the model X @ W and onnxruntime's answer is right. But ReferenceEvaluator raises ValueError
# (SparseTensorProto has no "data_location" field); check_model(full_check=True) and strict shape inference raise
# InferenceError (wrong rank); version_converter says that W is undefined; printer.to_text leaves W out, and
# parser.parse_model of that text makes a model without weights; save_as_external_data leaves the weight in the protobuf.
# A Constant's sparse_value passes the full check, and the evaluator and the version converter refuse it, too.
#
# Whom it hurts: whoever ships pruned weights in ONNX: the tools that should verify or convert the file fail on it.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
cat >"$folder/program.py" <<'PY'
import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, parser, printer, shape_inference, version_converter
from onnx.reference import ReferenceEvaluator

weight = np.zeros((3, 4), np.float32)
weight.ravel()[[1, 3, 4]] = [1, 2, 3]
x = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(form):
    at = np.flatnonzero(weight)
    values = numpy_helper.from_array(weight.ravel()[at], "W" if form == "initializer" else "")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(at, "at"), weight.shape)
    nodes, initializers = [helper.make_node("MatMul", ["X", "W"], ["Y"])], [sparse]
    if form == "Constant":
        nodes, initializers = [helper.make_node("Constant", [], ["W"], sparse_value=sparse), *nodes], []
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n]) for name, n in (("X", 3), ("Y", 4))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], sparse_initializer=initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(proto):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return "right" if np.array_equal(session.run(None, {"X": x})[0], x @ weight) else "wrong"


def external(proto):
    onnx.save_model(proto, sys.argv[1], save_as_external_data=True, size_threshold=0)
    return [name for name in sorted(os.listdir(os.path.dirname(sys.argv[1]))) if "model" in name]


steps = {
    "check_model": lambda proto: onnx.checker.check_model(proto),
    "onnxruntime": run,
    "ReferenceEvaluator": lambda proto: ReferenceEvaluator(proto).run(None, {"X": x})[0].tolist(),
    "full check": lambda proto: onnx.checker.check_model(proto, full_check=True),
    "strict inference": lambda proto: len(shape_inference.infer_shapes(proto, strict_mode=True).graph.output),
    "version 20": lambda proto: run(version_converter.convert_version(proto, 20)),
    "text": lambda proto: f"the sparse weight is in it: {'sparse' in printer.to_text(proto)}",
    "external data": external,
}
for name, step in steps.items():
    try:
        said = step(model("initializer"))
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[-42:]}"
    print(f"{name}: {said}")
text = parser.parse_model(printer.to_text(model("initializer")))
print("weights after text:", len(text.graph.sparse_initializer) + len(text.graph.initializer))
for name in ("full check", "onnxruntime", "ReferenceEvaluator", "version 20"):
    try:
        said = steps[name](model("Constant"))
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:18]}"
    print(f"Constant, {name}: {said}")
PY
said=$("$folder/venv/bin/python" "$folder/program.py" "$folder/model.onnx" 2>/dev/null)
printf '%s\n' "$said"
wanted="check_model: None
onnxruntime: right
ReferenceEvaluator: ValueError: eTensorProto has no \"data_location\" field.
full check: InferenceError: nceError] Input tensors of wrong rank (0).
strict inference: InferenceError: nceError] Input tensors of wrong rank (0).
version 20: ConvertError: Input W is undefined!
text: the sparse weight is in it: False
external data: ['model.onnx']
weights after text: 0
Constant, full check: None
Constant, onnxruntime: right
Constant, ReferenceEvaluator: TypeError: One of the results
Constant, version 20: ConvertError: Sparse tensors not"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
