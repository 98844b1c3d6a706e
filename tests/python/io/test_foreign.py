"""load of the checkpoints of compressed-tensors (made by make_foreign.py), and save for others."""

import pytest
import safetensors.torch
import torch
from foreign_files import FOREIGN, dense_of, net
from torch import nn

from sparseloom import BlockSparse, Error, Semi24, load, save, sparsify_
from sparseloom.nn import Semi24Linear


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


@pytest.mark.package("ai_edge_litert")
@pytest.mark.parametrize("block", [None, (1, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("recipe", [BlockSparse(16, 0.5), Semi24(prune="magnitude")])
def test_litert_runs_a_dense_export(recipe, block, tmp_path):
    """As it is, and in the two sparse forms that LiteRT runs."""
    import litert_models

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    sparsify_(model, {"0": recipe, "2": recipe})
    save(model, tmp_path / "model.safetensors", format="dense")
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    layers = [(read[f"{i}.weight"].numpy(), read[f"{i}.bias"].numpy()) for i in (0, 2)]
    x = torch.randn(3, 64)
    got = torch.from_numpy(litert_models.run(litert_models.file_of(layers, 3, block), x.numpy()))
    torch.testing.assert_close(got, model(x).detach(), atol=1e-5, rtol=1e-5)


def test_formats_for_others_say_what_they_need(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        Error, match="format to be None or one of 'dense', 'sparse-bitmask', 'sparse-24-bitmask'"
    ):
        save(net(), path, format="marlin_24")
    with pytest.raises(Error, match="a linear weight that is 2:4, got none"):
        save(net(), path, format="sparse-24-bitmask")
    assert not path.exists()
