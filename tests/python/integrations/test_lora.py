"""LoRA adapters of the real peft on block-sparse and 2:4 layers."""

import peft
import pytest
import tiny_models
import torch
import transformers
from peft.tuners.lora import LoraLayer
from torch import nn

import sparseloom
import sparseloom.lora
from sparseloom import BlockSparse, InLayout, densify_, sparsify_
from sparseloom.nn import BlockSparseLinear, SparseLinear

MODELS = {
    "bert": (
        "BertForMaskedLM",
        {r".*(query|value|output\.dense)": BlockSparse(16, 0.5)},
        ["query", "value", "key"],
    ),
    "gpt2": ("GPT2LMHeadModel", {r".*(c_attn|c_fc)": BlockSparse(16, 0.5)}, ["c_attn", "c_fc"]),
}


def base(name):
    cls, patterns, _ = MODELS[name]
    model = tiny_models.made(cls, name)
    sparsify_(model, patterns)
    return model


def config(name, **options):
    options = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": MODELS[name][2],
        "fan_in_fan_out": name == "gpt2",
    } | options
    return sparseloom.lora.register_(peft.LoraConfig(**options))


def trained(name, steps=10):
    torch.manual_seed(0)
    model = peft.get_peft_model(base(name), config(name))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-2)
    words, losses = tiny_models.tokens(), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


def adapted_sparse(model):
    return [
        m for m in model.modules() if isinstance(m, LoraLayer) and isinstance(m.base_layer, BlockSparseLinear)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_lora_on_sparse_layers_trains_the_adapter_alone(name):
    model, losses = trained(name)
    assert losses[-1] < 0.98 * losses[0] and len(adapted_sparse(model)) == 4
    for layer in adapted_sparse(model):
        assert not layer.base_layer.values.requires_grad and layer.lora_B["default"].weight.abs().sum() > 0
    fresh = base(name).state_dict()
    for key, tensor in model.get_base_model().state_dict().items():
        if "lora_" not in key:
            assert torch.equal(tensor, fresh[key.replace(".base_layer.", ".")]), key


@pytest.mark.parametrize("name", MODELS)
def test_lora_adds_to_a_sparse_layer_what_it_adds_to_its_masked_twin(name):
    model, _ = trained(name)
    words = tiny_models.tokens()
    twin = base(name)
    densify_(twin)
    twin = peft.get_peft_model(twin, config(name)).eval()
    peft.set_peft_model_state_dict(twin, peft.get_peft_model_state_dict(model))
    with torch.no_grad():
        torch.testing.assert_close(model(words).logits, twin(words).logits, atol=1e-4, rtol=1e-4)
        with model.disable_adapter():
            torch.testing.assert_close(model(words).logits, base(name)(words).logits)


@pytest.mark.parametrize("name", MODELS)
def test_a_lora_adapter_on_sparse_layers_saves_and_reloads(name, tmp_path):
    model, _ = trained(name)
    model.save_pretrained(tmp_path / "adapter")
    base(name).save_pretrained(tmp_path / "base")
    again = getattr(transformers, MODELS[name][0]).from_pretrained(tmp_path / "base")
    loaded = sparseloom.lora.register_(peft.LoraConfig.from_pretrained(tmp_path / "adapter"))
    again = peft.PeftModel.from_pretrained(again, tmp_path / "adapter", config=loaded).eval()
    words = tiny_models.tokens()
    with torch.no_grad():
        assert torch.equal(model(words).logits, again(words).logits)
    # loudly, where nobody registered the config
    with pytest.raises(ValueError, match=r"BlockSparse.* is not supported"):
        peft.PeftModel.from_pretrained(base(name), tmp_path / "adapter")


@pytest.mark.parametrize("how", ["merge_and_unload", "merge_adapter", "safe"])
def test_merging_lora_into_a_sparse_layer_is_refused_in_one_line(how):
    model, _ = trained("gpt2", 2)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    patterns = [layer.base_layer.pattern for layer in adapted_sparse(model)]
    calls = {
        "merge_and_unload": lambda: model.merge_and_unload(),
        "merge_adapter": lambda: model.merge_adapter(),
        "safe": lambda: model.merge_and_unload(safe_merge=True),
    }
    with pytest.raises(
        sparseloom.Error, match=r"\[merge\] expected a dense layer: B A has elements where nothing is stored"
    ) as error:
        calls[how]()
    assert len(str(error.value).splitlines()) == 1
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert [layer.base_layer.pattern for layer in adapted_sparse(model)] == patterns
    model.unload()  # without the adapter the model is as before
    assert isinstance(model.get_base_model().transformer.h[0].mlp.c_fc, BlockSparseLinear)


def test_merging_after_densify_is_the_way_that_the_error_names():
    model, _ = trained("gpt2", 3)
    adapter = peft.get_peft_model_state_dict(model)
    words, twin = tiny_models.tokens(), base("gpt2")
    densify_(twin)
    twin = peft.get_peft_model(twin, config("gpt2")).eval()
    peft.set_peft_model_state_dict(twin, adapter)
    merged = twin.merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(merged(words).logits, model(words).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"use_dora": True}, {"init_lora_weights": "pissa"}, {"init_lora_weights": "olora"}]
)
def test_lora_variants_that_need_the_base_weight_are_refused(options):
    with pytest.raises(sparseloom.Error, match="it stores blocks; call the layer"):
        peft.get_peft_model(base("bert"), config("bert", **options))


