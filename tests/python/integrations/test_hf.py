"""transformers' save_pretrained and from_pretrained: nothing comes back with other weights, or silently with
random ones."""

import copy
import gc
import importlib
import json
import pickle
import shutil
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
from sparseloom import BlockSparse, InLayout, densify_, quantize_, sparsify_
from sparseloom.nn import (
    BlockSparseLinear,
    QuantizedBlockSparseLinear,
    SparseLinear,
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


def test_other_checkpoints_load_as_before(tmp_path):
    """Strict state_dicts, torch.save, sparseloom.save, files of format version 1, and the file's own
    tensors."""
    model, other = sparse_bert(), sparse_bert(layer_norm_eps=1e-5)
    assert not any(name.endswith("dense.weight") and ".layer." in name for name in model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter)) if parameter.dim() < 3 else parameter.mul_(1.5)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    assert same(model, other)
    sparseloom.save(model, tmp_path / "model.safetensors")
    fresh = sparse_bert()
    sparseloom.load(tmp_path / "model.safetensors", fresh)
    assert same(model, fresh)

    model.save_pretrained(tmp_path / "new")
    tensors = safetensors.torch.load_file(tmp_path / "new" / "model.safetensors")
    names = [name for name in tensors if name.removesuffix("weight") + "crow" in tensors]
    assert len(names) == 12 and all(name.endswith(".weight") and tensors[name].dim() == 3 for name in names)
    fresh = sparse_bert()
    # as Trainer does; the tied decoder is not in the file
    loaded = fresh.load_state_dict(tensors, strict=False)
    assert (
        not loaded.unexpected_keys
        and all("decoder" in name for name in loaded.missing_keys)
        and same(model, fresh)
    )

    shutil.copytree(tmp_path / "new", tmp_path / "old")
    old = {
        name.removesuffix("weight") + "values" if name in names else name: tensor
        for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(old, tmp_path / "old" / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    config["quantization_config"]["version"] = 1
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    again, found = type(model).from_pretrained(tmp_path / "old", output_loading_info=True)
    assert not any(found.values()) and same(model, again)


def test_tensors_of_a_file_load_strictly_into_every_kind_of_layer(tmp_path):
    for name, regex in (("ResNetModel", r".*convolution"), ("SiglipVisionModel", r".*(attention|fc1|fc2).*")):
        config = name.removesuffix("Model").removesuffix("Vision").lower()
        models = [made(name, config) for _ in range(2)]
        for model in models:
            sparsify_(model, {regex: HALF})
        quantized = [layer for layer in models[0].modules() if isinstance(layer, BlockSparseLinear)]
        with torch.no_grad():
            for layer in quantized:
                layer.values.mul_(3)
        models[0].save_pretrained(tmp_path / name)
        models[1].load_state_dict(
            safetensors.torch.load_file(tmp_path / name / "model.safetensors"), strict=True
        )
        assert same(*models)


GPT2 = [
    "GPT2Model",
    "GPT2LMHeadModel",
    "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification",
    "GPT2ForQuestionAnswering",
]
T5 = [
    "T5Model",
    "T5ForConditionalGeneration",
    "T5EncoderModel",
    "T5ForTokenClassification",
    "T5ForQuestionAnswering",
]


@pytest.mark.parametrize("cls", [*GPT2, *T5])
def test_gpt2_and_t5_come_back_bitwise_with_any_head(cls, tmp_path):
    """Their _init_weights reads weight of layers that were replaced."""
    config = "gpt2" if cls.startswith("GPT2") else "t5"
    model = made(cls, config)
    result = sparsify_(model, {r".*(c_attn|c_proj|c_fc|\.q|\.k|\.v|\.o|wi|wo)": HALF})
    assert len(result.changed) >= 8
    again = reloaded(model, tmp_path)
    assert same(model, again)
    call = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if cls in T5[:2] else {})
    with torch.no_grad():
        mine, theirs = model(**call), again(**call)
    assert torch.equal(mine[0], theirs[0])


ELEMENTS = {
    "csr": InLayout("csr", density=0.3),
    "coo": InLayout("coo", density=0.3),
    "bitmap": InLayout("bitmap", density=0.3),
    "nm": InLayout("nm", n=1, m=4),
    "nmg": InLayout("nmg", n=2, m=4, g=4),
}


@pytest.mark.parametrize("layout", ELEMENTS)
@pytest.mark.parametrize("cls", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_gpt2_and_t5_with_layers_of_single_elements_run_and_come_back(cls, layout, tmp_path):
    """T5 asks wo.weight for its dtype in every call, and both initialise weight at from_pretrained."""
    config = "gpt2" if cls.startswith("GPT2") else "t5"
    model = made(cls, config)
    result = sparsify_(model, {r".*(c_attn|c_proj|c_fc|\.q|\.k|\.v|\.o|wi|wo)": ELEMENTS[layout]})
    assert len(result.changed) >= 8
    again = reloaded(model, tmp_path)
    assert same(model, again)
    call = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if config == "t5" else {})
    with torch.no_grad():
        assert torch.equal(model(**call)[0], again(**call)[0])
    for module in model.modules():
        module._is_hf_initialized = False
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.initialize_weights()
    held = [each.weight for each in sparseloom.nn.held.sparse_weight.sparse_layers(model)]
    drawn = [weight for weight in held if weight.values.unique().numel() > 2]
    assert len(drawn) >= 4
    for weight in drawn:  # padding of n:m groups stays zero
        weight.owner.layout.require_consistent("test", weight.values)


@pytest.mark.parametrize("cls", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_init_weights_of_gpt2_and_t5_draws_the_values(cls):
    """init_weights of a model that was never loaded: the same spread as its dense twin's."""
    config = "gpt2" if cls.startswith("GPT2") else "t5"
    model, dense = (made(cls, config) for _ in range(2))
    sparsify_(model, {r".*(c_attn|c_proj|c_fc|\.q|\.k|\.v|\.o|wi|wo)": HALF})
    for each in (model, dense):
        for module in each.modules():
            module._is_hf_initialized = False
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.fill_(7.0)
        each.initialize_weights()
    sparse = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BlockSparseLinear)]
    drawn = 0
    for name, layer in sparse:
        theirs = dense.get_submodule(name).weight
        if (
            layer.values.unique().numel() > 1
        ):  # transformers' general rule knows nn.Linear and Conv1D alone; both draw some parents'
            assert abs(layer.values.std() / theirs.std() - 1) < 0.2, name
            drawn += 1
    assert drawn >= 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_t5_with_a_part_kept_in_fp32_casts_to_the_sparse_layers_dtype(dtype, tmp_path):
    """Its forward converts what it gives to wo by wo.weight.dtype, which fp16 keeps in fp32."""
    model = made("T5ForConditionalGeneration", "t5")
    sparsify_(model, {r".*DenseReluDense\..*": HALF})
    model.save_pretrained(tmp_path)
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    wo = again.encoder.block[0].layer[1].DenseReluDense.wo
    assert (
        wo.values.dtype == (torch.float32 if dtype == torch.float16 else dtype)
        and wo.weight.dtype == wo.values.dtype
    )
    with torch.no_grad():
        logits = again(input_ids=tokens(), decoder_input_ids=tokens()).logits
    expected = model(input_ids=tokens(), decoder_input_ids=tokens()).logits
    torch.testing.assert_close(logits.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0.05)


