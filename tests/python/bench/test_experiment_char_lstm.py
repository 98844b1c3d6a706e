"""`sparseloom experiment char-lstm` on a CPU: invented texts and tiny networks."""

import json
import lzma
import re

import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import char_lstm, char_lstm_outcome, checkpoints, reviews, runs
from sparseloom_bench.experiment.char_lstm import ARMS, OP, PLAN, TINY, Setting, Streams, Training

SETTING = Setting("invented", 6, 8, 8, TINY)
LINES = [
    f"{split}\t{label}\t0_1\tcafé\u2028{label}"
    for split in ("train", "val", "test")
    for label in ("neg", "pos")
]


@pytest.fixture(scope="module")
def streams():
    return Streams.of(reviews.invented())


def run_to_end(arguments):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert not done.value.code


def test_the_smoke_writes_the_record_and_the_page_and_is_done(tmp_path, capsys):
    asked = ["experiment", "char-lstm", "--smoke", "--out", str(tmp_path)]
    arms = ["--arm", "dense", "--arm", "barabasi-albert"]
    run_to_end([*asked, *arms])
    record = json.loads((tmp_path / "char-lstm.json").read_text())
    assert list(record["arms"]) == list(ARMS[:2]) and len(record["runs"]) == 12
    dense, sparse = (record["arms"][arm] for arm in ARMS[:2])
    validations = [
        run["validation"] for run in record["runs"] if run["arm"] == "dense" and not run["searching"]
    ]
    assert dense["validation"] == pytest.approx(sum(validations) / 3)
    assert dense["parameters"] >= sparse["parameters"] and dense["units"] < sparse["units"]
    assert len(dense["seeds"]) == 3 and dense["rate"] in PLAN.rates
    page = (tmp_path / "char-lstm.html").read_text()
    assert page.count("data:image/png") == 3 and "http" not in page
    assert len(list(tmp_path.glob("*.model"))) == 6 and not list(tmp_path.glob("*.checkpoint"))
    capsys.readouterr()
    before = (tmp_path / "char-lstm.json").read_text()
    run_to_end([*asked, *arms])  # nothing is left to train
    assert ": validation " not in capsys.readouterr().out
    assert (tmp_path / "char-lstm.json").read_text() == before


def test_a_run_that_goes_on_is_the_run_that_never_stopped(streams, tmp_path):
    run = runs.Run("barabasi-albert", 2e-3, 1, False)
    whole, first, second = (Training(run, SETTING, streams) for _ in range(3))
    assert whole.train(lambda: False, pytest.fail)
    path = tmp_path / "a.checkpoint"
    assert not first.train(lambda: first.step == 3, lambda: checkpoints.save(path, first.state_dict()))
    second.load_state_dict(checkpoints.load(OP, path, "cpu"))
    assert second.step == 3 and second.train(lambda: False, pytest.fail)
    assert second.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(whole.mean, second.mean, strict=True))
    other = Training(run._replace(seed=2), SETTING, streams)
    with pytest.raises(Error, match="pass another --out"):
        other.load_state_dict(second.state_dict())


def test_streams_mix_labels_that_the_table_sorts():
    part = [reviews.Text(bytes([65 + label]) * 9, label) for label in (0, 1) for _ in range(500)]
    streams = Streams.of(reviews.Reviews(part, part, part))
    first = bytes(streams.test[:1000].tolist())
    assert 40 <= first.count(b"A" * 9) <= 60 and len(streams.test) == 10000
    assert torch.equal(streams.test, Streams.of(reviews.Reviews(part, part, part)).test)


def test_arms_have_equal_parameters_at_full_size():
    size = char_lstm.Size()
    sparse = [char_lstm.stored(char_lstm.network(arm, size)) for arm in ARMS[1:]]
    dense = char_lstm._dense_parameters(char_lstm.dense_width(size), size)
    assert max(sparse) <= dense <= 1.04 * min(sparse)


def test_checkpoints_are_parts_of_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "LARGEST", 3000)
    path, state = tmp_path / "a.checkpoint", {"x": torch.arange(2000), "step": 3}
    checkpoints.save(path, {"x": torch.zeros(4000)})
    checkpoints.save(path, state)
    parts = [each for each in tmp_path.iterdir() if each != path]
    assert len(parts) > 2 and max(each.stat().st_size for each in parts) <= 3000
    found = checkpoints.load(OP, path, "cpu")
    assert found["step"] == 3 and torch.equal(found["x"], state["x"])
    parts[0].write_bytes(b"no")
    with pytest.raises(Error, match="whole checkpoint"):
        checkpoints.load(OP, path, "cpu")
    checkpoints.remove(path)
    assert not list(tmp_path.iterdir())


def test_reviews_that_are_missing_damaged_or_others_say_so(tmp_path):
    path = tmp_path / "reviews.tsv.xz"
    path.write_bytes(lzma.compress("\n".join(LINES).encode()))
    assert reviews.imdb(path).val[1] == reviews.Text("café\u2028pos".encode(), 1)
    path.write_bytes(path.read_bytes()[:-20])
    for bad, match in (
        (path, "copy or download it again"),
        (tmp_path / "none.tsv", "none at"),
        (_written(tmp_path / "two.tsv", "train\tneg"), "line 1 of .* with 2 columns"),
        (_written(tmp_path / "half.tsv", "\n".join(LINES[:3])), "none in the part val"),
    ):
        with pytest.raises(Error, match=match):
            reviews.imdb(bad)


def _written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--data"),
        (["--smoke", "--arm", "wide"], "dense, barabasi-albert"),
        (["--data", "x"], "CUDA|none at"),
    ],
)
def test_wrong_arguments_say_what_is_missing(arguments, says, tmp_path, capsys):
    assert main(["experiment", "char-lstm", "--out", str(tmp_path), *arguments]) == 2
    assert re.search(says, capsys.readouterr().err)


def test_the_bars_compare_the_best_small_world_with_dense():
    def arm(bits, improves=0.5, validation=2.0):
        return {"bits": bits, "improves": improves, "validation": validation}

    worlds = {"barabasi-albert": arm(1.9, validation=2.1), "watts-strogatz": arm(1.97)}
    found = {"arms": {"dense": arm(2.0)} | worlds}  # validation chooses, though the test likes another more
    (_, told), (_, still) = char_lstm_outcome.bars(found)
    assert told == "-1.50 %, met, and the goal too" and still == "0.50 %, met"
    found["arms"]["watts-strogatz"] = arm(2.03, 1.5)
    (_, told), (_, still) = char_lstm_outcome.bars(found)
    assert told == "+1.50 %, missed" and still == "1.50 %, missed"
    assert [told for _, told in char_lstm_outcome.bars({"arms": {}})] == ["not run", "not run"]
    assert runs.improves([2.0] * 18 + [1.9] * 2) == pytest.approx(5)
