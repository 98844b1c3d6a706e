"""`sparseloom experiment lm-prune` and `experiment encoder` at their smallest, on a CPU."""

import json
import zipfile

import pytest
import torch
import transformers
from eight_bits import needs_fast_int8
from typer import Typer
from typer.testing import CliRunner

from sparseloom import Error
from sparseloom_bench.experiment import encoder, lm_prune_cli
from sparseloom_bench.experiment.reviews import sentences


def run(command, *arguments):
    app = Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_a_tiny_gpt_is_pruned_by_each_method_recovers_and_is_not_run_again(tmp_path):
    arguments = ("--device", "cpu", "--smoke", "--out", tmp_path, "--seeds", 1)
    run(lm_prune_cli.lm_prune_command, *arguments, "--only", "2:4/.*", "--recovery", 0.02)
    record = json.loads((tmp_path / "lm-prune.json").read_text())
    runs = {each["method"]: each for each in record["runs"]}
    assert list(runs) == [name for name in lm_prune_cli.METHODS if "scan" not in name]
    assert record["dense"] < runs["sparsegpt"]["bits"] < 8
    assert runs["sparsegpt"]["recovered"]["steps"] > 0
    text = (tmp_path / "lm-prune.md").read_text()
    assert "| 2:4 | magnitude | 1 |" in text and "| 1.000 |" in text
    out = run(lm_prune_cli.lm_prune_command, *arguments, "--only", "2:4/.*")
    assert "seed 0" not in out and json.loads((tmp_path / "lm-prune.json").read_text()) == record
    run(lm_prune_cli.lm_prune_command, *arguments, "--only", r"tiles-60/magnitude.*scan")
    record = json.loads((tmp_path / "lm-prune.json").read_text())
    assert {"target": "tiles-60", "method": "magnitude+scan"}.items() <= record["runs"][-1].items()


def test_another_setting_is_refused(tmp_path):
    arguments = ("--device", "cpu", "--out", tmp_path, "--only", "none", "--smoke")
    run(lm_prune_cli.lm_prune_command, *arguments)
    state = torch.load(tmp_path / "dense.pt", weights_only=True)
    torch.save(state | {"setting": {}}, tmp_path / "dense.pt")
    with pytest.raises(Error, match="of this setting"):
        run(lm_prune_cli.lm_prune_command, *arguments)


@pytest.fixture
def folder(tmp_path):
    """Returns a folder of a tiny BERT with its tokenizer, and an archive of sentences for it."""
    words = [f"w{number}" for number in range(40)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=45, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(tmp_path / "model")
    lines = [
        " ".join(words[(3 * line + each * each) % 40] for each in range(7 + line % 9)) for line in range(60)
    ]
    with zipfile.ZipFile(tmp_path / "sentences.zip", "w") as archive:
        archive.writestr("all.txt", "\n".join(lines))
    return tmp_path


@needs_fast_int8
def test_a_tiny_encoder_is_pruned_recovers_and_is_timed(folder, monkeypatch):
    monkeypatch.setattr(encoder, "TESTED", 20)
    monkeypatch.setattr(encoder, "CALIBRATED", 40)
    monkeypatch.setattr(encoder, "QUERIES", 4)
    monkeypatch.setattr(encoder, "peers", lambda *_: {})
    data = folder / "sentences.zip"
    assert len(sentences([data])) == len(set(sentences([data]))) > 39
    out = folder / "out"
    text = run(
        encoder.encoder_command, "--model", folder / "model", "--data", data, "--out", out,
        "--block", 8, "--minutes", 0.02, "--rounds", 2, "--reconstruct", 2,
    )  # fmt: skip
    record = json.loads((out / "encoder.json").read_text())
    others = ["dense, bf16", "sparse, bf16", "sparse, 8 bits", "sparse, bf16, 8 bits"]
    assert list(record["stages"]) == ["pruned", "recovered", *others]
    assert all(0 < each["cosine"] <= 1 and -1 <= each["ranks"] <= 1 for each in record["stages"].values())
    assert set(record["latency"]) == {"32x64", "1x20"}
    assert "| sparse, 8 bits |" in text
    run(
        encoder.encoder_command, "--model", folder / "model", "--data", data, "--out", folder / "again",
        "--recovered", out / "pruned.safetensors", "--rounds", 1,
    )  # fmt: skip
    again = json.loads((folder / "again" / "encoder.json").read_text())
    assert list(again["stages"]) == ["recovered", *others]
    assert again["stages"]["recovered"] == pytest.approx(
        {key: record["stages"]["recovered"][key] for key in ("cosine", "ranks")}
    )


def test_agreement_of_embeddings_with_themselves_and_with_reversed_ranks():
    same = torch.nn.functional.normalize(torch.randn(300, 8), dim=-1)
    found = encoder.agreement(same, same)
    assert found["cosine"] == pytest.approx(1) and found["ranks"] == pytest.approx(1)
    queries, others = same[: encoder.QUERIES], same[encoder.QUERIES :]
    assert encoder.agreement(torch.cat([-queries, others]), same)["ranks"] == pytest.approx(-1)
