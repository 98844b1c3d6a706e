"""sparseloom deploy: a program of a sparse checkpoint that runs alone, and what is wrong with a recipe."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers
from eight_bits import needs_fast_int8
from test_prune_command import checkpoint

import sparseloom.hf  # noqa: F401 - lets transformers save and read sparse layers
from sparseloom import BlockSparse, Error, Semi24, _home, cli, sparsify_
from sparseloom.prune import deploy

PATTERNS = {
    "llama": {r".*mlp.*": BlockSparse(8, density=0.5), r".*self_attn.*": Semi24(prune="magnitude")},
    "bert": {r".*layer\..*dense": BlockSparse(8, density=0.5)},
}


def sparse_checkpoint(name: str, folder: Path) -> Path:
    checkpoint(folder)  # its tokenizer
    model = tiny_models.made({"llama": "LlamaForCausalLM", "bert": "BertModel"}[name], name)
    sparsify_(model, PATTERNS[name])
    model.save_pretrained(folder / "dense")
    return folder / "dense"


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("llama", ""),
        ("bert", "compiled = yes"),
        pytest.param("bert", "int8 = yes", marks=needs_fast_int8),
    ],
)
def test_a_recipe_makes_a_program_that_runs_in_another_process(name, more, tmp_path, capsys):
    source = sparse_checkpoint(name, tmp_path)
    recipe = tmp_path / "deploy.ini"
    recipe.write_text(
        f"[deploy]\nmodel = {source}\noutput = {tmp_path}/served\nbatch = 2\ntokens = 8\nseconds = 0.01\n"
        + more
    )
    assert cli.main(["deploy", str(recipe)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"model\.pt2: within \d\.\de[-+]\d\d of the model's outputs", said)
    report = (tmp_path / "served" / "report.txt").read_text()
    assert "whole model" in report and ("exported" in report) == ("compiled" in more)
    outputs = subprocess.run(
        [sys.executable, tmp_path / "served" / "run.py", "w5 w6 w7"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    kind = transformers.AutoModelForCausalLM if name == "llama" else transformers.AutoModel
    model = kind.from_pretrained(source).eval()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([[5, 6, 7]]))[0]
    first = float(re.search(r"-?\d+\.\d+(e-?\d+)?", outputs)[0])
    assert first == pytest.approx(float(expected[0, 0, 0]), abs=0.05 if "int8" in more else 1e-3)


def test_a_program_of_a_kernel_loads_that_kernel(monkeypatch):
    assert _home.importing() == "import sparseloom  # its operators"
    monkeypatch.setattr(_home, "PACKAGE", "_sparseloom_cpu_0.sparseloom")
    monkeypatch.setattr(
        _home, "FOLDER", Path("/kernels/build/torch-stable-abi211-cpu-x86_64-linux/sparseloom")
    )
    assert "kernels.get_local_kernel(Path('/kernels/build'))" in _home.importing()


BAD = {
    "no section": ("[prune]\nmodel = x", r"\[deploy\]"),
    "unknown key": ("[deploy]\nmodel = x\noutput = y\nspeed = 3", "speed unknown"),
    "no model": ("[deploy]\noutput = y", "model missing"),
    "int8": ("[deploy]\nmodel = x\noutput = y\nint8 = maybe", "yes or no"),
    "batch": ("[deploy]\nmodel = x\noutput = y\nbatch = many", "a whole number"),
    "compiled": (
        "[deploy]\nmodel = {folder}/dense\noutput = y\ndevice = meta\ncompiled = yes",
        "device = cpu",
    ),
    "dtype": ("[deploy]\nmodel = x\noutput = y\ndtype = int4", "dtype = float32"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_recipe_says_what_is_wrong(text, words, tmp_path):
    recipe = tmp_path / "deploy.ini"
    if "{folder}" in text:
        sparse_checkpoint("bert", tmp_path)
    recipe.write_text(text.format(folder=tmp_path))
    with pytest.raises(Error, match=words):
        deploy.run(recipe)