def test_lora_behind_a_fused_activation_is_refused():
    net = nn.Sequential(BlockSparseLinear(32, 32, density=0.5, block=16, activation="relu"))
    with pytest.raises(sparseloom.Error, match="without a fused activation"):
        peft.get_peft_model(net, config("bert", target_modules=["0"]))


def test_an_adapter_around_a_2_4_layer_trains_saves_and_leaves_the_layer_alone(tmp_path):
    def sparse():
        model = tiny_models.made("BertForMaskedLM", "bert")
        sparsify_(model, {r".*(query|value|output\.dense)": sparseloom.Semi24("magnitude")})
        return model

    torch.manual_seed(0)
    model = peft.get_peft_model(sparse(), config("bert"))
    packed = {name: tensor.clone() for name, tensor in model.state_dict().items() if "values" in name}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
    words, losses = tiny_models.tokens(), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and packed
    assert all(
        torch.equal(tensor, packed[name]) for name, tensor in model.state_dict().items() if name in packed
    )
    model.eval().save_pretrained(tmp_path)
    loaded = sparseloom.lora.register_(peft.LoraConfig.from_pretrained(tmp_path))
    again = peft.PeftModel.from_pretrained(sparse(), tmp_path, config=loaded).eval()
    torch.testing.assert_close(again(words).logits, model(words).logits)


ELEMENTS = {
    "csr": InLayout("csr", density=0.3),
    "coo": InLayout("coo", density=0.3),
    "bitmap": InLayout("bitmap", density=0.3),
    "nm": InLayout("nm", n=1, m=4),
    "nmg": InLayout("nmg", n=2, m=4, g=4),
}


@pytest.mark.parametrize("layout", ELEMENTS)
@pytest.mark.parametrize("name", MODELS)
def test_an_adapter_takes_layers_of_single_elements(name, layout):
    cls, patterns, _ = MODELS[name]
    model = tiny_models.made(cls, name)
    # an adapter gives a fused activation back to the model, which rounds otherwise
    sparsify_(model, dict.fromkeys(patterns, ELEMENTS[layout]), fuse=False)
    words = tiny_models.tokens()
    with torch.no_grad():
        before = model(words).logits
    model = peft.get_peft_model(model, config(name)).eval()
    adapted = [
        m for m in model.modules() if isinstance(m, LoraLayer) and isinstance(m.base_layer, SparseLinear)
    ]
    assert len(adapted) == 4
    with torch.no_grad():
        assert torch.equal(model(words).logits, before)
    model(input_ids=words, labels=words).loss.backward()
    for layer in adapted:
        assert layer.lora_B["default"].weight.grad.abs().sum() > 0 and layer.base_layer.values.grad is None
