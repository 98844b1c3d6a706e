"""Operands that lie on another device than the others, above all on meta: our Error from every operator and
layer, and never memory that nobody wrote. And layers whose tensors accelerate keeps elsewhere."""

import copy

import pytest
import torch
from eight_bits import quantized
from torch import nn

import sparseloom
from sparseloom import nn as snn
from sparseloom import pattern
from sparseloom.nn import BlockSparseLinear

OPERATORS = sorted(
    name.removeprefix("sparseloom::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("sparseloom::")
    and torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
    and "." not in name
)
#: What stands for an argument that is no tensor: the devices are looked at before all else.
DUMMIES = {"int": 1, "SymInt": 1, "bool": False, "float": 1.0, "str": "", "ScalarType": torch.float32}


def operator(name):
    return getattr(torch.ops.sparseloom, name).default


def tensors_of(name):
    kinds = [str(each.type) for each in operator(name)._schema.arguments]
    return [i for i, kind in enumerate(kinds) if "Tensor" in kind]


@pytest.mark.parametrize("name", [name for name in OPERATORS if len(tensors_of(name)) > 1])
def test_no_operator_takes_a_single_operand_on_meta(name):
    arguments = operator(name)._schema.arguments
    tensors = tensors_of(name)
    for meta in tensors:
        given = [DUMMIES.get(str(each.type), [1]) for each in arguments]
        for i in tensors:
            given[i] = torch.zeros(4, device="meta" if i == meta else "cpu")
            given[i] = [given[i]] if str(arguments[i].type).startswith("List") else given[i]
        found = arguments[meta if meta != tensors[0] else tensors[1]].name
        with pytest.raises(RuntimeError, match=f"expected {found} on .*meta"):
            operator(name)(*given)


def sparse_linear(layout, **options):
    weight = torch.randn(32, 32) * (torch.rand(32, 32) < 0.2)
    return snn.SparseLinear.from_dense(weight, layout, bias=torch.randn(32), **options)


def semi24():
    weight = torch.randn(32, 32).view(-1, 4)
    weight[:, 1:3] = 0
    dense = nn.Linear(32, 32)
    dense.weight.data = weight.view(32, 32)
    return snn.Semi24Linear.from_dense(dense)


def blocks(**options):
    return BlockSparseLinear(32, 32, density=0.5, block=8, **options)


def small_world():
    return snn.SmallWorldLSTM(32, 32, pattern=lambda step: pattern.balanced(32, 32, 8, 0.5), classes=4)


TOKENS, STEPS, IMAGES = (6, 32), (5, 2, 32), (2, 32, 9, 9)
LAYERS = {
    "blocks": (blocks, TOKENS),
    "gelu": (lambda: blocks(activation="gelu"), TOKENS),
    "dense_copy": (lambda: blocks(dense_copy=True), TOKENS),
    "capacity": (lambda: blocks(capacity=0.8), TOKENS),
    "gated": (lambda: snn.GatedBlockSparseLinear(blocks()), TOKENS),
    "masked": (lambda: snn.MaskedLinear(32, 32, block=8), TOKENS),
    "int8": (lambda: quantized(blocks()), TOKENS),
    "semi24": (semi24, TOKENS),
    "semi24_int8": (lambda: snn.QuantizedSemi24Linear.from_sparse(semi24()), TOKENS),
    "csr": (lambda: sparse_linear("csr"), TOKENS),
    "coo": (lambda: sparse_linear("coo"), TOKENS),
    "bitmap": (lambda: sparse_linear("bitmap"), TOKENS),
    "bitmap_int8": (lambda: snn.QuantizedSparseLinear.from_sparse(sparse_linear("bitmap")), TOKENS),
    "nm": (lambda: sparse_linear("nm", n=1, m=8), TOKENS),
    "nmg": (lambda: sparse_linear("nmg", n=1, m=8, g=2), TOKENS),
    "conv": (lambda: snn.BlockSparseConv2d(32, 32, 3, padding=1, density=0.5, block=8), IMAGES),
    "conv_transpose": (lambda: snn.BlockSparseConvTranspose2d(32, 32, 3, density=0.5, block=8), IMAGES),
    "lstm": (lambda: snn.BlockSparseLSTM(32, 32, density=0.5, block=8), STEPS),
    "lstm_projected": (lambda: snn.BlockSparseLSTM(32, 32, density=0.5, block=8, proj_size=16), STEPS),
    "lstm_dense": (lambda: snn.BlockSparseLSTM(32, 32, density=1.0, input_density=0.5, block=8), STEPS),
    "gru": (lambda: snn.BlockSparseGRU(32, 32, density=0.5, block=8), STEPS),
    "attention": (
        lambda: snn.BlockSparseMultiheadAttention(
            nn.MultiheadAttention(32, 4), BlockSparseLinear(32, 96, density=0.5, block=8), blocks()
        ),
        STEPS,
    ),
    "small_world": (small_world, STEPS),
}
#: Torch's own modules inside, which answer for themselves: F.linear of torch 2.13 does not look at the device
#: of a weight that comes without a bias. A gate's first operator on meta imports all of Dynamo.
NOT_OURS = {"gate", "multiply", "add", "multiply_norm", "add_norm", "head", "head.parametrizations.weight"}
#: What no product reads: a capacity's flags, and an index whose side-by-side twin is made of the pattern.
UNREAD = {("", "requested_blocks"), ("", "topology_flags"), ("gates", "packed_index")}


def made(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    return make().eval(), torch.randn(shape)


def called(layer, x):
    y = layer(x, x, x) if isinstance(layer, snn.BlockSparseMultiheadAttention) else layer(x)
    while isinstance(y, tuple):
        y = y[0]
    return y


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_with_one_tensor_left_on_meta_raises(name, grad):
    layer, x = made(name)
    called(layer, x)  # what it keeps from call to call does not help
    for where, module in layer.named_modules():
        if where in NOT_OURS:
            continue
        for held in ("_parameters", "_buffers"):
            for tensor, kept in getattr(module, held).items():
                if kept is None or (where, tensor) in UNREAD:
                    continue
                broken = copy.deepcopy(layer)
                moved = kept.detach().to("meta")
                moved = nn.Parameter(moved, kept.requires_grad) if held == "_parameters" else moved
                getattr(broken.get_submodule(where), held)[tensor] = moved
                with torch.set_grad_enabled(grad), pytest.raises(sparseloom.Error, match="meta"):
                    called(broken, x)


def test_a_bias_that_an_assigned_state_dict_lacks_is_named():
    with torch.device("meta"):
        layer = blocks()
    layer.load_state_dict({k: v for k, v in blocks().state_dict().items() if k != "bias"}, False, True)
    with pytest.raises(
        sparseloom.Error, match="bias on cpu, as x, got meta; give a module on meta its tensors"
    ):
        layer(torch.randn(3, 32))


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inside = layer

    def forward(self, x):
        return called(self.inside, x)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "capacity"])
def test_accelerate_offloads_every_layer_as_it_does_an_lstm_of_torch(name):
    """A layer with a capacity is refused by accelerate in its own words: its state dict has other sizes."""
    accelerate = pytest.importorskip("accelerate")
    layer, x = made(name)
    model = Model(layer)
    with torch.no_grad():
        expected = model(x)
        accelerate.cpu_offload(model, torch.device("cpu"))
        for _ in range(2):
            torch.testing.assert_close(model(x), expected)
    assert all(parameter.is_meta for parameter in model.parameters())
