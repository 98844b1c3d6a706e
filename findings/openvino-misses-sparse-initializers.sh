#!/usr/bin/env bash
# OpenVINO reads a sparse weight of an ONNX model where a Constant holds it, and refuses the same as an initializer.
#
# Seen with openvino 2026.4.1, onnx 1.23.2. The model X @ W with W as sparse_initializer of the graph, the place that the
# standard has for parameters in sparse format, passes onnx.checker and runs in onnxruntime. Reading it to compile it
# fails, with Core.read_model and with convert_model: Input tensor isn't found for node "W". With W as sparse_value of a
# Constant node both work.
#
# Whom it hurts: whoever ships pruned weights in ONNX: the file of one runtime is "broken" in the other.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  openvino==2026.4.1
cat >"$folder/program.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

weight = np.zeros((3, 4), np.float32)
weight.ravel()[[1, 3, 4]] = [1, 2, 3]
x = np.arange(6, dtype=np.float32).reshape(2, 3)
for form in ("Constant", "initializer"):
    at = np.flatnonzero(weight)
    values = numpy_helper.from_array(weight.ravel()[at], "W" if form == "initializer" else "")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(at, "at"), weight.shape)
    nodes, initializers = [helper.make_node("MatMul", ["X", "W"], ["Y"])], [sparse]
    if form == "Constant":
        nodes, initializers = [helper.make_node("Constant", [], ["W"], sparse_value=sparse), *nodes], []
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n]) for name, n in (("X", 3), ("Y", 4))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], sparse_initializer=initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(proto)
    onnx.save(proto, sys.argv[1])
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    print(f"{form}, onnxruntime:", "right" if np.array_equal(session.run(None, {"X": x})[0], x @ weight) else "wrong")
    for read in (openvino.Core().read_model, openvino.convert_model):
        try:
            answer = openvino.Core().compile_model(read(sys.argv[1]), "CPU")(x)[0]
            said = "right" if np.array_equal(answer, x @ weight) else "wrong"
        except RuntimeError as error:
            said = f"RuntimeError: {str(error).strip().splitlines()[-1]}"
        print(f"{form}, {read.__name__}:", said)
PY
said=$("$folder/venv/bin/python" "$folder/program.py" "$folder/model.onnx" 2>/dev/null)
printf '%s\n' "$said"
wanted='Constant, onnxruntime: right
Constant, read_model: right
Constant, convert_model: right
initializer, onnxruntime: right
initializer, read_model: RuntimeError: Input tensor isn'"'"'t found for node "W"
initializer, convert_model: RuntimeError: Input tensor isn'"'"'t found for node "W"'
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
