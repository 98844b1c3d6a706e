"""sparseloom prune: a recipe file prunes a checkpoint, and says what is wrong with it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tiny_models
import tokenizers
import torch
import transformers

from sparseloom import BlockSparse, Error, InLayout, Semi24, cli
from sparseloom.prune import command

RECIPE = """
[prune]
model = {folder}/dense
data = {folder}/text.txt
evaluate = {folder}/text.txt
output = {folder}/pruned
samples = 16
tokens = 8
{more}

[layers]
.*mlp.* = 2:4
.*self_attn.* = block 8 0.5
"""


def checkpoint(folder: Path, *of: str) -> transformers.PreTrainedModel:
    model = tiny_models.made(*(of or ("LlamaForCausalLM", "llama")))
    model.save_pretrained(folder / "dense")
    words = {f"w{i}": i for i in range(60)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(folder / "dense")
    ids = torch.randint(3, 60, (400,), generator=torch.Generator().manual_seed(0))
    (folder / "text.txt").write_text(" ".join(f"w{i}" for i in ids.tolist()))
    return model


@pytest.mark.parametrize("zeros", [False, True])
def test_a_recipe_makes_a_checkpoint(zeros: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sparseloom")
    dense = checkpoint(tmp_path)
    recipe = tmp_path / "recipe.ini"
    recipe.write_text(RECIPE.format(folder=tmp_path, more="zeros = yes" if zeros else "swaps = 2"))
    assert cli.main(["prune", str(recipe)]) == 0
    assert "pruning 14 layers by sparsegpt over 16 batches" in caplog.text
    assert "evaluation: dense" in caplog.text
    pruned = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "pruned")
    layer = pruned.model.layers[1].mlp.up_proj
    assert type(layer).__name__ == ("Linear" if zeros else "Semi24Linear")
    weight = layer.weight if zeros else layer.to_dense().weight
    assert float((weight == 0).float().mean()) == pytest.approx(0.5)
    assert not torch.equal(weight, dense.model.layers[1].mlp.up_proj.weight)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "pruned")("w5")["input_ids"] == [5]


@pytest.mark.parametrize(
    ("of", "best"),
    [(("BertForMaskedLM", "bert"), 1), (("BertModel", "bert"), 1), (("GPT2LMHeadModel", "gpt2"), 60)],
)
def test_a_causal_model_has_a_perplexity_and_others_agree(
    of: tuple[str, str], best: float, tmp_path: Path
) -> None:
    checkpoint(tmp_path, *of)
    recipe = tmp_path / "recipe.ini"
    layers = r".*(intermediate.dense|c_fc) = 2:4"
    recipe.write_text(
        RECIPE.format(folder=tmp_path, more="zeros = yes").split("[layers]")[0] + f"[layers]\n{layers}"
    )
    stages = command.run(recipe).stages
    assert stages[0][1] == pytest.approx(best, rel=0.1)  # of 60 words, at random


@pytest.mark.parametrize(
    ("text", "kind"),
    [("2:4", Semi24), ("3:8", InLayout), ("csr 0.25", InLayout), ("block 16x32 0.5", BlockSparse)],
)
def test_targets_have_names(text: str, kind: type) -> None:
    assert isinstance(command.target_of(text), kind)


BAD = {
    "a line without a section": ("model = x", "[prune] and [layers]"),
    "no layers": ("[prune]\nmodel = x\noutput = y", "layers"),
    "unknown key": ("[prune]\nmodel = x\noutput = y\nsteps = 3\n[layers]", "steps unknown"),
    "no output": ("[prune]\nmodel = x\n[layers]", "output missing"),
    "no number": ("[prune]\nmodel = x\noutput = y\nsamples = many\n[layers]", "samples to be a whole number"),
    "no samples": ("[prune]\nmodel = x\noutput = y\nsamples = 0\n[layers]", "samples to be 1 or more"),
    "no tokens": ("[prune]\nmodel = x\noutput = y\ntokens = 0\n[layers]", "tokens to be 1 or more"),
    "target": ("[prune]\nmodel = x\noutput = y\n[layers]\n.* = half", "a target 2:4"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_recipe_is_refused(case: str, tmp_path: Path) -> None:
    text, told = BAD[case]
    (tmp_path / "recipe.ini").write_text(text)
    with pytest.raises(Error, match=told.replace("[", r"\[")):
        command.read(tmp_path / "recipe.ini")


def test_a_missing_recipe_or_a_short_text_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prune", str(tmp_path / "none.ini")]) == 2
    checkpoint(tmp_path)
    recipe = tmp_path / "recipe.ini"
    recipe.write_text(RECIPE.format(folder=tmp_path, more="").replace("tokens = 8", "tokens = 900"))
    assert cli.main(["prune", str(recipe)]) == 2
    assert "a text of 900 tokens or more" in capsys.readouterr().err
