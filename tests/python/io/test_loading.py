"""Checkpoints of others into block-sparse layers: dense ones, torch.sparse_bsr, pytorch_block_sparse,
transformers."""

import copy
import io
import logging
import subprocess
import sys

import pytest
import torch
from foreign_files import pytorch_block_sparse_entries
from torch import nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import BlockSparse, pattern, sparsify_
from sparseloom.nn import BlockSparseConv1d, BlockSparseLinear, Semi24Linear, SparseLinear


def nets(block=16):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 70), nn.ReLU(), nn.Linear(70, 48))
    sparse = nn.Sequential(nn.Linear(64, 70), nn.ReLU(), nn.Linear(70, 48))
    sparsify_(sparse, {"[02]": BlockSparse(block, 0.5)}, fuse=False)
    return dense, sparse


def masked(weight, made):
    (bm, bn), (rows, cols) = made.block, weight.shape
    return weight * made.mask.repeat_interleave(bm, 0).repeat_interleave(bn, 1)[:rows, :cols]


def test_a_dense_checkpoint_is_packed_by_the_layers_pattern(caplog):
    dense, sparse = nets()
    patterns = [sparse[i].pattern for i in (0, 2)]
    values = sparse[0].values
    with caplog.at_level(logging.INFO, "sparseloom"):
        sparse.load_state_dict(dense.state_dict())
    for i, made in zip((0, 2), patterns, strict=True):
        assert sparse[i].pattern == made and torch.equal(sparse[i].bias, dense[i].bias)
        assert torch.equal(sparse[i].to_dense().weight, masked(dense[i].weight, made))
    assert sparse[0].values is values  # the Parameter an optimizer holds
    weight = dense[0].weight.detach()
    share = masked(weight, patterns[0]).abs().sum() / weight.abs().sum()
    assert (
        f"0.weight: packed a dense weight by the layer's pattern, which keeps {100 * float(share):.1f} %"
        in caplog.text
    )


def test_a_dense_checkpoint_of_another_size_is_refused():
    _, sparse = nets()
    with pytest.raises(RuntimeError, match="expected weight of 70 x 64"):
        sparse[0].load_state_dict({"weight": torch.zeros(64, 70), "bias": torch.zeros(70)})


def test_missing_and_unexpected_entries_are_still_named():
    dense, sparse = nets()
    state = dense.state_dict()
    del state["0.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.bias"'):
        sparse.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'"0\.extra"'):
        sparse.load_state_dict(dense.state_dict() | {"0.extra": torch.zeros(1)})


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
def test_a_torch_sparse_bsr_state_dict_brings_its_pattern():
    torch.manual_seed(0)
    layer = BlockSparseLinear(64, 96, density=0.5, block=16)
    weight = masked(torch.randn(96, 64), pattern.random(96, 64, 16, 0.25, 1)).to_sparse_bsr((16, 16))
    file = io.BytesIO()
    torch.save({"weight": weight, "bias": torch.ones(96)}, file)
    file.seek(0)
    layer.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(layer.to_dense().weight, weight.to_dense()) and layer.pattern.blocks == 6
    x = torch.randn(3, 64)
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, weight.to_dense(), torch.ones(96)), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(RuntimeError, match="make the layer with the block shape that was saved"):
        BlockSparseLinear(64, 96, False, density=0.5, block=32).load_state_dict({"weight": weight})


def test_a_pytorch_block_sparse_checkpoint_is_read():
    made = pattern.random(96, 128, 32, 0.5, 3)
    weight = masked(torch.randn(96, 128), made)
    layer = BlockSparseLinear(128, 96, density=0.25)
    net = nn.Sequential(layer)
    net.load_state_dict(
        {f"0.{name}": tensor for name, tensor in pytorch_block_sparse_entries(weight, made).items()}
    )
    assert layer.pattern == made and torch.equal(layer.to_dense().weight, weight)
    assert torch.equal(layer.bias, torch.arange(96.0))
    with pytest.raises(RuntimeError, match="sparsify with block=32"):
        BlockSparseLinear(128, 96, density=0.25, block=16).load_state_dict(
            pytorch_block_sparse_entries(weight, made)
        )
    descending = torch.tensor([0, 90, 2, 3], dtype=torch.int32)
    broken = pytorch_block_sparse_entries(weight, made) | {"weight.row_start_ends_a": descending}
    with pytest.raises(RuntimeError, match="crow"):
        layer.load_state_dict(broken)
    assert layer.pattern == made


