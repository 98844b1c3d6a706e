#!/usr/bin/env bash
# LiteRT takes a model with sparse weights, prepares it, and refuses most block forms only when it runs.
#
# A fully connected layer of float32 whose weight has SparsityParameters. Seen with ai-edge-litert 2.3.0, CPU, with and without
# its XNNPACK delegate: elements and blocks of 1 x 4, by rows, give the right numbers. Blocks of 1 x 8, 1 x 16, 4 x 4, 16 x 1 and
# 16 x 16, and elements by columns, which the schema can say as well, pass the interpreter's constructor and allocate_tensors();
# invoke() raises RuntimeError.
#
# Whom it hurts: whoever exports blocks that are good on other hardware, and tests a load alone.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy==2.4.6
cat >"$folder/forms.py" <<'PY'
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as s
from ai_edge_litert.interpreter import Interpreter, OpResolverType

ROWS, COLS, TOKENS = 32, 64, 3
rng = np.random.default_rng(0)


def dense(size):
    made = s.DimensionMetadataT()
    made.format, made.denseSize = s.DimensionType.DENSE, size
    return made


def sparse(segments, indices):
    made = s.DimensionMetadataT()
    made.format = s.DimensionType.SPARSE_CSR
    for name, values in (("arraySegments", segments), ("arrayIndices", indices)):
        vector = s.Int32VectorT()
        vector.values = [int(v) for v in values]
        setattr(made, name, vector)
        setattr(made, name + "Type", s.SparseIndexVector.Int32Vector)
    return made


def sparsity(weight, block, by_columns):
    """The parameters of the stored blocks, and their values, row by row or column by column."""
    bm, bn = block
    grid = weight.reshape(ROWS // bm, bm, COLS // bn, bn).transpose(0, 2, 1, 3)
    kept = grid.any((2, 3))
    if by_columns:
        grid, kept = grid.swapaxes(0, 1), kept.T
    made = s.SparsityParametersT()
    order = [1, 0] if by_columns else [0, 1]
    made.blockMap = [axis for axis in (0, 1) if block[axis] > 1]
    made.traversalOrder = order + list(range(2, 2 + len(made.blockMap)))
    lines = sparse(np.concatenate([[0], kept.sum(1).cumsum()]), kept.nonzero()[1])
    made.dimMetadata = [dense(len(kept)), lines] + [dense(block[axis]) for axis in made.blockMap]
    return made, np.ascontiguousarray(grid[kept]).reshape(-1)


def model(weight, form):
    made = s.ModelT()
    made.version, made.description = 3, "one layer"
    made.buffers = [s.BufferT() for _ in range(4)]
    graph = s.SubGraphT()
    made.subgraphs = [graph]

    def tensor(name, shape, buffer):
        each = s.TensorT()
        each.name, each.shape, each.buffer, each.type = name, list(shape), buffer, s.TensorType.FLOAT32
        return each

    w = tensor("weight", weight.shape, 1)
    values = weight
    if form is not None:
        w.sparsity, values = sparsity(weight, *form)
    made.buffers[1].data = np.frombuffer(values.astype(np.float32).tobytes(), np.uint8)
    made.buffers[2].data = np.frombuffer(np.zeros(ROWS, np.float32).tobytes(), np.uint8)
    graph.tensors = [tensor("x", (TOKENS, COLS), 0), w, tensor("bias", (ROWS,), 2), tensor("y", (TOKENS, ROWS), 0)]
    code = s.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = s.BuiltinOperator.FULLY_CONNECTED
    code.version = 8 if form is not None else 1
    made.operatorCodes = [code]
    op = s.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = 0, [0, 1, 2], [3]
    op.builtinOptionsType = s.BuiltinOptions.FullyConnectedOptions
    op.builtinOptions = s.FullyConnectedOptionsT()
    graph.operators, graph.inputs, graph.outputs = [op], [0], [3]
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def weight_of(block):
    kept = rng.random((ROWS // block[0], COLS // block[1])) < 0.4
    return (rng.standard_normal((ROWS, COLS)) * np.kron(kept, np.ones(block))).astype(np.float32)


def outcome(content, x, expected, resolver):
    run = Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    run.allocate_tensors()
    run.set_tensor(run.get_input_details()[0]["index"], x)
    try:
        run.invoke()
    except RuntimeError as error:
        return "refused by invoke" if "sparse fully-connected" in str(error) else str(error)
    off = np.abs(run.get_tensor(run.get_output_details()[0]["index"]) - expected).max()
    return "right" if off < 1e-4 else f"wrong by {off:.2g}"


forms = [(block, False) for block in ((1, 1), (1, 4), (1, 8), (1, 16), (4, 4), (16, 1), (16, 16))]
for form in [None, *forms, ((1, 1), True)]:
    weight = weight_of((1, 4) if form is None else form[0])
    x = rng.standard_normal((TOKENS, COLS)).astype(np.float32)
    name = "dense" if form is None else "%d x %d by %s" % (*form[0], "columns" if form[1] else "rows")
    resolvers = (OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    print(f"{name}:", *{outcome(model(weight, form), x, x @ weight.T, each) for each in resolvers})
PY
seen=$("$folder/venv/bin/python" "$folder/forms.py" 2>"$folder/log") || { cat "$folder/log"; exit 1; }
echo "$seen"
wanted='dense: right
1 x 1 by rows: right
1 x 4 by rows: right
1 x 8 by rows: refused by invoke
1 x 16 by rows: refused by invoke
4 x 4 by rows: refused by invoke
16 x 1 by rows: refused by invoke
16 x 16 by rows: refused by invoke
1 x 1 by columns: refused by invoke'
[ "$seen" = "$wanted" ] && echo "as stated"
