"""transformers' own Trainer on block-sparse models: trained, saved, loaded, trained on, and resumed from a
checkpoint; accelerate's and huggingface_hub's own ways to save."""

import copy

import huggingface_hub
import pytest
import tiny_models
import torch
import transformers
from accelerate import Accelerator, load_checkpoint_in_model
from torch import nn
from torch.utils.data import Dataset

from sparseloom import BlockSparse, Distillation, sparsify_
from sparseloom.callbacks import recovery_callback
from sparseloom.nn import BlockSparseLinear


class Sentences(Dataset):
    """The same 24 sentences for all, each word its own label."""

    def __init__(self):
        self.words = tiny_models.tokens(24, 9)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": self.words[i]}


def trainer(model, folder, steps, **changes):
    options = {
        "save_strategy": "steps",
        "save_steps": 4,
        "save_total_limit": 5,
        "learning_rate": 1e-2,
        "logging_steps": 1,
    }
    options |= {
        "per_device_train_batch_size": 6,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
    }
    arguments = transformers.TrainingArguments(str(folder), max_steps=steps, **(options | changes))
    return transformers.Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())


def values(model):
    return {
        name: layer.values.detach().clone()
        for name, layer in model.named_modules()
        if isinstance(layer, BlockSparseLinear)
    }


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


MODELS = {
    "bert": ("BertForMaskedLM", {r".*layer.*(dense|query|key|value)": BlockSparse(8, 0.5)}),
    "gpt2": ("GPT2LMHeadModel", {r".*(c_attn|c_proj|c_fc)": BlockSparse(8, 0.5)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_trainer_trains_saves_reloads_and_trains_on(name, tmp_path):
    """It refused a reloaded model as "purely quantized"."""
    cls, patterns = MODELS[name]
    model = tiny_models.made(cls, name)
    sparsify_(model, patterns)
    before = values(model)
    first = trainer(model, tmp_path / "first", 8)
    first.train()
    losses = [entry["loss"] for entry in first.state.log_history if "loss" in entry]
    assert losses[-1] < 0.99 * losses[0] and not any(
        torch.equal(before[n], v) for n, v in values(model).items()
    )
    first.save_model(tmp_path / "saved")
    again = getattr(transformers, cls).from_pretrained(tmp_path / "saved")
    assert equal(values(model), values(again))
    loaded = values(again)
    second = trainer(again, tmp_path / "second", 8)
    second.train()
    after = [entry["loss"] for entry in second.state.log_history if "loss" in entry]
    assert after[0] < 0.99 * losses[0] and after[-1] < after[0]
    assert not any(torch.equal(loaded[n], v) for n, v in values(again).items())
    patterned = {n: m.pattern for n, m in again.named_modules() if isinstance(m, BlockSparseLinear)}
    assert all(model.get_submodule(n).pattern == pattern for n, pattern in patterned.items())


@pytest.mark.parametrize("name", MODELS)
def test_resume_from_checkpoint_ends_where_an_uninterrupted_run_ends(name, tmp_path):
    cls, patterns = MODELS[name]
    dropless = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    dropless |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    ends = []
    for resume in (None, str(tmp_path / "run" / "checkpoint-4")):
        model = tiny_models.made(cls, name, **dropless)
        sparsify_(model, patterns)
        if resume is not None:  # other values, which the checkpoint's take the place of
            with torch.no_grad():
                for layer in model.modules():
                    if isinstance(layer, BlockSparseLinear):
                        layer.values.zero_()
        trainer(model, tmp_path / "run", 8).train(resume_from_checkpoint=resume)
        ends.append(values(model))
    assert equal(*ends)


def test_a_reloaded_model_resumes_and_loads_its_best_checkpoint(tmp_path):
    cls, patterns = MODELS["bert"]
    model = tiny_models.made(cls, "bert")
    sparsify_(model, patterns)
    model.save_pretrained(tmp_path / "saved")
    again = getattr(transformers, cls).from_pretrained(tmp_path / "saved")
    options = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True}
    first = trainer(again, tmp_path / "run", 8, **options)
    first.train()
    best = getattr(transformers, cls).from_pretrained(first.state.best_model_checkpoint)
    assert equal(values(best), values(again))


@pytest.mark.parametrize("convert", ["half", "bfloat16", "double", "float"])
def test_half_and_float_convert_a_reloaded_model(convert, tmp_path):
    """They refused it as quantized."""
    model = tiny_models.made("BertForMaskedLM", "bert")
    sparsify_(model, MODELS["bert"][1])
    model.save_pretrained(tmp_path)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    getattr(again, convert)()
    dtype = {
        "half": torch.float16,
        "bfloat16": torch.bfloat16,
        "double": torch.float64,
        "float": torch.float32,
    }[convert]
    assert {layer.values.dtype for layer in again.modules() if isinstance(layer, BlockSparseLinear)} == {
        dtype
    }
    tokens = tiny_models.tokens()
    with torch.no_grad():
        logits = again(tokens).logits
        assert logits.dtype == dtype
        torch.testing.assert_close(logits.float(), model(tokens).logits, atol=2e-2, rtol=2e-2)


class OnTheHub(nn.Module, huggingface_hub.PyTorchModelHubMixin):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 36), nn.Conv1d(16, 24, 3), nn.LSTM(16, 24))
        sparsify_(self, {".*": BlockSparse(8, 0.5, "random")})


