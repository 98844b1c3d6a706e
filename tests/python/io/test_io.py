"""save and load give the same model; what is damaged or does not fit changes nothing of it."""

import copy
import json

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make_corpus import BAD, CORPUS, joined, model, parts
from torch import nn

import sparseloom
from sparseloom import pattern
from sparseloom.nn import BlockSparseLinear

GOOD = CORPUS / "good.safetensors"


def snapshot(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}, [
        id(p) for p in module.parameters()
    ]


def unchanged(module, before):
    state, identities = before
    now = module.state_dict()
    assert state.keys() == now.keys() and identities == [id(p) for p in module.parameters()]
    for name, tensor in state.items():
        assert tensor.dtype == now[name].dtype and tensor.shape == now[name].shape
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), now[name].reshape(-1).view(torch.uint8)), (
            name
        )


def other_model():
    """The same architecture with another pattern and other values."""
    made = model()
    made[0] = BlockSparseLinear(20, 12, density=1 / 3, block=8)
    with torch.no_grad():
        made[1].weight.normal_()
    return made


def test_good_file_of_the_corpus_loads():
    loaded = other_model()
    sparseloom.load(GOOD, loaded)
    unchanged(loaded, (model().state_dict(), [id(p) for p in loaded.parameters()]))
    assert loaded[0].pattern == model()[0].pattern and loaded[2].weight is loaded[1].weight
    x = torch.randn(4, 20)
    assert torch.equal(loaded.eval()(x), model().eval()(x))


def test_corpus_is_what_its_script_writes():
    assert {path.stem for path in CORPUS.iterdir()} == {"good", *BAD}
    for name, (damage, _) in BAD.items():
        assert (CORPUS / f"{name}.safetensors").read_bytes() == damage(GOOD.read_bytes()), (
            f"{name}: run make_corpus.py"
        )


@pytest.mark.parametrize("name", BAD)
def test_b23_bad_files_give_a_clear_error_and_load_nothing(name):
    loaded = other_model()
    before = snapshot(loaded)
    with pytest.raises(sparseloom.Error) as caught:
        sparseloom.load(CORPUS / f"{name}.safetensors", loaded)
    assert BAD[name][1] in str(caught.value), str(caught.value)
    assert caught.value.remedy
    unchanged(loaded, before)


@pytest.fixture(scope="module")
def target():
    return other_model()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_files_with_any_bytes_changed_are_refused(target, tmp_path_factory, data):
    original = GOOD.read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at, byte = data.draw(st.integers(0, len(damaged) - 1)), data.draw(st.integers(0, 255))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "swap"]))
        if kind == "set":
            damaged[at] = byte
        elif kind == "cut":
            del damaged[at : at + byte]
        elif kind == "insert":
            damaged[at:at] = bytes([byte])
        else:
            damaged[at:], damaged[:at] = damaged[:at], damaged[at:]
        if not damaged:
            break
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    path.write_bytes(damaged)
    before = snapshot(target)
    try:
        sparseloom.load(path, target)
    except sparseloom.Error:
        unchanged(target, before)
    else:  # JSON has more than one spelling of the same header
        (tensors, metadata), (expected, told) = parts(bytes(damaged)), parts(original)
        assert metadata == told and tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


ints = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 4)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    crow=st.lists(ints, max_size=5),
    col=st.lists(ints, max_size=7),
    blocks=st.integers(0, 7),
    metadata=st.dictionaries(
        st.sampled_from(["layers", "aliases", "format", "format_version", "writer"]),
        st.text(max_size=20),
        max_size=2,
    ),
)
def test_hostile_files_with_a_valid_checksum_load_a_valid_layer_or_nothing(
    target, tmp_path_factory, crow, col, blocks, metadata
):
    tensors, told = parts(GOOD.read_bytes())
    tensors |= {
        "0.crow": torch.tensor(crow, dtype=torch.int32),
        "0.col": torch.tensor(col, dtype=torch.int32),
        "0.values": torch.zeros(blocks, 8, 8),
    }
    path = tmp_path_factory.getbasetemp() / "hostile.safetensors"
    path.write_bytes(joined(tensors, told | metadata))
    before = snapshot(target)
    try:
        sparseloom.load(path, target)
    except sparseloom.Error:
        unchanged(target, before)
    else:
        assert sparseloom.Pattern.from_index(target[0].crow, target[0].col, 12, 20, 8) == target[0].pattern
        assert target(torch.randn(3, 20)).isfinite().all()


