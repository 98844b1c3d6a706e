"""1x1 convolutions and attention made block-sparse: torch's own results, checkpoints and way back."""

import copy
import re
import warnings

import pytest
import tiny_models
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


def uneven(net, head=8):
    """Makes the first head of every weight so small that no block of it is among the largest."""
    with torch.no_grad():
        for weight in (net["attn"].in_proj_weight, net["attn"].out_proj.weight.t()):
            weight[:head] *= 1e-3
    return net


@pytest.mark.parametrize("block", [8, 16])
def test_a_choice_by_layer_says_which_heads_lost_all_blocks_and_by_heads_none_does(block):
    net = uneven(attention(), 8 if block == 8 else 16)
    with pytest.warns(UserWarning, match=r"attn.in_proj: \d+ of 12 heads have no block; scope=\"head\""):
        sparsify_(copy.deepcopy(net), {"attn": BlockSparse(block, 0.25)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify_(net, {"attn": BlockSparse(block, 0.5, scope="head")})
    into, out = (net["attn"].get_submodule(name).pattern for name in ("in_proj", "out_proj"))
    lines = max(1, 8 // block)
    assert set(into.mask.reshape(-1, lines * into.mask.shape[1]).sum(1).tolist()) == {into.mask.shape[1] // 2}
    assert set(out.mask.sum(0).tolist()) == {out.mask.shape[0] // 2}


def test_heads_of_several_block_rows_compete_inside_of_themselves():
    weight = torch.rand(96, 64)
    weight[:8] += 10
    by_head = BlockSparseLinear.from_dense(weight, density=0.25, block=8, scope="head", head=32).pattern
    assert by_head.mask.reshape(3, -1).sum(1).tolist() == [8, 8, 8] and by_head.mask[0].all()
    columns = BlockSparseLinear.from_dense(weight.t(), density=0.25, block=8, scope="head", head=(None, 32))
    assert torch.equal(columns.pattern.mask.t().reshape(3, -1).sum(1), torch.tensor([8, 8, 8]))
    same = sparseloom.pattern.from_dense(weight, 8, 0.25, scope="head", head=(8, None))
    assert same == sparseloom.pattern.from_dense(weight, 8, 0.25, scope="row")


WRONG = {
    "no size": ({"scope": "head"}, r"head as \(out features, in features\) of one head.*got None"),
    "two sizes": ({"scope": "head", "head": (8, 8)}, r"one of them None.*\(8, 8\)"),
    "does not divide": ({"scope": "head", "head": 20}, r"heads that divide the 96 out features.*20"),
    "across blocks": ({"scope": "head", "head": 12}, r"blocks that divide a head of 12 out features.*8"),
    "without scope": ({"head": 8}, r"scope='layer'"),
    "unknown scope": ({"scope": "heads"}, r"scope to be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_heads_that_cannot_be_are_refused(case):
    how, match = WRONG[case]
    with pytest.raises(sparseloom.Error, match=match):
        BlockSparseLinear.from_dense(torch.rand(96, 64), density=0.5, block=8, **how)


HEADS = {  # model: {projection: (out features, in features) of one head}
    "bert": ("BertModel", {
        "encoder.layer.0.attention.self.query": (16, None),
        "encoder.layer.0.attention.output.dense": (None, 16),
        "encoder.layer.0.intermediate.dense": None,
        "encoder.layer.0.output.dense": None,
    }),
    "gpt2": ("GPT2Model", {
        "h.0.attn.c_attn": (16, None), "h.0.attn.c_proj": (None, 16), "h.0.mlp.c_proj": None,
    }),
    "t5": ("T5EncoderModel", {
        "encoder.block.0.layer.0.SelfAttention.k": (16, None),
        "encoder.block.0.layer.0.SelfAttention.o": (None, 16),
        "encoder.block.0.layer.1.DenseReluDense.wo": None,
    }),
    "llama": ("LlamaModel", {
        "layers.0.self_attn.k_proj": (16, None), "layers.0.self_attn.o_proj": (None, 16),
        "layers.0.mlp.down_proj": None,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_size_of_a_head_comes_from_the_attention_that_holds_the_projection(name):
    cls, expected = HEADS[name]
    model = tiny_models.made(cls, name)
    sites = {site.name: site for site in sparseloom.patch.survey.survey(model).sites}
    found = {each: sparseloom.patch.heads.head_of(sites[each]) for each in expected}
    assert found == expected
    projections = [each for each, head in expected.items() if head]
    patterns = {re.escape(each): BlockSparse(8, 0.5, scope="head") for each in projections}
    sparsify_(model, patterns)
    other = next(each for each, head in expected.items() if head is None)
    with pytest.raises(sparseloom.Error, match=r"scope=.head. for layers of an attention.*pass head="):
        sparsify_(model, {re.escape(other): BlockSparse(8, 0.5, scope="head")})
    sparsify_(model, {re.escape(other): BlockSparse(8, 0.5, scope="head", head=8)})
