"""transformers' save_pretrained and from_pretrained: nothing comes back with other weights, or silently with
random ones."""

import copy
import gc
import json
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import safetensors.torch
import tiny_models
import torch
import transformers
from bits import same
from tiny_models import made, reloaded, tokens
from torch import nn

import sparseloom
import sparseloom.hf
from sparseloom import BlockSparse, densify_, quantize_, sparsify_
from sparseloom.nn import (
    BlockSparseLinear,
    QuantizedBlockSparseLinear,
)

HALF = BlockSparse(16, 0.5)


LOAD = """
import sys
sys.path[:0] = {path!r}
import tiny_models, vision_operators
vision_operators.define_missing()
import transformers
for cls, folder in {models!r}:
    try:
        getattr(transformers, cls).from_pretrained(folder)
        print(cls, "came back")
    except Exception as error:
        print(cls, type(error).__name__, error)
assert "sparseloom" not in sys.modules
"""


def sparse_bert(cls="BertForMaskedLM", **changes):
    model = made(cls, "bert", **changes)
    sparsify_(model, {r".*layer.*(dense|query|key|value)": HALF})
    return model


def test_a_model_that_nobody_described_comes_back_bitwise(tmp_path):
    model = sparse_bert()
    again = reloaded(model, tmp_path / "first")
    assert same(model, again) and torch.equal(model(tokens()).logits, again(tokens()).logits)
    assert same(model, reloaded(again, tmp_path / "second"))


