"""load of checkpoints that other packages wrote (make_foreign.py), and save for them."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, load, save, sparsify_
from sparseloom.nn import BlockSparseLinear, Semi24Linear

FOREIGN = Path(__file__).parents[1] / "foreign"


def dense_of(name):
    return safetensors.torch.load_file(FOREIGN / f"{name}.dense.safetensors")


def net(dtype=torch.float16):
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).to(dtype)


@pytest.mark.parametrize("name", ["sparse-bitmask", "sparse-24-bitmask"])
def test_a_checkpoint_of_compressed_tensors_is_read_and_written_bit_by_bit(name, tmp_path):
    model = net()
    load(FOREIGN / name, model)
    state = model.state_dict()
    assert state.keys() == dense_of(name).keys()
    assert all(torch.equal(tensor, state[key]) for key, tensor in dense_of(name).items())
    save(model, tmp_path / "model.safetensors", format=name)
    ours, theirs = (
        safetensors.torch.load_file(folder / "model.safetensors") for folder in (tmp_path, FOREIGN / name)
    )
    assert ours.keys() == theirs.keys()
    free = (
        1 if name == "sparse-24-bitmask" else 0
    )  # row 0 has a group of zeros: any two of them may be stored
    for key, tensor in theirs.items():
        assert torch.equal(ours[key][free:], tensor[free:]) and ours[key].dtype == tensor.dtype, key
    again = net()
    load(tmp_path / "model.safetensors", again)
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in state.items())


def test_2_of_4_becomes_2_to_4_layers():
    model = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).half()
    load(FOREIGN / "sparse-24-bitmask", model, sparsify=True)
    weights = dense_of("sparse-24-bitmask")
    assert all(isinstance(model[i], Semi24Linear) for i in (0, 2))
    assert all(torch.equal(model[i].to_dense().weight, weights[f"{i}.weight"]) for i in (0, 2))


@pytest.mark.parametrize("size", [(), (1,), (12, 1), (12, 5)], ids=str)
def test_float8_weights_are_multiplied_with_their_scales(size):
    tensors = safetensors.torch.load_file(FOREIGN / "sparse-bitmask" / "model.safetensors")
    small = tensors["0.compressed"].to(torch.float8_e4m3fn)
    scale = torch.rand(size).bfloat16()
    dense = dense_of("sparse-bitmask")["0.weight"].to(torch.float8_e4m3fn).float()
    of_columns = scale.float().expand(12, 1) if scale.numel() == 1 else scale.float()
    expected = (dense * of_columns.repeat_interleave(20 // of_columns.shape[1], 1)).bfloat16()
    layer = {key[2:]: tensor for key, tensor in tensors.items() if key.startswith("0.")}
    model = nn.Linear(20, 12).bfloat16()
    load(
        {f"0.{k}": v for k, v in (layer | {"compressed": small, "weight_scale": scale}).items()},
        nn.Sequential(model),
    )
    assert torch.equal(model.weight, expected)
    with pytest.raises(Error, match=r"0\.weight_scale of 12 rows and groups of 20 columns, got \[7\]"):
        load(tensors | {"0.compressed": small, "0.weight_scale": torch.rand(7)}, net())


def test_heads_that_nn_pruning_left_out_are_zeros():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig.from_pretrained(FOREIGN / "pruned-heads", pruned_heads={})
    model = transformers.BertModel(config).half()
    load(FOREIGN / "pruned-heads", model)
    for name, tensor in dense_of("pruned-heads").items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_config_no_longer_says_that_weights_are_compressed(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[:, ::2] = 0
    save(model, tmp_path / "model.safetensors", format="sparse-bitmask")
    told = {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}
    again = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config.to_dict()))
    again.config.quantization_config = told
    load(tmp_path, again)
    assert not hasattr(again.config, "quantization_config")
    again.save_pretrained(tmp_path / "dense")
    last = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "dense")
    assert all(torch.equal(tensor, last.state_dict()[name]) for name, tensor in model.state_dict().items())


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


def test_tensors_of_sten_are_unwrapped_where_it_is_installed():
    with pytest.raises(Error, match=r"sten\.pt to hold tensors alone.*pass the state_dict"):
        load(FOREIGN / "sten.pt", nn.Linear(6, 5))

    class Wrapped:  # what unpickling makes with STen: a dummy, and the tensor inside
        def __init__(self, tensor):
            self.wrapped_tensor = tensor.to_sparse_csr()

    layer, weight = nn.Linear(6, 5), torch.randn(5, 6) * (torch.rand(5, 6) < 0.5)
    load({"weight": Wrapped(weight), "bias": torch.ones(5)}, layer)
    assert torch.equal(layer.weight, weight) and torch.equal(layer.bias, torch.ones(5))


def test_a_matrix_market_file_is_one_weight(tmp_path):
    layer = nn.Linear(7, 5)
    bias = layer.bias.detach().clone()
    load(FOREIGN / "weight.mtx", layer)
    assert torch.equal(layer.weight, dense_of("weight")["weight"]) and torch.equal(layer.bias, bias)
    with pytest.raises(Error, match="a matrix of 6 x 7, as the weight, got 5 x 7"):
        load(FOREIGN / "weight.mtx", nn.Linear(7, 6))
    with pytest.raises(Error, match="a linear layer for a Matrix Market file"):
        load(FOREIGN / "weight.mtx", nn.Sequential(layer))


HEADER = "%%MatrixMarket matrix "


@pytest.mark.parametrize(
    "text, weight",
    [
        (HEADER + "coordinate pattern general\n% a word\n2 2 2\n1 2\n2 1\n", [[0, 1], [1, 0]]),
        (HEADER + "coordinate integer symmetric\n2 2 2\n1 1 3\n2 1 -4\n", [[3, -4], [-4, 0]]),
        (HEADER + "coordinate real skew-symmetric\n2 2 1\n2 1 1.5\n", [[0, -1.5], [1.5, 0]]),
        (HEADER + "array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
        (HEADER + "array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        (HEADER + "coordinate real general\r\n2 2 2\r\n1 1 1.5D+01\r\n2 1 -2d-1\r\n", [[15, 0], [-0.2, 0]]),
        (HEADER + "coordinate real symmetric\n2 2 3\n1 1 0\n1 2 0\n2 2 3\n", [[0, 0], [0, 3]]),
        (HEADER + "coordinate real symmetric\n2 2 2\n1 2 5\n2 1 5\n", r"got both \(1, 2\) and \(2, 1\)"),
        (HEADER + "coordinate real general\n2 2 1\n3 1 1\n", "places inside 2 x 2, got one beyond"),
        (HEADER + "coordinate real general\n2 2 9000000000\n1 1 1\n", "9000000000 lines of 3 numbers"),
        (HEADER + "coordinate real general\n2 2 1\n1 1 x\n", "expected numbers"),
        (HEADER + "coordinate complex general\n2 2 1\n1 1 1 1\n", "got coordinate complex general"),
        ("2 2 1\n1 1 1\n", "a first line %%MatrixMarket"),
    ],
)
def test_each_kind_of_matrix_market_file(text, weight, tmp_path):
    path = tmp_path / "weight.mtx"
    path.write_text(text)
    layer = nn.Linear(2, 2)
    if isinstance(weight, str):
        with pytest.raises(Error, match=weight):
            load(path, layer)
    else:
        load(path, layer)
        assert torch.equal(layer.weight, torch.tensor(weight, dtype=torch.float32))


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


def test_weights_in_layouts_of_torch_bring_their_structure():
    weight = torch.randn(32, 64) * torch.rand(2, 4).lt(0.5).repeat_interleave(16, 0).repeat_interleave(16, 1)
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    load({"0.weight": weight.to_sparse_bsr((16, 16))}, model, sparsify=True)
    assert isinstance(model[0], BlockSparseLinear) and model[0].block == (16, 16)
    assert torch.equal(model[0].to_dense().weight, weight)
    layer = Semi24Linear.from_dense(nn.Linear(64, 64, bias=False).half(), prune="magnitude")
    dense = nn.Sequential(nn.Linear(64, 64, bias=False)).half()
    load({"0.weight": layer.to_torch("cutlass")}, dense, sparsify=True)
    assert isinstance(dense[0], Semi24Linear)
    assert torch.equal(dense[0].to_dense().weight, layer.to_dense().weight)


@pytest.mark.package("scipy")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil"])
@pytest.mark.parametrize("bits", [32, 64])
def test_matrices_of_scipy_are_weights_and_bsr_brings_its_blocks(form, bits):
    import numpy as np
    from scipy import sparse

    made = sparseloom.pattern.random(96, 128, (32, 16), 0.4, 3)
    mask = made.mask.repeat_interleave(32, 0).repeat_interleave(16, 1)
    weight = torch.randn(96, 128) * mask
    matrix = getattr(sparse, f"{form}_array")(weight.numpy())
    if form == "bsr":  # what its operations leave: blocks of 4 x 4, and 64-bit indices
        matrix = sparse.bsr_array(weight.numpy(), blocksize=(4, 4))
    for name in ("indptr", "indices"):
        if form in ("csr", "csc", "bsr"):
            setattr(matrix, name, getattr(matrix, name).astype(np.int32 if bits == 32 else np.int64))
    model = nn.Sequential(nn.Linear(128, 96, bias=False))
    load({"0.weight": matrix}, model, sparsify=True)
    if form == "bsr":
        assert isinstance(model[0], BlockSparseLinear)
        side = model[0].block
        assert side[0] >= 32 and side[1] >= 16 and model[0].pattern.density == made.density
        assert torch.equal(model[0].to_dense().weight, weight)
    else:
        assert torch.equal(model[0].weight, weight)


def test_blocks_of_pytorch_block_sparse_bring_their_pattern():
    from foreign_entries import pytorch_block_sparse_entries
    from test_loading import masked

    made = sparseloom.pattern.random(96, 128, 32, 0.5, 3)
    weight = masked(torch.randn(96, 128), made)
    entries = {f"0.{key}": tensor for key, tensor in pytorch_block_sparse_entries(weight, made).items()}
    model = nn.Sequential(nn.Linear(128, 96))
    load(dict(entries), model)
    assert torch.equal(model[0].weight, weight) and torch.equal(model[0].bias, torch.arange(96.0))
    load(dict(entries), model, sparsify=True)
    assert model[0].pattern == made and torch.equal(model[0].to_dense().weight, weight)
    long = torch.zeros(2**22, dtype=torch.int32)
    with pytest.raises(Error, match="more blocks than one in 1024"):
        load(entries | {"0.weight.col_start_ends_b": long}, nn.Sequential(nn.Linear(128, 96)))


@pytest.mark.parametrize("recipe", [BlockSparse(16, 0.5), Semi24(prune="magnitude")])
def test_a_dense_export_is_an_ordinary_checkpoint_with_zeros(recipe, tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    sparsify_(model, {"0": recipe})
    weight, x = model[0].to_dense(), torch.randn(3, 64)
    before = model(x)
    save(model, tmp_path / "model.safetensors", format="dense")
    twin = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    twin.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(twin(x), before, atol=1e-5, rtol=1e-5)
    assert torch.equal(twin[0].weight, weight.weight)
    runtime = pytest.importorskip("onnxruntime")  # Python 3.11 and newer
    sizes = {0: torch.export.Dim("batch", min=2)}
    torch.onnx.export(twin, (x,), tmp_path / "model.onnx", dynamic_shapes=(sizes,), verbose=False)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    more = torch.randn(5, 64)
    (got,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(more).detach(), atol=1e-5, rtol=1e-5)
    inner = weight[0] if isinstance(weight, nn.Sequential) else weight
    assert torch.equal(twin[0].weight, inner.weight)
    assert not isinstance(model[0], nn.Linear)  # the model itself stays as it was


def test_formats_for_others_say_what_they_need(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        Error, match="format to be None or one of 'dense', 'sparse-bitmask', 'sparse-24-bitmask'"
    ):
        save(net(), path, format="marlin_24")
    with pytest.raises(Error, match="a linear weight that is 2:4, got none"):
        save(net(), path, format="sparse-24-bitmask")
    assert not path.exists()