def replaced_entries(cols_a):
    """A 128 x 64 weight in blocks of 32 whose four blocks are full of 1, 2, 3, 4 in the order of data."""
    values = torch.arange(1.0, 5.0).repeat_interleave(32)[:, None].expand(128, 32)
    crow = torch.tensor([0, 0, 1, 3, 4], dtype=torch.int32)
    cols = torch.tensor(cols_a, dtype=torch.int32)
    return {"weight.data": values.clone(), "weight.cols_a": cols, "weight.row_start_ends_a": crow}


def test_pytorch_block_sparse_blocks_go_where_block_replace_put_them():
    layer = BlockSparseLinear(64, 128, False, density=0.5)
    layer.load_state_dict(replaced_entries([[1, 1], [0, 3], [1, 2], [1, 0]]))
    blocks = layer.to_dense().weight.reshape(4, 32, 2, 32).transpose(1, 2)
    assert torch.equal(blocks.amax((2, 3)), blocks.amin((2, 3)))
    assert blocks[:, :, 0, 0].tolist() == [[0, 0], [0, 2], [4, 3], [0, 1]]


@pytest.mark.parametrize(
    "cols_a, said",
    [
        ([[1, 1], [0, 3], [1, 1], [1, 0]], "got 1 more than once"),
        ([[1, 1], [0, 4], [1, 2], [1, 0]], "got 4 places from 0 to 4"),
        ([[1, 1], [0, 3], [1, 2], [1, -1]], "got 4 places from -1 to 3"),
        ([[1, 0], [0, 1], [1, 2]], "got 3 places from 0 to 2"),
        ([[1], [0], [1], [1]], r"cols_a \[4, 1\]"),
    ],
)
def test_pytorch_block_sparse_places_that_are_no_permutation_are_refused(cols_a, said):
    layer = BlockSparseLinear(64, 128, False, density=0.5)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match=said):
        layer.load_state_dict(replaced_entries(cols_a))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_transformers_save_pretrained_and_from_pretrained(tmp_path):
    transformers = pytest.importorskip("transformers")
    hf = pytest.importorskip("sparseloom.hf")
    sizes = {
        "vocab_size": 60,
        "hidden_size": 64,
        "intermediate_size": 100,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
    sparsify_(
        model,
        {r".*\.(query|key|value)": BlockSparse(16, 0.25), r".*layer.*dense": BlockSparse((16, 32), 0.5)},
    )
    tokens = torch.randint(0, 60, (2, 9))
    hf.describe_(model).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py")) and (tmp_path / "model.safetensors").exists()
    loaded, notes = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"] and not notes["mismatched_keys"]
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    layer = loaded.bert.encoder.layer[0].output.dense
    assert layer.pattern == model.bert.encoder.layer[0].output.dense.pattern
    assert torch.equal(model(tokens).logits, loaded.eval()(tokens).logits)
    loaded.train()(tokens, labels=tokens).loss.backward()  # the derived indices are whole too
    assert layer.values.grad.abs().sum() > 0
    half = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.bert.encoder.layer[0].output.dense.values.dtype == torch.bfloat16
    assert half.bert.encoder.layer[0].output.dense.crow.dtype == torch.int32
    assert half(tokens).logits.dtype == torch.bfloat16
    loaded.save_pretrained(tmp_path / "again")  # what was loaded is described already
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_models_that_share_a_config_are_described_apart(tmp_path):
    transformers = pytest.importorskip("transformers")
    hf = pytest.importorskip("sparseloom.hf")
    sizes = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
    }
    config = transformers.BertConfig(**sizes)
    torch.manual_seed(0)
    sparse, dense = (transformers.BertModel(config).eval() for _ in range(2))
    sparsify_(sparse, {r".*\.intermediate\.dense": BlockSparse(16, 0.5)})
    hf.describe_(sparse).save_pretrained(tmp_path / "sparse")
    assert not hasattr(config, "quantization_config")
    hf.describe_(dense).save_pretrained(tmp_path / "dense")  # of the same config, without a sparse layer
    tokens = torch.randint(0, 60, (2, 9))
    for model, name in ((sparse, "sparse"), (dense, "dense")):
        again = transformers.BertModel.from_pretrained(tmp_path / name).eval()
        assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)
    sparse.set_attn_implementation("eager")  # the model's own modules read the config that the model has now
    held = {id(module.config) for module in sparse.modules() if hasattr(module, "config")}
    assert held == {id(sparse.config)} and sparse.config._attn_implementation == "eager"


