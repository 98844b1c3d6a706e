#!/usr/bin/env bash
# ONNX has two forms for a sparse weight, and the runtimes differ in which they read.
#
# A graph may hold a SparseTensor among its sparse_initializer, or as the sparse_value of a Constant; its indices are
# linear [nnz] or of two dimensions [nnz, 2]. onnx.checker takes all four. Seen with onnx 1.23.2, onnxruntime 1.32.0 and
# OpenVINO 2026.4.1 on x @ W: onnxruntime is right on all four; OpenVINO refuses any sparse_initializer (RuntimeError)
# and is right on Constants; onnx's own ReferenceEvaluator refuses all (ValueError, TypeError).
#
# Whom it hurts: whoever exports a sparse model as a small file and hands it on. The form that runs everywhere is the
# dense one with zeros, which save(model, path, format="dense") and densify_ make here.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 \
  openvino==2026.4.1 numpy==2.4.6
cat >"$folder/forms.py" <<'PY'
import io

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

weight = np.array([[0, 2, 0], [3, 0, 0], [0, 0, 5], [0, 7, 0]], np.float32)
x = np.arange(8, dtype=np.float32).reshape(2, 4)
row, col = weight.nonzero()


def sparse(name, dims):
    places = np.stack([row, col], 1) if dims == 2 else row * 3 + col
    indices = numpy_helper.from_array(places.astype(np.int64))
    return helper.make_sparse_tensor(numpy_helper.from_array(weight[row, col], name), indices, [4, 3])


def model(way, dims):
    nodes, how = [helper.make_node("MatMul", ["x", "w"], ["y"])], {}
    if way == "initializer":
        how["sparse_initializer"] = [sparse("w", dims)]
    else:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse("", dims)))
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, size])] for n, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "g", *ends, **how)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def by_onnxruntime(made):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def by_openvino(made):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(made.SerializeToString())), "CPU")
    return next(iter(compiled([x]).values()))


def by_reference(made):
    return ReferenceEvaluator(made).run(None, {"x": x})[0]


def outcome(run, made):
    try:
        return "right" if np.array_equal(run(made), x @ weight) else "wrong"
    except Exception as error:
        return type(error).__name__


for way in ("initializer", "constant"):
    for dims in (1, 2):
        seen = [outcome(run, model(way, dims)) for run in (by_onnxruntime, by_openvino, by_reference)]
        print(way, dims, *seen)
PY
seen=$("$folder/venv/bin/python" -W ignore "$folder/forms.py" 2>"$folder/log") || { cat "$folder/log"; exit 1; }
echo "form, dimensions of the indices: onnxruntime, OpenVINO, onnx's reference"
echo "$seen"
[ "$seen" = 'initializer 1 right RuntimeError ValueError
initializer 2 right RuntimeError ValueError
constant 1 right right TypeError
constant 2 right right TypeError' ] && echo "as stated"
