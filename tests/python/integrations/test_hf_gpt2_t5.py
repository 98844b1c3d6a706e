"""transformers' GPT-2 and T5, which read and initialise the weights of their layers, with sparse layers."""

import pytest
import torch
import transformers
from bits import same
from test_hf import HALF
from tiny_models import made, reloaded, tokens

import sparseloom
import sparseloom.hf
from sparseloom import InLayout, sparsify_
from sparseloom.nn import (
    BlockSparseLinear,
)

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