def test_transformers_alone_raises_and_gives_no_random_layers(tmp_path):
    """In a process without our code; one sparse layer of each kind is enough."""
    eight = sparse_bert()
    quantize_(eight)
    cases = {
        "linear": (made("BertForMaskedLM", "bert"), r".*layer\.1\.output\.dense"),
        "conv1d": (made("GPT2LMHeadModel", "gpt2"), r".*h\.0\.mlp\.c_fc"),
        "conv1x1": (made("ResNetModel", "resnet"), r".*stages\.0.*layer\.2\.convolution"),
        "in_proj": (made("SiglipVisionModel", "siglip"), r".*head\.attention\.in_proj"),
        "out_proj": (made("SiglipVisionModel", "siglip"), r".*head\.attention\.out_proj"),
        "int8": (eight, None),
    }
    for name, (model, regex) in cases.items():
        if regex is not None:
            assert len(sparsify_(model, {regex: BlockSparse(8, 0.5)}).changed) == 1
        model.save_pretrained(tmp_path / name)
    dense = made("BertModel", "bert")
    dense.save_pretrained(tmp_path / "dense")
    models = [(type(model).__name__, str(tmp_path / name)) for name, (model, _) in cases.items()]
    code = LOAD.format(
        path=[str(Path(tiny_models.__file__).parent)],
        models=[*models, ("BertModel", str(tmp_path / "dense"))],
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "BertModel came back" and len(lines) == len(cases)
    assert all("RuntimeError" in line and "ignore_mismatched_sizes" in line for line in lines), lines
    assert "quantization type, got sparseloom" in done.stderr and "MISMATCH" in done.stderr
    for name, (model, _) in cases.items():  # and where it is imported they come back
        assert same(model, type(model).from_pretrained(tmp_path / name)), name


def test_a_part_or_a_wrapper_that_was_sparsified_describes_the_model(tmp_path):
    for name, part in (
        ("part", lambda model: model.bert.encoder),
        ("wrapper", lambda model: nn.Sequential(model, nn.Identity())),
    ):
        model = made("BertForMaskedLM", "bert")
        sparsify_(part(model), {r".*output\.dense": HALF})
        assert same(model, reloaded(model, tmp_path / name))
        model.bert.save_pretrained(tmp_path / f"{name} body")
        # which has a pooler of its own
        body = transformers.BertModel.from_pretrained(tmp_path / f"{name} body")
        assert same(model.bert.encoder, body.encoder)


def test_looking_for_the_model_keeps_no_dense_weight_alive():
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    weights = [weakref.ref(layer.weight) for layer in net]
    gc.disable()
    try:
        sparsify_(net, {"[01]": HALF})
        assert [ref() for ref in weights] == [None, None]
    finally:
        gc.enable()


def test_models_with_and_without_a_head_load_each_others_files(tmp_path):
    model = made("BertForMaskedLM", "bert")
    sparsify_(model, {r".*\.dense": HALF})  # the head's own too
    model.save_pretrained(tmp_path / "head")
    body = transformers.AutoModel.from_pretrained(tmp_path / "head")
    expected = model.bert(tokens()).last_hidden_state
    assert torch.equal(body(tokens()).last_hidden_state, expected)
    body.save_pretrained(tmp_path / "body")
    for name in ("head", "body"):
        other = transformers.BertForSequenceClassification.from_pretrained(tmp_path / name)
        assert torch.equal(other.bert(tokens()).last_hidden_state, expected)
        assert "cls" not in str(other.config.quantization_config.layers)


def test_densify_and_quantize_keep_the_description_true(tmp_path):
    model = sparse_bert()
    densify_(model, r".*layer\.0\..*")
    assert same(model, reloaded(model, tmp_path / "half dense"))
    quantize_(model, {r".*output\.dense": torch.int8}, x_scale=0.05)
    quantize_(model, {r".*query": torch.float8_e4m3fn})
    again = reloaded(model, tmp_path / "mixed")
    kinds = {type(layer) for layer in again.modules()}
    assert same(model, again) and {BlockSparseLinear, QuantizedBlockSparseLinear} <= kinds
    for layer in [*model.modules(), *again.modules()]:
        if isinstance(layer, QuantizedBlockSparseLinear):
            layer.kernel = "reference"
    with torch.no_grad():
        assert torch.equal(model(tokens()).logits, again(tokens()).logits)
    model = sparse_bert()
    densify_(model)
    assert not hasattr(model.config, "quantization_config")
    model.save_pretrained(tmp_path / "dense")
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    assert same(model, reloaded(model, tmp_path / "dense"))


def test_a_dense_model_made_sparse_from_a_file_is_described(tmp_path):
    model, dense = sparse_bert(), made("BertForMaskedLM", "bert")
    sparseloom.save(model, tmp_path / "model.safetensors")
    sparseloom.load(tmp_path / "model.safetensors", dense, sparsify=True)
    assert same(model, reloaded(dense, tmp_path / "again"))


def test_a_pickled_and_a_copied_model_is_described_too(tmp_path):
    model = sparse_bert()
    for name, other in (("pickled", pickle.loads(pickle.dumps(model))), ("copied", copy.deepcopy(model))):
        assert same(model, reloaded(other, tmp_path / name))
        assert safetensors.torch.load_file(tmp_path / name / "model.safetensors")[
            "bert.encoder.layer.0.output.dense.weight"
        ].shape == (5, 16, 16)


class OwnLayers(transformers.BertModel):
    """A class whose own code makes a sparse layer, with a pattern by chance."""

    def __init__(self, config):
        super().__init__(config)
        self.extra = BlockSparseLinear(32, 48, density=0.5, block=8)


def test_a_class_that_makes_sparse_layers_itself_comes_back_when_described(tmp_path):
    torch.manual_seed(0)
    model = OwnLayers(tiny_models.CONFIGS["bert"]()).eval()
    sparseloom.hf.describe_(model)
    again = reloaded(model, tmp_path)
    assert same(model, again) and again.extra.pattern == model.extra.pattern
    x = torch.randn(3, 32, requires_grad=True)
    grads = [torch.autograd.grad(each.extra(x).square().sum(), x)[0] for each in (model, again)]
    assert torch.equal(*grads)


def test_a_fused_activation_comes_back(tmp_path):
    model = made("BertModel", "bert")
    dense = model.encoder.layer[0].intermediate
    dense.dense = BlockSparseLinear.from_dense(dense.dense, density=0.5, block=16, activation="gelu")
    dense.intermediate_act_fn = nn.Identity()
    sparseloom.hf.describe_(model)
    again = reloaded(model, tmp_path)
    assert again.encoder.layer[0].intermediate.dense.activation == "gelu"


@pytest.mark.parametrize("setting", [True, "auto"])
def test_an_allowed_dense_copy_comes_back_and_serves_the_loaded_values(setting, tmp_path):
    model = made("BertModel", "bert")
    sparsify_(model, {r".*intermediate.dense": HALF}, dense_copy=setting)
    again = reloaded(model, tmp_path)
    layer = again.encoder.layer[0].intermediate.dense
    assert layer.dense_copy == setting
    assert layer.plan(4)["dense_copy"]["reason"] in ("", "what is stored is expected to be faster")
    with torch.no_grad():
        x = torch.randn(4, layer.in_features)
        torch.testing.assert_close(layer(x), model.encoder.layer[0].intermediate.dense(x))
