"""BlockSparseModelPatcher and models of the transformers package: the example that pytorch_block_sparse
shows."""

import re

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, BlockSparseModelPatcher, densify_, sparsify_
from sparseloom.nn import BlockSparseLinear, BlockSparseTransformersConv1D

transformers = pytest.importorskip("transformers")

ROBERTA = [
    r"roberta\.encoder\.layer\.[0-9]+\.intermediate\.dense",
    r"roberta\.encoder\.layer\.[0-9]+\.output\.dense",
    r"roberta\.encoder\.layer\.[0-9]+\.attention\.output\.dense",
]


def roberta_config(**changes):
    """The configuration of that example: 6 layers of 768, 52,000 words."""
    sizes = {
        "vocab_size": 52_000,
        "max_position_embeddings": 514,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
    }
    return transformers.RobertaConfig(**(sizes | {"type_vocab_size": 1} | changes))


def small(**changes):
    sizes = {
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    return roberta_config(**(sizes | changes))


def test_the_roberta_example_84_million_parameters_become_68_million():
    model = transformers.RobertaForMaskedLM(config=roberta_config())
    dense = model.num_parameters()
    patcher = BlockSparseModelPatcher()
    for pattern in ROBERTA:
        patcher.add_pattern(pattern, {"density": 0.5})
    result = patcher.patch_model(model)
    assert len(result.changed) == 18
    assert result.parameters == (dense, model.num_parameters()) == (83_504_416, 67_579_168)
    assert "no pattern matches: roberta.encoder.layer.0-5.attention.self.query (Linear), " in str(result)


def test_the_patched_model_trains_with_what_it_kept():
    torch.manual_seed(0)
    model = transformers.RobertaForMaskedLM(small())
    patcher = BlockSparseModelPatcher()
    for pattern in ROBERTA:
        patcher.add_pattern(pattern, {"density": 0.5})
    patcher.patch_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(3, 100, (4, 12))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.9


def test_a_classifier_of_768_by_1000_converts_though_1000_is_no_multiple_of_the_block():
    net = nn.ModuleDict({"body": nn.Linear(8, 8), "classifier": nn.Linear(768, 1000)})
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern("classifier", {"density": 0.5})
    patcher.patch_model(net)
    assert isinstance(net["classifier"], BlockSparseLinear) and net["classifier"](
        torch.randn(3, 768)
    ).shape == (3, 1000)


def test_patchable_layers_are_listed_with_an_expression_for_each():
    model = transformers.RobertaForMaskedLM(small())
    layers = BlockSparseModelPatcher().get_patchable_layers(model)
    names = dict(model.named_modules())
    assert len(layers) == 2 * 6 + 2  # six in each encoder layer, two in the head
    for entry in layers:
        assert [
            name for name in names if re.fullmatch(entry["regexp"], name) and names[name] is entry["layer"]
        ]


def test_the_same_errors_as_sparsify():
    model = transformers.RobertaForMaskedLM(small())
    patcher = BlockSparseModelPatcher()
    with pytest.raises(sparseloom.Error, match="call add_pattern first"):
        patcher.patch_model(model)
    with pytest.raises(sparseloom.Error, match="pseudo_linear has no counterpart"):
        patcher.add_pattern("x", {"density": 0.5, "pseudo_linear": True})
    with pytest.raises(sparseloom.Error, match="density in"):
        patcher.add_pattern("x", {})
    patcher.add_pattern(r"roberta\.encoder\.layers\..*", {"density": 0.5})
    with pytest.raises(
        sparseloom.Error, match=r"names are matched whole; linear layers are roberta\.encoder\.layer\."
    ):
        patcher.patch_model(model)
    with pytest.raises(sparseloom.Error, match="again"):
        patcher.add_pattern(r"roberta\.encoder\.layers\..*", {"density": 0.25})


def test_strict_and_the_optimizer_go_through_the_patcher():
    net = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern("[ab]", {"density": 0.5, "block": 16})
    with pytest.raises(sparseloom.Error, match=r"strict=True\), got b: too small"):
        patcher.patch_model(net, strict=True, optimizer=optimizer)
    result = patcher.patch_model(net, optimizer=optimizer)
    assert [change.names for change in result.changed] == [("a",)]
    assert any(parameter is net["a"].values for parameter in optimizer.param_groups[0]["params"])


def test_a_tied_output_layer_is_refused_by_name():
    model = transformers.RobertaForMaskedLM(small(tie_word_embeddings=True))
    with pytest.raises(
        sparseloom.Error, match=r"lm_head\.decoder: tied to roberta\.embeddings\.word_embeddings\.weight"
    ):
        sparsify_(model, {r"lm_head\.decoder": BlockSparse(16, 0.5)})


def test_gpt2_conv1d_becomes_sparse_gives_the_same_and_goes_back():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=100, n_embd=64, n_head=4, n_layer=2, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = torch.randint(0, 100, (2, 9))
    expected = model(tokens).logits
    sparsify_(model, {r".*c_attn|.*c_fc|.*c_proj": BlockSparse(16, 1.0)})
    assert isinstance(model.transformer.h[0].attn.c_attn, BlockSparseTransformersConv1D)
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-4, rtol=1e-4)
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.load_state_dict(dense)  # a dense checkpoint, stored [in, out]
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-4, rtol=1e-4)
    densify_(model)
    assert type(model.transformer.h[0].mlp.c_fc) is transformers.pytorch_utils.Conv1D
    assert all(torch.equal(tensor, dense[name]) for name, tensor in model.state_dict().items())


def test_albert_shares_one_layer_among_all():
    config = transformers.AlbertConfig(
        vocab_size=100,
        embedding_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_hidden_layers=3,
    )
    model = transformers.AlbertModel(config).eval()
    result = sparsify_(model, {r".*(query|key|value|ffn|ffn_output)": BlockSparse(16, 0.5)})
    assert len(result.changed) == 5
    assert model(torch.randint(0, 100, (2, 7))).last_hidden_state.shape == (2, 7, 64)
