"""Methods under transformers' Trainer and under Lightning: steps are counted, and runs resume bitwise."""

import lightning
import pytest
import tiny_models
import torch
from test_lightning import data, fitted
from test_trainer import trainer, values

import sparseloom
from sparseloom import BlockSparse, InLayout, pack_, sparsify_
from sparseloom.callbacks import lightning_callback, trainer_callback
from sparseloom.sparsify import methods


def test_the_trainer_takes_the_steps_and_resumes_in_the_same_bits(tmp_path):
    dropless = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-4")):
        model = tiny_models.made("BertForMaskedLM", "bert", **dropless)
        chosen = BlockSparse(8, 0.5, "random", seed=len(ends), method=methods.rigl(100, 3))
        run = sparsify_(model, {r".*layer.*dense": chosen}).method
        before = {held.name: held.present() for held in run.weights}
        job = trainer(model, tmp_path, 8)
        job.add_callback(trainer_callback(run))
        job.train(resume_from_checkpoint=resume)
        assert run.steps == 8
        assert not all(torch.equal(before[held.name], held.present()) for held in run.weights)
        ends.append((values(model), {held.name: held.present() for held in run.weights}))
    for one, other in zip(*ends, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_trainer_logs_how_much_masks_of_2_to_4_change_and_a_tail_stays_one(tmp_path):
    model = tiny_models.made("BertForMaskedLM", "bert")
    recipe = InLayout("semi24", method=methods.semi24("ste", every=1))
    run = sparsify_(model, {r".*layer.*dense": recipe}).method
    job = trainer(model, tmp_path, 4, logging_steps=1, save_strategy="no")
    job.add_callback(trainer_callback(run))
    job.train()
    rates = [entry["flip_rate"] for entry in job.state.log_history if "loss" in entry]
    assert len(rates) == 4 and rates[-1] == pytest.approx(sum(run.flip_rates().values()) / len(run.weights))
    run.dense_tail()
    run.load_state_dict({"steps": 4, "waiting": [False]})  # as on_train_begin does when it resumes
    assert run.tail


def test_a_model_of_transformers_is_masked_packed_saved_and_loaded(tmp_path):
    model = tiny_models.made("BertForMaskedLM", "bert")
    patterns = {r".*layer.*dense": BlockSparse(8, 0.5, method=methods.supermask(lr=0.1))}
    job = trainer(model, tmp_path, 3, save_strategy="no")
    job.add_callback(trainer_callback(sparsify_(model, patterns).method))
    job.train()
    model.eval()
    words = tiny_models.tokens(2, 9)
    with torch.no_grad():
        expected = model(words).logits
        pack_(model)
        torch.testing.assert_close(model(words).logits, expected, atol=1e-5, rtol=1e-5)
        model.save_pretrained(tmp_path / "saved")
        again = type(model).from_pretrained(tmp_path / "saved").eval()
        assert torch.equal(again(words).logits, model(words).logits)


class Module(lightning.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
        chosen = BlockSparse(8, 0.5, "random", seed=seed, method=methods.rigl(100, 4))
        self.run = sparseloom.sparsify_(self.net, {"0": chosen}).method

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lightning_takes_the_steps_and_resumes_in_the_same_bits(tmp_path):
    whole, first, second = Module(), Module(), Module(seed=1)
    assert len(data()) == 1
    fitted(whole, 12, callbacks=[lightning_callback(whole.run)])
    file = tmp_path / "half.ckpt"
    fitted(first, 6, callbacks=[lightning_callback(lambda: first.run)]).save_checkpoint(file)
    fitted(second, 12, resume=file, callbacks=[lightning_callback(second.run)])
    assert whole.run.steps == second.run.steps == 12 and first.run.steps == 6
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_batches_that_lightning_accumulates_are_one_step():
    module = Module()
    fitted(module, 3, accumulate_grad_batches=2, max_epochs=6, callbacks=[lightning_callback(module.run)])
    assert module.run.steps == 3
