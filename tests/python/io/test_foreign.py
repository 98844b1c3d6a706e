"""load of compressed-tensors' checkpoints and of damaged files (make_foreign.py), and save for others."""

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


def damaged(**changes):
    tensors = safetensors.torch.load_file(FOREIGN / "sparse-bitmask" / "model.safetensors")
    for key, change in changes.items():
        name = f"0.{key}"
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    return tensors


def with_bit(mask):
    mask = mask.clone()
    mask[0, 2] |= 0x80  # of 20 columns
    return mask


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"compressed": None}, "expected 0.compressed beside 0.bitmask, got none"),
        ({"shape": lambda t: t * 10**9}, r"expected 0.bitmask \[12000000000, 2500000000\]"),
        ({"shape": lambda t: -t}, "expected 0.shape to be two sizes"),
        ({"shape": lambda t: t.repeat(2)}, "expected 0.shape to be two sizes"),
        ({"bitmask": lambda t: t[:-1]}, r"0.bitmask \[12, 3\] of torch.uint8, got \[11, 3\]"),
        ({"bitmask": lambda t: t.int()}, "got .* of torch.int32"),
        ({"bitmask": with_bit}, "no bit of 0.bitmask beyond 20 columns"),
        ({"bitmask": lambda t: t.to("meta")}, "0.bitmask with values, got one on the meta device"),
        ({"compressed": lambda t: t[:-1]}, "elements, as 0.bitmask has bits"),
        ({"row_offsets": lambda t: t.flip(0)}, "0.row_offsets to add up"),
    ],
)
def test_lying_entries_are_refused_by_name(changes, said):
    model = net()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(Error, match=said):
        load(damaged(**changes), model)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "a.safetensors").write_bytes(b"x")
    index.write_text('{"weight_map": {"0.weight": "../a.safetensors"}}')
    with pytest.raises(Error, match="weight_map of files beside it"):
        load(tmp_path, net())
    index.write_text('{"weight_map": {"0.weight": "a.safetensors"}}')
    with pytest.raises(Error, match=r"a\.safetensors to be complete"):
        load(tmp_path, net())
    (tmp_path / "b.pt").write_bytes((FOREIGN / "supermask" / "model_0.pth").read_bytes()[:900])
    with pytest.raises(Error, match=r"b\.pt to be complete"):
        load(tmp_path / "b.pt", net())


class OfOtherArguments:
    """Pickled as a call that weights_only allows, with what it does not take."""

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (torch.zeros(2), 0)


def test_a_pickle_whose_calls_fail_is_incomplete(tmp_path):
    torch.save({"0.weight": OfOtherArguments()}, tmp_path / "b.pt")
    with pytest.raises(Error, match=r"b\.pt to be complete"):
        load(tmp_path / "b.pt", net())


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


def test_formats_for_others_say_what_they_need(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        Error, match="format to be None or one of 'dense', 'sparse-bitmask', 'sparse-24-bitmask'"
    ):
        save(net(), path, format="marlin_24")
    with pytest.raises(Error, match="a linear weight that is 2:4, got none"):
        save(net(), path, format="sparse-24-bitmask")
    assert not path.exists()
