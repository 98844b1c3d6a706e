"""load(sparsify=True): a dense model becomes block-sparse as the file says, or stays as it was."""

import copy
import logging
import random

import pytest
import safetensors
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, InLayout, Semi24, sparsify_
from sparseloom.io import model_file
from sparseloom.nn import BlockSparseConv1x1, BlockSparseLinear


class Model(nn.Module):
    """Every kind of module that becomes sparse, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 40, 1, stride=2)
        self.encoder = nn.TransformerEncoderLayer(40, 4, 70, batch_first=True)
        self.up = nn.Linear(40, 40)
        self.again = self.up
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return self.head(self.again(torch.relu(self.up(self.encoder(x)))))


def saved(path, seed=0):
    torch.manual_seed(seed)
    model = Model().eval()
    sparsify_(model, {"conv|up": BlockSparse(8, 0.5), "encoder.*": BlockSparse(8, 0.4, "random")})
    sparseloom.save(model, path)
    return model


def types(model):
    return {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}


def test_a_dense_model_becomes_sparse_from_the_files_own_metadata(tmp_path):
    model, x = saved(tmp_path / "m"), torch.randn(2, 16, 6, 6)
    torch.manual_seed(1)
    loaded = Model().eval()
    sparseloom.load(tmp_path / "m", loaded, sparsify=True)
    assert types(loaded) == types(model) and loaded.again is loaded.up
    assert isinstance(loaded.conv, BlockSparseConv1x1) and isinstance(
        loaded.encoder.self_attn.in_proj, BlockSparseLinear
    )
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    assert torch.equal(loaded(x), model(x))
    loaded.train()(x).sum().backward()
    assert loaded.up.values.grad is not None
    sparseloom.load(tmp_path / "m", loaded, sparsify=True)  # it is sparse already


RECIPES = {
    "csr": InLayout("csr", density=0.3),
    "coo": InLayout("coo", density=0.3),
    "bitmap": InLayout("bitmap", density=0.3),
    "nm": InLayout("nm", n=1, m=4),
    "nmg": InLayout("nmg", n=1, m=4, g=4),
    "2:4": Semi24("magnitude"),
    "blocks": BlockSparse(8, 0.5),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_layers_that_were_one_in_the_file_share_no_memory(recipe, tmp_path):
    tied, apart = nn.Sequential(*[nn.Linear(32, 32)] * 2), nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    sparsify_(tied, {".*": RECIPES[recipe]})
    sparseloom.save(tied, tmp_path / "m")
    sparseloom.load(tmp_path / "m", apart, sparsify=True)
    held = [tensor.data_ptr() for tensor in (*apart.parameters(), *apart.buffers()) if tensor.numel()]
    assert len(set(held)) == len(held)
    before = apart[1].values.clone()
    apart[0].values.data.add_(1)
    assert torch.equal(apart[1].values, before)


def test_it_is_said_once_and_an_older_optimizer_stops(tmp_path, caplog):
    saved(tmp_path / "m")
    loaded = Model()
    optimizer = torch.optim.SGD(loaded.parameters(), 0.1)
    caplog.set_level(logging.INFO, "sparseloom")
    caplog.clear()
    sparseloom.load(tmp_path / "m", loaded, sparsify=True)
    assert [record.getMessage()[:30] for record in caplog.records] == ["6 layers became block-sparse; "]
    with pytest.raises(sparseloom.Error, match=r"in no model any more"):
        optimizer.step()


def test_a_dense_model_on_meta_becomes_sparse_and_real(tmp_path):
    model, x = saved(tmp_path / "m"), torch.randn(2, 16, 6, 6)
    with torch.device("meta"):
        loaded = Model().eval()
    sparseloom.load(tmp_path / "m", loaded, sparsify=True)
    assert torch.equal(loaded(x), model(x)) and loaded.again is loaded.up


def test_layers_that_are_sparse_already_take_the_files_pattern(tmp_path):
    model = saved(tmp_path / "m")
    loaded = Model()
    sparsify_(loaded, {"up": BlockSparse(8, 0.25)})
    sparseloom.load(tmp_path / "m", loaded, sparsify=True)
    assert loaded.up.pattern == model.up.pattern and types(loaded) == types(model)


class WithoutUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 40, 1)


def with_hook():
    model = Model()
    model.up.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "make, said",
    [
        (WithoutUp, "none for again, encoder.linear1, encoder.linear2"),
        (with_hook, "it has hooks"),
        (lambda: Model().double(), "of torch.float64, got torch.float32"),
        (lambda: nn.ModuleDict(dict(Model()._modules) | {"more": nn.Linear(3, 3)}), "missing: more.bias"),
    ],
)
def test_a_dense_model_that_does_not_fit_stays_dense_and_bitwise(make, said, tmp_path):
    saved(tmp_path / "m")
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    before, kinds, ids = copy.deepcopy(model.state_dict()), types(model), [id(p) for p in model.parameters()]
    with pytest.raises(sparseloom.Error, match=said):
        sparseloom.load(tmp_path / "m", model, sparsify=True)
    assert types(model) == kinds and [id(p) for p in model.parameters()] == ids
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    optimizer.step()  # its Parameters are the model's still


def test_without_sparsify_a_dense_model_is_told_about_it(tmp_path):
    saved(tmp_path / "m")
    with pytest.raises(sparseloom.Error, match="pass sparsify=True"):
        sparseloom.load(tmp_path / "m", Model())


def test_a_layer_saved_alone_says_what_to_do(tmp_path):
    layer = BlockSparseLinear(64, 32, density=0.5, block=16)
    sparseloom.save(layer, tmp_path / "m")
    with pytest.raises(sparseloom.Error, match=r"it is the model itself: use BlockSparseLinear\.from_dense"):
        sparseloom.load(tmp_path / "m", nn.Linear(64, 32), sparsify=True)


#: What a field of a description may wrongly hold.
_WRONG = [
    None,
    True,
    0,
    -1,
    3,
    2**40,
    1.5,
    "4",
    "csr",
    "nmg",
    "semi24",
    [],
    {},
    [8],
    [0, 0],
    ["8", "8"],
    [8] * 3,
]


def _wrong(random_, layers):
    """Changes one thing that a file says of its layers."""
    name = random_.choice(sorted(layers))
    told, wrong = layers[name], random_.choice(_WRONG)
    ways = [
        lambda: layers.__setitem__(name, wrong),
        lambda: told.pop(random_.choice(sorted(told))),
        lambda: told.__setitem__(random_.choice(sorted(told)), wrong),
        lambda: told.__setitem__(random_.choice(["layout", "block", "kernel", "n", "m", "g", "new"]), wrong),
        lambda: layers.__setitem__(name + random_.choice(["x", ".x", ""]), dict(layers.pop(name))),
    ]
    random_.choice(ways)()
    return name


def test_metadata_with_a_right_checksum_and_wrong_content_names_layer_and_file(tmp_path):
    """A layer that was no dict, m of 0 or "4", another layout's name: AttributeError, TypeError,
    ZeroDivisionError."""

    def dense():
        torch.manual_seed(0)
        made = nn.Conv2d(16, 24, 3), *(nn.Linear(32, 32) for _ in RECIPES)
        return nn.ModuleDict(dict(zip(("conv", *RECIPES), made, strict=True)))

    model, path = dense(), tmp_path / "m.safetensors"
    sparsify_(model, {"conv": BlockSparse(8, 0.5)} | RECIPES)
    sparseloom.save(model, path)
    tensors = safetensors.torch.load(path.read_bytes())
    _, layers, _ = model_file.read_file(path)
    plain, draws, refused = dense(), random.Random(59), 0
    before = copy.deepcopy(plain.state_dict())
    for _ in range(300):
        changed = copy.deepcopy(layers)
        name = _wrong(draws, changed)
        path.write_bytes(model_file.file_of(tensors, changed, {}))
        for target, sparsify in ((plain, True), (model, False)):
            try:
                sparseloom.load(path, target, sparsify=sparsify)
            except sparseloom.Error as error:
                assert name in str(error) and str(path) in str(error), (name, changed[name], str(error))
                refused += 1
            else:  # it says the same in other words, or what only a dense model asks
                target = plain = dense()
        assert types(plain) == types(dense())
        assert all(torch.equal(tensor, before[entry]) for entry, tensor in plain.state_dict().items())
    assert refused > 400


@pytest.mark.parametrize(
    "said", [{"layers": "[3]"}, {"layers": "7"}, {"aliases": "[]"}, {"aliases": '{"a": 3}'}]
)
def test_metadata_that_is_no_object_names_the_file(said, tmp_path):
    sparseloom.save(nn.Linear(3, 3), path := tmp_path / "m")
    tensors = safetensors.torch.load(path.read_bytes())
    with safetensors.safe_open(path, "pt") as file:
        told = file.metadata() | said
    told["sha256"] = model_file.checksum(tensors, told)
    path.write_bytes(model_file.file_bytes(tensors, told))
    with pytest.raises(sparseloom.Error, match=str(path)):
        sparseloom.load(path, nn.Linear(3, 3))


def test_a_file_for_another_architecture_names_layer_and_file(tmp_path):
    for recipe in (BlockSparse(8, 0.5), InLayout("csr", density=0.5), Semi24("magnitude")):
        model = nn.ModuleDict({"up": nn.Linear(32, 64)})
        sparsify_(model, {"up": recipe})
        sparseloom.save(model, path := tmp_path / "m")
        other = nn.ModuleDict({"up": nn.Linear(32, 40)})
        with pytest.raises(
            sparseloom.Error, match=rf"expected a weight of 40 x 32.*got 64 x 32 in up in {path}"
        ):
            sparseloom.load(path, other, sparsify=True)
        assert type(other["up"]) is nn.Linear
