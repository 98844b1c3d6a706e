"""shrink_ of whole models: they compute the same, and transformers alone reloads them."""

import copy
import os
import subprocess
import sys

import pytest
import timm
import tiny_models
import torch
import transformers
from eight_bits import needs_fast_int8
from emptied import CLASSES, FEED, SIZES, batch, emptied, made, matrix
from tiny_models import reloaded

import sparseloom
import sparseloom.hf
from sparseloom import BlockSparse, Error, InLayout, shrink_
from sparseloom.nn.held.sparse_weight import sparse_modules

RELOAD = """
import sys
sys.path[:0] = {path!r}
import vision_operators
vision_operators.define_missing()
import torch, transformers
for cls, folder in {models!r}:
    model = getattr(transformers, cls).from_pretrained(folder, trust_remote_code=True)
    inputs = torch.load(folder + "/inputs.pt")
    torch.save(model.eval()(inputs).logits.detach(), folder + "/outputs.pt")
assert "sparseloom" not in sys.modules
"""
#: Family -> the numbers in the config after a quarter of units and KV heads went.
STATED = {
    "bert": {"intermediate_size": 48, "kept_heads": [3, 1], "num_attention_heads": 4},
    "gpt2": {"n_inner": 48, "kept_heads": [3, 1], "num_attention_heads": 4},
    "llama": {"intermediate_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12},
    "qwen2": {"intermediate_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8},
    "qwen3": {"intermediate_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16},
    "vit": {"intermediate_size": 48, "num_attention_heads": 3, "head_dim": 8},
}
AUTO = {"bert": "AutoModelForMaskedLM", "gpt2": "AutoModelForCausalLM"}


def close(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", CLASSES)
def test_a_model_computes_the_same_with_smaller_numbers_in_its_config(family):
    model = emptied(made(family))
    config, before, count = model.config, model(batch(family)).logits, model.num_parameters()
    result = shrink_(model, code=True)
    close(model(batch(family)).logits, before)
    assert {key: getattr(model.config, key) for key in STATED[family]} == STATED[family]
    assert model.config is not config and not hasattr(config, "kept_heads")
    assert model.num_parameters() < 0.9 * count and result.parameters == (count, model.num_parameters())
    assert {(width.before, width.after) for width in result.widths if width.kind == "units"} == {(64, 48)}


def test_transformers_alone_reloads_them(tmp_path):
    expected, models = {}, []
    for family, cls in CLASSES.items():
        folder = tmp_path / family
        model = emptied(made(family))
        expected[family] = model(batch(family)).logits.detach()
        shrink_(model, code=True)
        model.save_pretrained(folder)
        assert (folder / "narrow_heads.py").exists() == (family in AUTO)
        torch.save(batch(family), folder / "inputs.pt")
        models.append((AUTO.get(family, cls), str(folder)))
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "code")}
    command = [sys.executable, "-c", RELOAD.format(path=sys.path, models=models)]
    subprocess.run(command, check=True, env=environment)
    for family, logits in expected.items():
        close(torch.load(tmp_path / family / "outputs.pt"), logits)


def test_heads_that_a_config_cannot_say_stay_without_code():
    model = emptied(made("bert"))
    before = model(batch("bert")).logits
    result = shrink_(model)
    close(model(batch("bert")).logits, before)
    heads = [width for width in result.widths if width.kind == "KV heads"]
    assert {(width.before, width.needed, width.after) for width in heads} == {(4, 3, 4)}
    assert all("code=True" in width.reason for width in heads)
    assert not hasattr(model.config, "kept_heads") and model.config.intermediate_size == 48


@pytest.mark.parametrize("family", ["bert", "gpt2", "qwen3"])
def test_a_model_shrinks_again(family, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "code"))
    model = emptied(made(family))
    shrink_(model, code=True)
    model.save_pretrained(tmp_path)
    auto = getattr(transformers, AUTO.get(family, "AutoModelForCausalLM"))
    model = auto.from_pretrained(tmp_path, trust_remote_code=True)
    for name, module in model.named_modules():
        if name.endswith(("attention.output.dense", "attn.c_proj", "self_attn.o_proj")):
            matrix(module).data[:, -matrix(module).shape[1] // 3 :] = 0
    before = model(batch(family)).logits
    result = shrink_(model)
    close(model(batch(family)).logits, before)
    assert {w.after for w in result.widths if w.kind == "KV heads"} == {2}
    close(reloaded(model, tmp_path / "again")(batch(family)).logits, before)


def test_heads_stay_in_numbers_that_a_config_takes():
    # hidden_size has to divide by the number of heads, which 11 does not
    sizes = {"hidden_size": 96, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 6}
    model = made("llama", **sizes)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[:, :30] = 0
    twin, before = copy.deepcopy(model), model(batch("llama")).logits
    result = shrink_(model)
    close(model(batch("llama")).logits, before)
    assert {(w.needed, w.after) for w in result.widths if w.kind == "KV heads"} == {(11, 12)}
    assert "LlamaConfig refuses it (ValueError: The hidden size (96) is not" in result.widths[1].reason
    shrink_(twin, code=True)
    close(twin(batch("llama")).logits, before)
    assert twin.config.kept_heads == [11, 1]


def test_all_layers_keep_what_the_widest_needs():
    model = made("llama")
    first, second = model.model.layers
    with torch.no_grad():
        first.mlp.down_proj.weight[:, 10:] = 0
        second.mlp.up_proj.weight[:30] = 0
        first.self_attn.o_proj.weight[:, 12:] = 0
        second.self_attn.v_proj.weight[:24] = 0
    before = model(batch("llama")).logits
    result = shrink_(model, multiple_of=1)
    close(model(batch("llama")).logits, before)
    assert [(w.needed, w.after) for w in result.widths if w.kind == "units"] == [(10, 34), (34, 34)]
    assert [(w.needed, w.after) for w in result.widths if w.kind == "KV heads"] == [(1, 2), (2, 2)]
    assert "one width for all layers of a LlamaConfig" in str(result)
    assert first.mlp.down_proj.in_features == 34 and first.self_attn.q_proj.out_features == 24


def test_queries_of_a_kv_head_go_where_each_can_spare_as_many():
    model = made("qwen3")
    for layer, (a, b) in zip(model.model.layers, ((0, 0), (1, 0)), strict=True):
        columns = layer.self_attn.o_proj.weight.data.view(32, 4, 2, 16)
        columns[:, :2, a] = columns[:, 2:, b] = 0
    before = model(batch("qwen3")).logits
    shrink_(model)
    close(model(batch("qwen3")).logits, before)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 4)


def test_heads_whose_values_are_a_constant_without_a_bias_behind_stay():
    model = made("qwen2")  # q, k and v have biases, the output has none
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data[:8] = 0
    result = shrink_(model)
    reasons = {width.reason for width in result.widths if width.kind == "KV heads"}
    assert len(reasons) == 2 and all("no bias to go to" in reason for reason in reasons)
    assert model.config.num_key_value_heads == 4


def test_head_values_that_are_constant_move_into_the_bias_behind():
    model = made("vit")
    for layer in model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer:
        next(m for n, m in layer.named_modules() if n.endswith("v_proj")).weight.data[8:16] = 0
    before = model(batch("vit")).logits
    shrink_(model)
    close(model(batch("vit")).logits, before)
    assert model.config.num_attention_heads == 3


def test_block_sparse_layers_stay_so():
    model = made("llama")
    for layer in model.model.layers:
        for name, rows in (("gate_proj", slice(16, 32)), ("up_proj", slice(16, 32))):
            getattr(layer.mlp, name).weight.data[rows] = 0
        layer.mlp.gate_proj.weight.data[48:, :16] = 0
    recipe = sparseloom.BlockSparse(block=16, select="stored")
    sparseloom.sparsify_(model, {r".*(gate|up|down)_proj": recipe})
    before = model(batch("llama")).logits
    blocks = [
        sum(m.pattern.blocks for m in layer.mlp.children() if hasattr(m, "pattern"))
        for layer in model.model.layers
    ]
    result = shrink_(model)
    close(model(batch("llama")).logits, before)
    mlp = model.model.layers[0].mlp
    assert type(mlp.up_proj).__name__ == "BlockSparseLinear" and mlp.up_proj.out_features == 48
    assert mlp.gate_proj.pattern.blocks == 8 and mlp.gate_proj.block == (16, 16)
    assert blocks[0] == 8 + 9 + 12 and mlp.down_proj.pattern.blocks == 9
    assert model.config.intermediate_size == 48 and result.settings == {"intermediate_size": (64, 48)}


@needs_fast_int8
def test_a_layer_that_cannot_shrink_keeps_its_config_as_it_is():
    model = emptied(made("qwen3"))
    sparseloom.sparsify_(model, {r".*0\.(self_attn|mlp)\.(o|down)_proj": BlockSparse(8, select="stored")})
    sparseloom.quantize_(model.requires_grad_(False), torch.int8)
    before = model(batch("qwen3")).logits
    result = shrink_(model)
    close(model(batch("qwen3")).logits, before)
    assert not result.settings and all(width.after == width.before for width in result.widths)
    assert "model.layers.0.self_attn stays (model.layers.0.self_attn.o_proj is 8-bit" in str(result)


#: All linear layers inside the blocks of each family.
INSIDE = r".*(layer|layers|h)\.\d+\..*(dense|query|key|value|c_fc|c_proj|c_attn|_proj|fc1|fc2)"


STORED = {
    "bsr": BlockSparse(8, select="stored"),
    "csr": InLayout("csr"),
    "tiles": InLayout("tiles", density=1.0, side=64),
}


@pytest.mark.parametrize("recipe", STORED.values(), ids=STORED)
@pytest.mark.parametrize("family", CLASSES)
def test_sparse_models_shrink_and_come_back(family, recipe, tmp_path):
    model = emptied(made(family))
    for name, module in model.named_modules():
        if name.endswith(tuple(FEED)) and "attention" not in name:
            matrix(module).data[:16] = 0  # whole blocks
    sparseloom.sparsify_(model, {INSIDE: recipe})
    kinds = [type(module) for _, module in sparse_modules(model)]
    before = model(batch(family)).logits
    result = shrink_(model, code=True)
    close(model(batch(family)).logits, before)
    assert [type(module) for _, module in sparse_modules(model)] == kinds and len(kinds) >= 8
    assert all(width.after == width.needed for width in result.widths)
    assert {width.after for width in result.widths if width.kind == "KV heads"} == {3}
    close(reloaded(model, tmp_path)(batch(family)).logits, before)


@pytest.mark.parametrize("sparse", [False, True])
def test_hooks_stay_with_narrowed_layers(sparse):
    model, seen = emptied(made("bert")), []
    names = [f"bert.encoder.layer.{i}.attention.output.dense" for i in range(2)]
    if sparse:
        sparseloom.sparsify_(model, {r".*attention.output.dense": BlockSparse(8, select="stored")})
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda layer, args: seen.append(args[0].shape[-1])
        )
        for name in names
    ]
    shrink_(model, code=True)
    model(batch("bert"))
    assert seen == [24, 24]
    sparseloom.densify_(model) if sparse else None
    model(batch("bert"))
    assert seen == [24] * 4
    for handle in handles:
        handle.remove()
    model(batch("bert"))
    assert seen == [24] * 4