def models():
    torch.manual_seed(0)
    shared = BlockSparseLinear(32, 32, density=0.5, block=8)
    tied_values = nn.ModuleList(
        [BlockSparseLinear(32, 32, pattern=shared.pattern), BlockSparseLinear(32, 32, pattern=shared.pattern)]
    )
    tied_values[1].values = tied_values[0].values
    embedding = nn.Embedding(20, 32)
    head = nn.Linear(32, 20, bias=False)
    head.weight = embedding.weight
    return {
        "one layer": BlockSparseLinear(33, 17, density=0.5, block=(8, 16), activation="gelu"),
        "shared module": nn.Sequential(shared, nn.ReLU(), shared),
        "tied values": tied_values,
        "tied embedding": nn.Sequential(embedding, BlockSparseLinear(32, 32, density=0.3, block=16), head),
        "no blocks": nn.Sequential(BlockSparseLinear(32, 32, density=0.0)),
        "dense only": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        "transformer": nn.ModuleDict(
            {"a": nn.TransformerEncoderLayer(16, 2, 32), "b": BlockSparseLinear(16, 16, density=1, block=8)}
        ),
        "bf16 and no grad": nn.Sequential(
            BlockSparseLinear(32, 32, density=0.5).bfloat16().requires_grad_(False)
        ),
        "dense copy": nn.Sequential(BlockSparseLinear(32, 32, density=0.5, dense_copy=True)),
    }


