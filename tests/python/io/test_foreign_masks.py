"""load of dense weights with masks, norms, scores and missing heads, as pruning tools write them."""

import copy
import shutil

import pytest
import safetensors.torch
import torch
from foreign_files import FOREIGN, Inside, dense_of, net
from torch import nn
from torch.nn.utils import prune

from sparseloom import Error, load


def test_heads_that_nn_pruning_left_out_are_zeros():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig.from_pretrained(FOREIGN / "pruned-heads", pruned_heads={})
    model = transformers.BertModel(config).half()
    load(FOREIGN / "pruned-heads", model)
    for name, tensor in dense_of("pruned-heads").items():
        assert torch.equal(model.state_dict()[name], tensor), name


class Tied(nn.Module):
    """Embeddings that the head shares, and a layer under two names."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(24, 16), nn.Linear(16, 16)
        self.again, self.head = self.layer, nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("left_out", [["head.weight"], ["embed.weight"], ["again.weight", "again.bias"], []])
def test_tied_weights_are_filled_on_the_meta_device_and_stay_tied(left_out):
    model = Tied()
    entries = {k: v.clone() for k, v in model.state_dict().items() if k not in left_out}
    entries["layer.weight_mask"] = torch.ones(16, 16)
    entries["layer.weight_orig"] = entries.pop("layer.weight")  # of torch.nn.utils.prune
    with torch.device("meta"):
        loaded = Tied()
    load(entries, loaded)
    assert loaded.head.weight is loaded.embed.weight and loaded.again is loaded.layer
    assert all(torch.equal(tensor, loaded.state_dict()[k]) for k, tensor in model.state_dict().items())


def test_supermasks_are_multiplied_with_the_weights_they_keep(tmp_path):
    model = nn.Sequential(nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 4))
    load(FOREIGN / "supermask", model)
    for name, tensor in dense_of("supermask").items():
        assert torch.equal(model.state_dict()[name], tensor), name
    state = torch.load(FOREIGN / "supermask" / "model_0.pth", weights_only=False)["model"]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(Error, match="the sparsity of 0, which no entry says"):
        load(tmp_path / "weights.pth", model)
    named = tmp_path / "sp0.60-ts8"
    named.mkdir()
    shutil.copy(tmp_path / "weights.pth", named)
    load(named, model)
    assert torch.equal(model[0].weight, dense_of("supermask")["0.weight"])
    state["0.scores"] = torch.rand(5, 7)
    with pytest.raises(Error, match=r"0\.scores with one score a tile"):
        load(state, model)


@pytest.mark.parametrize("name", ["nncf", "nncf-trained"])
def test_masks_that_nncf_keeps_in_hooks_are_multiplied(name):
    model = Inside()
    load(FOREIGN / name, model)
    state, dense = model.state_dict(), dense_of(name)
    assert state.keys() == dense.keys() and all(
        (tensor == 0).any() for tensor in dense.values() if tensor.dim() > 1
    )
    assert all(torch.equal(tensor, state[key]) for key, tensor in dense.items())


MASK = "__nncf_hooks.post_hooks.layers:0:weight__0.0.binary_mask"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {MASK: torch.ones(12, 19)},
            r"nncf's mask of layers\.0\.weight with its shape, got \[12, 19\] for \[12, 20\]",
        ),
        (
            {MASK.replace(":0:", ":1:"): torch.ones(3)},
            r"mask of layers\.1\.weight with its shape, got \[3\] for none",
        ),
        (
            {MASK.replace("binary_mask", "scale"): torch.ones(1)},
            r"hooks of nncf that mask weights, got .*IN_PLACE",
        ),
        (
            {MASK.replace("post", "pre"): torch.ones(12, 20)},
            r"hooks of nncf that mask weights, got .*pre_hooks",
        ),
    ],
)
def test_other_hooks_of_nncf_are_refused(changes, message):
    state = safetensors.torch.load_file(FOREIGN / "nncf" / "model.safetensors")
    model = Inside()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(Error, match=message):
        load(state | changes, model)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_a_tied_weight_that_nncf_masks_under_one_name_is_masked_under_both():
    model = Tied()
    entries = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    entries["head.weight"] = entries["embed.weight"]
    kept = torch.rand(24, 16) < 0.5
    entries["__nncf_hooks.post_hooks.embed:weight__0.0.binary_mask"] = kept
    weight = model.embed.weight.detach() * kept
    load(entries, model)
    assert torch.equal(model.head.weight, weight) and model.embed.weight is model.head.weight


def test_masks_of_torch_and_sparseml_are_multiplied(tmp_path):
    masked, model = net(torch.float32), net(torch.float32)
    for layer in (masked[0], masked[2]):
        prune.l1_unstructured(layer, "weight", 0.5)
    torch.save({"state_dict": masked.state_dict(), "epoch": 3}, tmp_path / "model.pth")
    load(tmp_path / "model.pth", model)
    assert all(torch.equal(model[i].weight, masked[i].weight) for i in (0, 2))


def test_a_state_dict_without_the_masks_of_torch_ao_pruning_is_refused():
    from torch.ao.pruning import WeightNormSparsifier

    masked, model = net(torch.float32), net(torch.float32)
    pruner = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    pruner.prepare(masked, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])
    pruner.step()
    with pytest.raises(Error, match=r"got [02]\.parametrizations\.weight\.original; call squash_mask"):
        load(masked.state_dict(), model)
    pruner.squash_mask()
    load(masked.state_dict(), model)
    assert all(torch.equal(model[i].weight, masked[i].weight) for i in (0, 2))