def test_big_bird_keeps_the_heads_that_it_makes_anew():
    """Its attention is another for short inputs, made by its config when the first one comes."""
    sizes = transformers.BigBirdConfig(**tiny_models.TOKENS | {"vocab_size": 80}, **SIZES, block_size=2)
    torch.manual_seed(0)
    model, config = emptied(transformers.BigBirdForMaskedLM(sizes).eval()), sizes.to_dict()
    long, short = tiny_models.tokens(2, 64), tiny_models.tokens(2, 9)
    with torch.no_grad():
        before = model(long).logits, copy.deepcopy(model)(short).logits
        result = shrink_(model, code=True)
        close(model(long).logits, before[0])
        close(model(short).logits, before[1])
    assert "set_attention_type makes the attention anew" in str(result)
    assert model.config.to_dict() == config | {"intermediate_size": 48}


def test_an_optimizer_follows():
    model, twin = emptied(made("llama")), emptied(made("llama"))
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (model, twin)]
    for each, optimizer in zip((model, twin), optimizers, strict=True):
        each(batch("llama"), labels=batch("llama")).loss.backward()
        optimizer.step()
        emptied(each)
    shrink_(model, optimizer=optimizers[0])
    moments = {id(p) for group in optimizers[0].param_groups for p in group["params"]}
    assert moments == {id(p) for p in model.parameters()}
    for parameter, state in optimizers[0].state.items():
        assert state["exp_avg"].shape == parameter.shape == parameter.grad.shape
    kept = model.model.layers[0].mlp.up_proj.weight
    rows = [(twin.model.layers[0].mlp.up_proj.weight == row).all(1).nonzero()[0, 0] for row in kept]
    twins = optimizers[1].state[twin.model.layers[0].mlp.up_proj.weight]["exp_avg"][torch.stack(rows)]
    assert torch.equal(optimizers[0].state[kept]["exp_avg"], twins)
    optimizers[0].step()