def scrambled(module):
    """The same architecture with other values and, in its sparse layers, other patterns."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_() if parameter.dim() < 3 else parameter.zero_()
        for layer in {layer for layer in module.modules() if isinstance(layer, BlockSparseLinear)}:
            fewer = layer.pattern & pattern.banded(layer.out_features, layer.in_features, layer.block, 0)
            state = BlockSparseLinear(layer.in_features, layer.out_features, pattern=fewer).state_dict()
            state["values"].zero_()
            layer.load_state_dict(state)
    return module


def retied(module, like):
    """.to("meta") gives every name a Parameter of its own."""
    first = {}
    for name, parameter in like.named_parameters(remove_duplicate=False):
        owner, _, attribute = name.rpartition(".")
        setattr(
            module.get_submodule(owner),
            attribute,
            first.setdefault(id(parameter), module.get_parameter(name)),
        )


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("meta", [False, True])
def test_save_and_load_give_the_same_model_bitwise(name, meta, tmp_path):
    saved, loaded = models()[name], scrambled(copy.deepcopy(models()[name]))
    if meta:
        loaded.to("meta")
        retied(loaded, saved)
    ties = [[a is b for a in loaded.parameters()] for b in loaded.parameters()]
    sparseloom.save(saved, tmp_path / "m.safetensors")
    sparseloom.load(tmp_path / "m.safetensors", loaded)
    state = loaded.state_dict()
    for key, tensor in saved.state_dict().items():
        assert state[key].device.type == "cpu" and state[key].dtype == tensor.dtype
        assert torch.equal(state[key].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), (
            key
        )
    grads = [p.requires_grad for p in saved.parameters()]
    assert [p.requires_grad for p in loaded.parameters()][: len(grads)] == grads
    assert ties == [[a is b for a in loaded.parameters()] for b in loaded.parameters()]


def test_shared_tensors_are_stored_once_and_parameters_stay_the_optimizer_s(tmp_path):
    saved = models()["tied embedding"]
    sparseloom.save(saved, tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", "pt") as file:
        assert json.loads(file.metadata()["aliases"]) == {"2.weight": "0.weight"} and "2.weight" not in set(
            file.keys()
        )
        assert file.metadata()["format"] == "sparseloom" and file.metadata()["format_version"] == "1"
        assert json.loads(file.metadata()["layers"]) == {
            "1": {"block": [16, 16], "in_features": 32, "out_features": 32}
        }
    loaded = scrambled(copy.deepcopy(saved))
    before = [id(p) for p in loaded.parameters()]
    sparseloom.load(tmp_path / "m", loaded)
    assert [id(p) for p in loaded.parameters()] == before


def test_the_same_model_gives_the_same_file(tmp_path):
    for name in ("a", "b"):
        sparseloom.save(model(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == GOOD.read_bytes()


def test_compiled_models_and_overlapping_views(tmp_path):
    layer = BlockSparseLinear(32, 32, density=0.5)
    sparseloom.save(torch.compile(layer), tmp_path / "m")
    sparseloom.load(tmp_path / "m", layer)
    module = nn.Module()
    memory = torch.arange(10.0)
    module.register_buffer("a", memory[:6])
    module.register_buffer("b", memory[4:])
    module.register_buffer("c", memory.view(2, 5).t())
    sparseloom.save(module, tmp_path / "v")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "v")["c"], memory.view(2, 5).t())


class Odd(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        raise RuntimeError("cannot take it")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Odd({"a": 1}), "dict at _extra_state"),
        (lambda: Odd(torch.eye(3).to_sparse()), "sparse_coo tensor at _extra_state"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight on the meta device"),
        (lambda: {"weight": torch.ones(2)}, "dict"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_leaves_no_file(make, said, tmp_path):
    with pytest.raises(sparseloom.Error) as caught:
        sparseloom.save(make(), tmp_path / "m")
    assert said in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_model_that_fails_while_loading_is_put_back(tmp_path):
    saved = nn.Sequential(BlockSparseLinear(20, 12, density=0.5, block=8), Odd(torch.ones(3)))
    sparseloom.save(saved, tmp_path / "m")
    loaded = nn.Sequential(BlockSparseLinear(20, 12, density=1.0, block=8), Odd(torch.ones(3)))
    loaded[1].set_extra_state = lambda state: None
    before = snapshot(loaded)
    calls = []

    def fail_once(state):
        calls.append(state)
        if len(calls) == 1:
            raise RuntimeError("no room")

    loaded[1].set_extra_state = fail_once
    with pytest.raises(sparseloom.Error, match="no room"):
        sparseloom.load(tmp_path / "m", loaded)
    unchanged(loaded, before)


def test_dtype_and_structure_mismatches_say_what_to_do(tmp_path):
    sparseloom.save(BlockSparseLinear(20, 12, density=0.5, block=8), tmp_path / "m")
    with pytest.raises(sparseloom.Error, match=r"convert the model with .to\(torch.float32\)"):
        sparseloom.load(tmp_path / "m", BlockSparseLinear(20, 12, density=0.5, block=8).half())
    with pytest.raises(sparseloom.Error, match="build the layer as the saved one"):
        sparseloom.load(tmp_path / "m", BlockSparseLinear(20, 12, density=0.5, block=16))
    with pytest.raises(sparseloom.Error, match="missing: weight"):
        sparseloom.load(tmp_path / "m", nn.Linear(20, 12))
    with pytest.raises(sparseloom.Error, match=r"to read .*nowhere"):
        sparseloom.load(tmp_path / "nowhere", nn.Linear(20, 12))
    with pytest.raises(sparseloom.Error, match="Is a directory"):
        sparseloom.load(tmp_path, nn.Linear(20, 12))