class WritesData(transformers.BertModel):
    """As code outside transformers often has it: initialises by writing to .data, which no mark on a
    Parameter stops."""

    def _init_weights(self, module):
        if isinstance(getattr(module, "weight", None), torch.Tensor):
            module.weight.data.normal_(mean=0.0, std=0.02)
            torch.nn.init.zeros_(module.bias) if getattr(module, "bias", None) is not None else None


def test_loaded_values_are_left_alone_by_init_weights_that_writes_to_data(tmp_path):
    model = made("BertModel", "bert")
    sparsify_(model, {r".*layer.*(dense|query|key|value)": HALF})
    model.save_pretrained(tmp_path)
    again = WritesData.from_pretrained(tmp_path)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BlockSparseLinear)}
    assert len(layers) == 12 and all(
        torch.equal(again.get_submodule(n).values, layer.values) for n, layer in layers.items()
    )
    layer = again.encoder.layer[0].output.dense
    before = layer.values.detach().clone()
    layer.weight.data.normal_()  # afterwards it does what it says
    assert not torch.equal(layer.values, before)


def test_a_layout_from_outside_is_refused_by_name(tmp_path, monkeypatch):
    """config.json can only describe blocks. What could not come back is not saved."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "custom_layout")
    importlib.import_module("row_wise")
    model = made("BertForMaskedLM", "bert")
    output = model.bert.encoder.layer[0].output
    output.dense = SparseLinear.from_dense(output.dense, layout="row_wise", keep=5)
    sparseloom.hf.describe_(model)
    with pytest.raises(sparseloom.Error, match=r"layer\.0\.output\.dense in layout row_wise"):
        model.save_pretrained(tmp_path / "sparse")
    assert not list((tmp_path / "sparse").glob("*.safetensors"))
    sparseloom.save(model, tmp_path / "model.safetensors")
    densify_(model)
    assert same(model, reloaded(model, tmp_path / "dense"))
