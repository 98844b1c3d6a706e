"""LiteRT's model files, built by its own schema: linear layers one after another, with ReLU between them."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter


def _dense(size):
    made = schema.DimensionMetadataT()
    made.format, made.denseSize = schema.DimensionType.DENSE, size
    return made


def _sparse(segments, indices):
    made = schema.DimensionMetadataT()
    made.format = schema.DimensionType.SPARSE_CSR
    for name, values in (("arraySegments", segments), ("arrayIndices", indices)):
        vector = schema.Int32VectorT()
        vector.values = values.tolist()
        setattr(made, name, vector)
        setattr(made, name + "Type", schema.SparseIndexVector.Int32Vector)
    return made


def _sparsity(weight, block):
    """Returns LiteRT's index of the blocks that hold more than zeros, by rows, and their values."""
    bm, bn = block
    grid = weight.reshape(len(weight) // bm, bm, -1, bn).transpose(0, 2, 1, 3)
    kept = grid.any((2, 3))
    made = schema.SparsityParametersT()
    made.blockMap = [axis for axis in (0, 1) if block[axis] > 1]
    made.traversalOrder = list(range(2 + len(made.blockMap)))
    lines = _sparse(np.concatenate([[0], kept.sum(1).cumsum()]), kept.nonzero()[1])
    made.dimMetadata = [_dense(len(kept)), lines] + [_dense(block[axis]) for axis in made.blockMap]
    return made, grid[kept]


def _operator(inputs, output, activation):
    made = schema.OperatorT()
    made.opcodeIndex, made.inputs, made.outputs = 0, inputs, [output]
    made.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
    made.builtinOptions = schema.FullyConnectedOptionsT()
    made.builtinOptions.fusedActivationFunction = activation
    return made


def file_of(layers, tokens, block=None):
    """Returns the bytes of a model of float32 (weight, bias) pairs, for x [tokens, in]. ``block``: the size
    of the blocks that are stored where they are not zero; None: dense."""
    model, graph, code = schema.ModelT(), schema.SubGraphT(), schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FULLY_CONNECTED
    code.version = 1 if block is None else 8
    model.version, model.subgraphs, model.operatorCodes = 3, [graph], [code]
    model.buffers, graph.tensors, graph.operators = [schema.BufferT()], [], []

    def tensor(shape, values=None):
        made = schema.TensorT()
        made.name, made.shape, made.buffer = str(len(graph.tensors)), list(shape), 0
        made.type = schema.TensorType.FLOAT32
        if values is not None:
            made.buffer = len(model.buffers)
            model.buffers.append(schema.BufferT())
            model.buffers[-1].data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    last = tensor((tokens, layers[0][0].shape[1]))
    graph.inputs = [last]
    for at, (weight, bias) in enumerate(layers):
        sparsity, values = (None, weight) if block is None else _sparsity(weight, block)
        inputs = [last, tensor(weight.shape, values), tensor(bias.shape, bias)]
        graph.tensors[inputs[1]].sparsity = sparsity
        last = tensor((tokens, len(weight)))
        names = schema.ActivationFunctionType
        graph.operators.append(_operator(inputs, last, names.RELU if at + 1 < len(layers) else names.NONE))
    graph.outputs = [last]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(content, x):
    """Returns what LiteRT makes of x with a model file."""
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