def test_timm_vit_has_widths_of_its_own_in_each_block():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5).eval()
    first, second = model.blocks
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        first.attn.proj.weight[:, 64:128] = 0
        second.attn.qkv.weight[2 * 192 : 2 * 192 + 64] = 0
        first.mlp.fc1.weight[:100] = 0
        second.mlp.fc2.weight[:, 8:] = 0
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    result = shrink_(model)
    close(model(x), before)
    assert [each.attn.num_heads for each in model.blocks] == [2, 2]
    assert [each.mlp.fc1.out_features for each in model.blocks] == [672, 8]  # 668 in multiples of 8
    assert first.attn.qkv.weight.shape == (384, 192) and not result.settings


def test_what_is_not_known_is_named():
    with pytest.raises(Error, match=r"\[shrink_\] expected a feed-forward part"):
        shrink_(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    model = made("llama").to("meta")
    with pytest.raises(Error, match="meta device"):
        shrink_(model)


@pytest.mark.parametrize("broken_step", ["cut", "recipe"])
def test_a_call_that_fails_changes_nothing(broken_step, monkeypatch):
    from sparseloom.shrink.attention import Attention
    from sparseloom.shrink.packed import Packed

    def broken(*arguments):
        raise MemoryError("no room")

    model = emptied(made("bert"))
    sparseloom.sparsify_(model, {r".*1\.attention.*": BlockSparse(8, select="stored")})
    before, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    monkeypatch.setattr(Attention if broken_step == "cut" else Packed, broken_step, broken)
    with pytest.raises(MemoryError):
        shrink_(model, code=True)
    assert model.config.to_dict() == config and type(model).__name__ == "BertForMaskedLM"
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.bert.encoder.layer[0].intermediate.dense.out_features == 64