def of_save_model(model, folder):
    Accelerator().save_model(model, folder)
    loaded = OnTheHub()
    load_checkpoint_in_model(loaded, folder)
    return loaded


def of_save_state(model, folder):
    accelerator = Accelerator()
    accelerator.prepare(saved := copy.deepcopy(model))
    accelerator.save_state(folder)
    for parameter in saved.parameters():
        parameter.data.zero_()
    accelerator.load_state(folder)
    return saved


def of_the_mixin(model, folder):
    model.save_pretrained(folder)
    return OnTheHub.from_pretrained(folder)


@pytest.mark.parametrize("way", [of_save_model, of_save_state, of_the_mixin])
def test_accelerate_and_the_hub_save_the_pattern_with_the_model(way, tmp_path):
    model = OnTheHub()
    loaded = way(model, tmp_path).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


def test_a_model_learns_from_its_teacher_in_a_trainer_until_its_minutes_end(tmp_path):
    teacher = tiny_models.made("BertForMaskedLM", "bert")
    for module in teacher.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.2)  # so that blocks matter
    model = copy.deepcopy(teacher)
    sparsify_(model, MODELS["bert"][1])
    words = tiny_models.tokens(24, 9)

    def distance():
        with torch.no_grad():
            return float((model.eval()(words).logits - teacher.eval()(words).logits).square().mean())

    before = distance()
    loss = Distillation(teacher, logits=1.0, hidden=1.0, at=r".*layer\.\d+")
    run = trainer(model, tmp_path, 30, save_strategy="no")
    run.add_callback(recovery_callback(model, loss))
    run.train()
    assert distance() < 0.5 * before
    assert not model._forward_hooks  # the loss of later calls is the model's own
    run = trainer(model, tmp_path, 30, save_strategy="no")
    run.add_callback(recovery_callback(model, loss, minutes=1e-6))
    assert run.train().global_step == 1


def test_gradients_that_a_trainer_sums_are_those_of_one_batch(tmp_path):
    teacher = tiny_models.made("BertForMaskedLM", "bert")
    for module in teacher.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.2)
    norms = []
    for batch, summed in ((24, 1), (6, 4)):
        model = copy.deepcopy(teacher)
        sparsify_(model, MODELS["bert"][1])
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": summed}
        run = trainer(model, tmp_path, 1, save_strategy="no", **options)
        for module in model.modules():  # each batch draws its own
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        run.add_callback(recovery_callback(model, Distillation(teacher, logits=1.0)))
        run.train()
        norms.append(next(entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry))
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
