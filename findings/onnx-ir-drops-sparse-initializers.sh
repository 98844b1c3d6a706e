#!/usr/bin/env bash
# onnx-ir, and so onnxscript's optimizer and version converter, drop the sparse weights of an ONNX model.
#
# Seen with onnx-ir 1.1.0, onnxscript 0.7.2, onnx 1.23.2, onnxruntime 1.32.0. The model X @ W with W a sparse_initializer
# passes onnx.checker and runs. ir.from_proto forgets the weight; ir.to_proto, ir.save, onnxscript.optimizer.optimize and
# convert_version return a model without it, which nothing can run, and raise nothing: one warning in the log says that W
# "cannot be found in any scope" and that "the model is invalid", of a model that was valid. A Constant with a
# sparse_value, which the standard has too, raises SerdeError. onnx-ir promises "Full ONNX spec support: all valid models
# representable by ONNX protobuf".
#
# Whom it hurts: torch.onnx and many converters go through this package: the file gets small, and the weights are gone.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  onnx-ir==1.1.0 onnxscript==0.7.2
cat >"$folder/program.py" <<'PY'
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxscript import optimizer, version_converter

weight = np.zeros((300, 400), np.float32)
weight.ravel()[::50] = 1.5
x = np.ones((2, 300), np.float32)


def model(form):
    at = np.flatnonzero(weight)
    values = numpy_helper.from_array(weight.ravel()[at], "W" if form == "initializer" else "")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(at, "at"), weight.shape)
    nodes, initializers = [helper.make_node("MatMul", ["X", "W"], ["Y"])], [sparse]
    if form == "Constant":
        nodes, initializers = [helper.make_node("Constant", [], ["W"], sparse_value=sparse), *nodes], []
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, size]) for n, size in (("X", 300), ("Y", 400))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], sparse_initializer=initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(proto)
    return proto


def run(proto):
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return "right" if np.allclose(session.run(None, {"X": x})[0], x @ weight) else "wrong"
    except Exception as error:
        return type(error).__name__


def save(proto):
    ir.save(ir.from_proto(proto), sys.argv[1])
    return onnx.load(sys.argv[1])


def convert(proto):
    made = ir.from_proto(proto)
    version_converter.convert_version(made, 20)
    return ir.to_proto(made)


steps = {"as it is": lambda proto: proto, "from_proto, to_proto": lambda proto: ir.to_proto(ir.from_proto(proto))}
steps.update({"save": save, "optimizer": optimizer.optimize, "version converter": convert})
for form in ("initializer", "Constant"):
    for name, step in steps.items():
        try:
            proto = step(model(form))
            kept = len(proto.graph.sparse_initializer) + len(proto.graph.initializer)
            print(f"{form}, {name}: {kept} initializers, {proto.ByteSize() // 1000} kB, runs: {run(proto)}")
        except Exception as error:
            print(f"{form}, {name}: {type(error).__name__}")
PY
said=$("$folder/venv/bin/python" "$folder/program.py" "$folder/model.onnx" 2>/dev/null)
printf '%s\n' "$said"
wanted='initializer, as it is: 1 initializers, 28 kB, runs: right
initializer, from_proto, to_proto: 0 initializers, 0 kB, runs: InvalidArgument
initializer, save: 0 initializers, 0 kB, runs: InvalidArgument
initializer, optimizer: 0 initializers, 0 kB, runs: InvalidArgument
initializer, version converter: 0 initializers, 0 kB, runs: InvalidArgument
Constant, as it is: 0 initializers, 28 kB, runs: right
Constant, from_proto, to_proto: SerdeError
Constant, save: SerdeError
Constant, optimizer: SerdeError
Constant, version converter: SerdeError'
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
