"""torchao's names for training under 2:4."""

import pytest
import torch
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.utils import parametrizations
from torch.nn.utils.prune import l1_unstructured

import sparseloom
from sparseloom import Error
from sparseloom.ops import semi24
from sparseloom.patch import torchao


def test_torchaos_names_swap_layers_and_back():
    model = nn.Sequential(nn.Linear(16, 32), nn.Sequential(nn.Linear(32, 8)))
    parameters, kind = list(model.parameters()), torchao.SemiSparseLinear
    with pytest.raises(Error, match="no module"):
        torchao.swap_linear_with_semi_sparse_linear(model, {"0": kind, "2": kind})
    assert type(model[0]) is nn.Linear
    torchao.swap_linear_with_semi_sparse_linear(model, {"0": kind, "1.0": kind})
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        assert torch.equal(model[0].mask, semi24.mask(model[0].weight, "transposable_greedy"))
        opt.step()
    torchao.swap_semi_sparse_linear_with_linear(model)
    assert type(model[0]) is type(model[1][0]) is nn.Linear
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


class Doubled(nn.Linear):
    """An nn.Linear with a forward of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def patched_forward():
    layer = nn.Linear(16, 16)
    layer.forward = lambda x: x
    return layer


def masked_by_torch():
    model = nn.Sequential(nn.Linear(16, 16))
    pruner = WeightNormSparsifier(sparse_block_shape=(1, 4), zeros_per_block=2)
    pruner.prepare(model, [{"tensor_fqn": "0.weight"}])
    return model[0]


@pytest.mark.parametrize(
    "made, words",
    [
        (lambda: Doubled(16, 16), "forward is not"),
        (patched_forward, "forward is not"),
        (lambda: parametrizations.weight_norm(nn.Linear(16, 16)), "remove_parametrizations"),
        (lambda: nn.utils.weight_norm(nn.Linear(16, 16)), "remove_weight_norm"),
        (lambda: l1_unstructured(nn.Linear(16, 16), "weight", 0.5), "prune.remove"),
        (masked_by_torch, "torch.ao.pruning"),
        (lambda: nn.Conv2d(4, 4, 1), "Conv2d"),
    ],
)  # fmt: skip
def test_torchaos_names_refuse_what_they_would_change(made, words):
    model = nn.Sequential(nn.Linear(16, 16), made())
    config = {"0": torchao.SemiSparseLinear, "1": torchao.SemiSparseLinear}
    kinds = [type(layer) for layer in model]
    with pytest.raises(Error, match=words):
        torchao.swap_linear_with_semi_sparse_linear(model, config)
    assert [type(layer) for layer in model] == kinds
    with pytest.raises(Error, match="the model itself"):
        torchao.swap_linear_with_semi_sparse_linear(model[0], {"": torchao.SemiSparseLinear})


def test_torchaos_names_keep_torchs_fused_encoder_off_until_they_are_swapped_back():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(3, 9, 32)
    names = [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    torchao.swap_linear_with_semi_sparse_linear(model, dict.fromkeys(names, torchao.SemiSparseLinear))
    wanted = model(x).detach()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)
    assert not model.use_nested_tensor and not model.layers[0].activation_relu_or_gelu
    torchao.swap_semi_sparse_linear_with_linear(model)
    assert model.use_nested_tensor and model.layers[0].activation_relu_or_gelu == 1


@pytest.mark.parametrize("names", [("a",), ("b",), ("a", "b")])
def test_torchaos_names_swap_a_shared_layer_under_all_its_names(names):
    layer = nn.Linear(16, 16)
    model = nn.ModuleDict({"a": layer, "b": layer})
    torchao.swap_linear_with_semi_sparse_linear(model, dict.fromkeys(names, torchao.SemiSparseLinear))
    assert model["a"] is model["b"] and type(model["a"]) is torchao.SemiSparseLinear
    torchao.swap_semi_sparse_linear_with_linear(model)
    assert model["a"] is model["b"] and type(model["b"]) is nn.Linear


def test_torchaos_layer_is_loaded_as_one_whose_mask_moves(tmp_path):
    model, again = nn.Sequential(nn.Linear(16, 32)), nn.Sequential(nn.Linear(16, 32))
    torchao.swap_linear_with_semi_sparse_linear(model, {"0": torchao.SemiSparseLinear})
    sparseloom.save(model, tmp_path / "layer.safetensors")
    sparseloom.load(tmp_path / "layer.safetensors", again, sparsify=True)
    assert type(again[0]) is torchao.SemiSparseLinear and torch.equal(again[0].mask, model[0].mask)
    with torch.no_grad():
        again[0].weight.copy_(torch.randn(32, 16))
    again(torch.randn(2, 16))
    assert torch.equal(again[0].mask, semi24.mask(again[0].weight, "transposable_greedy"))