def test_transformers_refuses_a_newer_format_and_layers_of_another_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    hf = pytest.importorskip("sparseloom.hf")
    with pytest.raises(sparseloom.Error, match="format version 3, got 4"):
        hf.SparseloomConfig({}, version=4)
    sizes = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
    }
    model = transformers.BertModel(transformers.BertConfig(**sizes))
    sparsify_(model, {r".*\.intermediate\.dense": BlockSparse(16, 0.5)})
    hf.describe_(model)
    model.config.quantization_config.layers["encoder.layer.7.gone"] = {"block": [16, 16], "blocks": 1}
    model.save_pretrained(tmp_path)
    with pytest.raises(sparseloom.Error, match=r"encoder\.layer\.7\.gone"):
        transformers.BertModel.from_pretrained(tmp_path)
    with pytest.raises(sparseloom.Error, match=r"sparseloom\.save"):
        hf.describe_(nn.Linear(2, 2))
    sparseloom.densify_(model)
    assert not hasattr(hf.describe_(model).config, "quantization_config")


def test_import_does_little_is_quiet_and_leaves_optional_packages_alone():
    code = """
import sys
import torch
before, calls = set(sys.modules), dict.fromkeys(("call", "c_call"), 0)
def count(frame, event, argument):
    if event in calls:
        calls[event] += 1
sys.setprofile(count)
import sparseloom
sys.setprofile(None)
new = sys.modules.keys() - before
assert not {"transformers", "rich", "typer", "matplotlib", "jinja2", "torch._dynamo"} & new
print(sum(calls.values()), len(new))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    calls, modules = map(int, done.stdout.split())
    # Neither in seconds nor in shares of torch's, which judge the machine and its load. 138,000 and 271.
    assert calls < 250_000 and modules < 350


SPARSE = {  # the layer, and what its dense module is
    "bsr": (lambda: BlockSparseLinear(64, 48, density=0.5, block=16), lambda: nn.Linear(64, 48)),
    "csr": (lambda: SparseLinear(64, 48, layout="csr", density=0.3), lambda: nn.Linear(64, 48)),
    "coo": (lambda: SparseLinear(64, 48, layout="coo", density=0.3), lambda: nn.Linear(64, 48)),
    "bitmap": (lambda: SparseLinear(64, 48, layout="bitmap", density=0.3), lambda: nn.Linear(64, 48)),
    "nm": (lambda: SparseLinear(62, 48, layout="nm", n=1, m=4), lambda: nn.Linear(62, 48)),
    "nmg": (lambda: SparseLinear(62, 48, layout="nmg", n=2, m=4, g=4), lambda: nn.Linear(62, 48)),
    "tiles": (lambda: SparseLinear(62, 48, layout="tiles"), lambda: nn.Linear(62, 48)),
    "semi24": (lambda: Semi24Linear(62, 48), lambda: nn.Linear(62, 48)),
    "conv": (lambda: BlockSparseConv1d(64, 48, 3, density=0.5, block=16), lambda: nn.Conv1d(64, 48, 3)),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_dense_weight_of_the_same_pattern_rewinds_every_layout(name):
    """A lottery ticket: the initial dense weights under the pattern that was found later."""
    torch.manual_seed(0)
    make, dense_of = SPARSE[name]
    layer, dense = make(), dense_of()
    where, values = layer.to_dense().weight != 0, layer.values
    entries = {key: each.clone() for key, each in layer.state_dict().items() if key not in ("values", "bias")}
    assert layer.load_state_dict(dense.state_dict(), strict=True)
    assert torch.equal(layer.to_dense().weight, torch.where(where, dense.weight, 0))
    assert torch.equal(layer.bias, dense.bias) and layer.values is values
    state = layer.state_dict()
    assert all(torch.equal(state[key], each) for key, each in entries.items())
    assert values.requires_grad == (name != "semi24")
    wrong = nn.Linear(32, 48) if name != "conv" else nn.Conv1d(32, 48, 3)
    with pytest.raises((sparseloom.Error, RuntimeError), match=r"48 x 6[24]|Missing key"):
        layer.load_state_dict(wrong.state_dict())
    assert torch.equal(layer.to_dense().weight, torch.where(where, dense.weight, 0))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_weight_of_torch_brings_its_elements_or_its_pattern(layout):
    torch.manual_seed(0)
    weight = masked(torch.randn(48, 64), pattern.random(48, 64, 16, 0.4, 1))
    how = {"blocksize": (16, 16)} if layout.startswith("bs") else {}
    entry = weight.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **how)
    csr = SparseLinear(64, 48, False, layout="csr", density=0.1)
    csr.load_state_dict({"weight": entry})
    assert torch.equal(csr.to_dense().weight, weight)
    blocks = BlockSparseLinear(64, 48, False, density=0.5, block=16)
    before = blocks.pattern
    blocks.load_state_dict({"weight": entry})
    if layout.startswith("bs"):
        assert torch.equal(blocks.to_dense().weight, weight)
    else:
        assert blocks.pattern == before and torch.equal(blocks.to_dense().weight, masked(weight, before))


def pruned(dense, name):
    prune.random_unstructured(dense, name, 0.5)
    return getattr(dense, name)


PRUNED = {
    **{name: (make, dense, "weight") for name, (make, dense) in SPARSE.items()},
    "conv 1x1": (None, lambda: nn.Conv2d(64, 48, 1), "weight"),
    "attention": (None, lambda: nn.MultiheadAttention(64, 4), "in_proj_weight"),
    "lstm": (None, lambda: nn.LSTM(64, 32), "weight_hh_l0"),
}


@pytest.mark.parametrize("name", PRUNED)
def test_a_pruned_checkpoint_is_taken_masked_and_one_without_its_weight_refused(name):
    torch.manual_seed(0)
    make, dense_of, entry = PRUNED[name]
    if make is None:
        net = nn.Sequential(dense_of())
        sparsify_(net, {"0": BlockSparse(16, 0.5)})
        layer = net[0]
    else:
        layer = make()
    source = dense_of()
    twin = copy.deepcopy(layer)
    weight = pruned(source, entry).detach()
    layer.load_state_dict(source.state_dict())
    plain = {
        key.removesuffix("_orig"): each for key, each in source.state_dict().items() if "mask" not in key
    }
    twin.load_state_dict(plain | {entry: weight})
    assert all(
        torch.equal(a, b)
        for a, b in zip(layer.state_dict().values(), twin.state_dict().values(), strict=True)
    )
    computed = {"parametrizations." + entry + ".original": weight}
    rest = {key: each for key, each in plain.items() if key != entry}
    with pytest.raises((sparseloom.Error, RuntimeError), match=r"squash_mask\(\) of the sparsifier"):
        layer.load_state_dict(rest | computed)
    with pytest.raises((sparseloom.Error, RuntimeError), match="remove_spectral_norm"):
        layer.load_state_dict(rest | {f"{entry}_orig": weight})


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("axis", [0, 1, None])
def test_the_entries_of_a_weight_norm_are_multiplied_out(axis):
    torch.manual_seed(0)
    source = nn.utils.weight_norm(nn.Linear(64, 48), dim=axis)
    with torch.no_grad():
        source.weight_g.mul_(torch.rand_like(source.weight_g) + 0.5)
        y = source(torch.eye(64)) - source.bias
    layer = BlockSparseLinear(64, 48, density=1.0, block=16)
    layer.load_state_dict(source.state_dict())
    torch.testing.assert_close(layer.to_dense().weight, y.t(), atol=1e-6, rtol=1e-5)
    for kind in ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d"):  # norms over up to four dimensions
        normed = nn.utils.weight_norm(getattr(nn, kind)(16, 16, 3), dim=axis)
        conv = getattr(sparseloom.nn, f"BlockSparse{kind}")(16, 16, 3, density=1.0, block=16)
        conv.load_state_dict(normed.state_dict())
        torch.testing.assert_close(conv.to_dense().weight, normed.weight, atol=1e-6, rtol=1e-5)
