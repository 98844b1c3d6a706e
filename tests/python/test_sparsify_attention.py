"""1x1 convolutions and attention made block-sparse: torch's own results, checkpoints and way back."""

import copy

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, densify_, sparsify_
from sparseloom.nn import BlockSparseConv1x1, BlockSparseLinear, BlockSparseMultiheadAttention

HALF = BlockSparse(block=16, density=0.5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("conv", "positions"), [(nn.Conv1d, (7,)), (nn.Conv2d, (5, 6)), (nn.Conv3d, (3, 4, 5))]
)
def test_1x1_convolutions(conv, positions, stride):
    torch.manual_seed(0)
    net = nn.Sequential(conv(48, 70, 1, stride=stride), conv(70, 16, 3))
    dense, x = copy.deepcopy(net[0]), torch.randn(2, 48, *positions)
    result = sparsify_(net, {"0": BlockSparse(16, 1.0)})
    assert isinstance(net[0], BlockSparseConv1x1) and "no pattern matches: 1" in str(result)
    torch.testing.assert_close(net[0](x), dense(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(net[0](x[0]), dense(x[0]), atol=1e-4, rtol=1e-4)  # without a batch
    net[0].load_state_dict(dense.state_dict())
    torch.testing.assert_close(net[0](x), dense(x), atol=1e-4, rtol=1e-4)
    densify_(net)
    assert type(net[0]) is conv and torch.equal(net[0].weight, dense.weight) and net[0].stride == dense.stride
    with pytest.raises(sparseloom.Error, match="groups"):
        sparsify_(nn.Sequential(conv(32, 32, 1, groups=2)), {"0": HALF})
    padded = nn.Sequential(conv(32, 32, 1, padding=1))
    sparsify_(padded, {"0": HALF})
    assert not isinstance(padded[0], (conv, BlockSparseConv1x1))  # test_conv_options.py compares it
    sparsify_(net, {"1": HALF})
    assert not isinstance(net[1], (conv, BlockSparseConv1x1))  # test_conv.py has those of other kernels


def attention(**options):
    torch.manual_seed(0)
    net = nn.ModuleDict({"attn": nn.MultiheadAttention(32, 4, **options)})
    for p in net.parameters():
        nn.init.normal_(p, std=0.2)
    return net


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    ],
)
def test_attention_gives_what_torchs_own_gives(options, need):
    net = attention(**options)
    dense = copy.deepcopy(net["attn"])
    sparsify_(net, {"attn": BlockSparse(16, 1.0)})
    sparse = net["attn"]
    assert isinstance(sparse, BlockSparseMultiheadAttention) and isinstance(sparse.in_proj, BlockSparseLinear)
    batch_first = options.get("batch_first", False)
    q, kv = torch.randn(2, 5, 32), torch.randn(2, 6, 32)
    padding, causal = torch.zeros(2, 5, dtype=torch.bool), torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding[1, 3:] = True
    calls = [
        ((q, q, q), {"key_padding_mask": padding, "attn_mask": causal}),
        ((q, q, q), {"attn_mask": torch.randn(8, 5, 5), "average_attn_weights": False}),
        ((q, kv, kv), {}),
        ((q, kv, kv.clone()), {}),
    ]
    for tensors, keywords in calls:
        tensors = tensors if batch_first else tuple(t.transpose(0, 1) for t in tensors)
        if tensors[0].shape == tensors[1].shape:
            tensors = (tensors[0],) * 3
        (y, weights), (expected, dense_weights) = (
            f(*tensors, need_weights=need, **keywords) for f in (sparse, dense)
        )
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
        assert (weights is None) == (dense_weights is None) == (not need)
        if need:
            torch.testing.assert_close(weights, dense_weights, atol=1e-5, rtol=1e-4)
    single = (q[0], q[0], q[0])
    torch.testing.assert_close(sparse(*single)[0], dense(*single)[0], atol=1e-5, rtol=1e-4)
    densify_(net)
    assert torch.equal(net["attn"].in_proj_weight, dense.in_proj_weight)
    assert net["attn"].state_dict().keys() == dense.state_dict().keys()


def test_one_projection_of_attention_alone_and_dense_checkpoints():
    net = attention()
    dense, weight = copy.deepcopy(net["attn"]), net["attn"].in_proj_weight
    result = sparsify_(net, {r"attn\.out_proj": BlockSparse(16, 1.0)})
    assert [change.names for change in result.changed] == [("attn.out_proj",)] and net[
        "attn"
    ].in_proj.weight is weight
    net["attn"].load_state_dict(attention()["attn"].state_dict())
    q = torch.randn(5, 2, 32)
    torch.testing.assert_close(net["attn"](q, q, q)[0], dense(q, q, q)[0], atol=1e-5, rtol=1e-4)
    with pytest.raises(sparseloom.Error, match="keep weights apart"):
        sparsify_(nn.Sequential(nn.MultiheadAttention(32, 4, kdim=16)), {"0": HALF})


@pytest.mark.parametrize("chosen", [r".*self_attn", r".*linear[12]"])
def test_torchs_transformer_encoder_takes_no_way_around_the_sparse_layers(chosen):
    torch.manual_seed(0)
    net = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2
    ).eval()
    x, padding = torch.randn(2, 5, 32), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    fused = [layer.activation_relu_or_gelu for layer in net.layers], net.use_nested_tensor
    with torch.no_grad():
        expected = net.train()(x, src_key_padding_mask=padding)[~padding]
        sparsify_(net.eval(), {chosen: BlockSparse(16, 1.0)})
        torch.testing.assert_close(
            net(x, src_key_padding_mask=padding)[~padding], expected, atol=1e-5, rtol=1e-4
        )
        densify_(net)
        assert ([layer.activation_relu_or_gelu for layer in net.layers], net.use_nested_tensor) == fused
        torch.testing.assert_close(
            net(x, src_key_padding_mask=padding)[~padding], expected, atol=1e-5, rtol=1e-4
        )
