"""What from_pretrained reads into sparse layers, and what it leaves as it was."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from bits import same
from test_hf import HALF, sparse_bert
from tiny_models import made, reloaded

import sparseloom
import sparseloom.hf
from sparseloom import densify_, sparsify_
from sparseloom.nn import (
    BlockSparseLinear,
    SparseLinear,
)


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
