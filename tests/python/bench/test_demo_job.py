"""`sparseloom demo` as a user runs it: results, repeatability, interruption and resumption, and what goes
wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparseloom import cli
from sparseloom_bench.demo import checkpoint, job, train
from sparseloom_bench.demo import cli as demo_cli

STEPS = 12
TINY = ["--quick", "--steps", str(STEPS), "--width", "64", "--layers", "1", "--block", "16", "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def short_measurements() -> Iterator[None]:
    """Timings are not what is tested here; torch's threads are left as they were."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_cli, "MEASURE_SECONDS_QUICK", 0.01)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made text of 60 kB: sentences of a few words."""
    words = random.Random(0)
    lines = (
        " ".join(words.choices(["thread", "loom", "weave", "warp", "weft", "cloth"], k=6)) + ".\n"
        for _ in range(1700)
    )
    path = tmp_path_factory.mktemp("text") / "made.txt"
    path.write_text("".join(lines))
    return path


def demo(*arguments: object) -> int:
    """Runs the command in this process; returns its exit status."""
    try:
        return cli.main(["demo", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def finished(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one uninterrupted run."""
    out = tmp_path_factory.mktemp("finished") / "not" / "there" / "yet"
    assert demo(*TINY, "--text", text, "--out", out) == 0
    return out


def test_leaves_models_results_and_a_self_contained_report(finished: Path) -> None:
    assert sorted(path.name for path in finished.iterdir()) == [
        "dense.safetensors",
        "report.html",
        "results.json",
        "sparse.safetensors",
    ]
    page = (finished / "report.html").read_text()
    for part in (
        "<polyline",
        "block-sparse",
        "BlockSparseLinear",
        "held-out bits per byte",
        "Where this ran",
    ):
        assert part in page
    for fetched in ("<script", "<link", "src=", "@import", "url("):
        assert fetched not in page
    results = json.loads((finished / "results.json").read_text())
    dense, sparse = results["models"]
    assert len(dense["losses"]) == len(sparse["losses"]) == STEPS
    assert sparse["losses"][-1] < sparse["losses"][0]
    assert sparse["layer_parameters"] == dense["layer_parameters"] // 4
    assert sparse["file_bytes"] == (finished / "sparse.safetensors").stat().st_size < dense["file_bytes"]
    assert all(model[key] > 0 for model in (dense, sparse) for key in ("training", "scoring", "generation"))
    assert [layer["density"] for layer in results["layers"] if layer["kind"] == "BlockSparseLinear"] == [
        0.25
    ] * 4


def test_the_same_seed_gives_the_same_bits(finished: Path, text: Path, tmp_path: Path) -> None:
    assert demo(*TINY, "--text", text, "--out", tmp_path) == 0
    assert_same_outcome(finished, tmp_path)
    assert demo(*TINY, "--text", text, "--out", tmp_path, "--seed", 1) == 0
    assert (tmp_path / "sparse.safetensors").read_bytes() != (finished / "sparse.safetensors").read_bytes()


def assert_same_outcome(one: Path, other: Path) -> None:
    """Weights and curves, bit for bit."""
    for kind in train.KINDS:
        a, b = (safetensors.torch.load_file(out / f"{kind}.safetensors") for out in (one, other))
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    curves = [
        [
            (m["losses"], m["validation"], m["held_out"])
            for m in json.loads((o / "results.json").read_text())["models"]
        ]
        for o in (one, other)
    ]
    assert curves[0] == curves[1]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """Sends the signal while the sparse model takes that step."""
    real = train.Trainer.step

    def stepping(self: train.Trainer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if self.done == step and self.kind == "sparse":
            os.kill(os.getpid(), number)
        real(self, inputs, targets)

    monkeypatch.setattr(train.Trainer, "step", stepping)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_resumes_bitwise(
    finished: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
) -> None:
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6, number)
        assert demo(*TINY, "--text", text, "--out", tmp_path) == status
    assert "interrupted after step 7 of 12" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
    assert signal.getsignal(number) is before
    assert demo(*TINY, "--text", text, "--out", tmp_path, "--resume") == 0
    assert_same_outcome(finished, tmp_path)
    assert not (tmp_path / checkpoint.NAME).exists()


def test_an_interruption_while_measuring_keeps_the_training(
    finished: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(job, "measure", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert demo(*TINY, "--text", text, "--out", tmp_path) == 130
    assert not (tmp_path / "report.html").exists()
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "step", None)  # nothing is left to train
        assert demo(*TINY, "--text", text, "--out", tmp_path, "--resume") == 0
    assert_same_outcome(finished, tmp_path)


@pytest.fixture
def stopped(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output folder with the checkpoint of an interrupted run."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2, signal.SIGINT)
        assert demo(*TINY, "--text", text, "--out", tmp_path) == 130
    return tmp_path


def assert_refused(capsys: pytest.CaptureFixture[str], status: int, expected: int, *words: str) -> None:
    """One line on stderr that says what is wrong, no traceback."""
    error = capsys.readouterr().err
    assert status == expected, error
    lines = [line for line in error.splitlines() if not line.startswith("step ")]
    assert len(lines) == 1 and lines[0].startswith("sparseloom demo: "), error
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "1"], ["--seed 0", "here it is 1"]),
        (["--density", "0.5"], ["--density 0.25", "0.5"]),
        (["--lr", "0.01"], ["--lr", "0.01"]),
        (["--steps", "13"], ["--steps 12"]),
    ],
)
def test_resume_refuses_changed_arguments(
    stopped: Path, text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    kept = (stopped / checkpoint.NAME).read_bytes()
    capsys.readouterr()
    assert_refused(capsys, demo(*TINY, "--text", text, "--out", stopped, "--resume", *arguments), 2, *words)
    assert (stopped / checkpoint.NAME).read_bytes() == kept


def test_resume_refuses_another_text(stopped: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = stopped / "other.txt"
    other.write_bytes(text.read_bytes() + b"one more line\n")
    capsys.readouterr()
    assert_refused(capsys, demo(*TINY, "--text", other, "--out", stopped, "--resume"), 2, "sha256")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "not safetensors"])
def test_resume_refuses_a_bad_checkpoint(
    stopped: Path, text: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = stopped / checkpoint.NAME
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        del data[-100:]
    elif damage == "flipped":
        data[-50] ^= 1
    elif damage == "empty":
        data.clear()
    elif damage == "foreign":
        data = bytearray(safetensors.torch.save({"x": torch.zeros(3)}))
    else:
        data[:] = b"#!/bin/sh\necho not a checkpoint\n"
    path.write_bytes(data)
    capsys.readouterr()
    assert_refused(
        capsys, demo(*TINY, "--text", text, "--out", stopped, "--resume"), 1, "--resume", checkpoint.NAME
    )


def test_resume_without_a_checkpoint(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, demo(*TINY, "--text", text, "--out", tmp_path, "--resume"), 2, "no checkpoint")
    assert_refused(
        capsys, demo(*TINY, "--text", text, "--out", tmp_path / "none", "--resume"), 2, "no checkpoint"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--density", "0"], "--density"),
        (["--density", "1.5"], "--density"),
        (["--density", "nan"], "--density"),
        (["--density", "0.001"], "--density"),
        (["--block", "24"], "--block"),
        (["--width", "20"], "--width"),
        (["--lr", "0"], "--lr"),
        (["--lr", "nan"], "--lr"),
        (["--seeds", "2", "--resume"], "--seeds"),
        (["--text", "no/such/file"], "no/such/file"),
    ],
)
def test_bad_arguments(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    out = tmp_path / "out"
    status = demo(*TINY, "--text", text, "--out", out, *arguments)
    assert_refused(capsys, status, status, word)
    assert status in (1, 2) and not out.exists()


@pytest.mark.parametrize(
    "arguments", [["--steps", "0"], ["--seed", "-1"], ["--threads", "0"], ["--width", "x"], ["--nonsense"]]
)
def test_arguments_that_typer_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert demo("--out", tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert arguments[0] in error and "Traceback" not in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"too short"])
def test_a_text_that_is_no_use(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "text").write_bytes(content)
    status = demo(*TINY, "--text", tmp_path / "text", "--out", tmp_path / "out")
    assert_refused(capsys, status, 1, "short" if content else "empty")
    assert not (tmp_path / "out").exists()


def test_an_unreadable_text(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bytes:  # root may read anything, so permissions alone would not do
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert_refused(
        capsys, demo(*TINY, "--text", text, "--out", tmp_path / "out"), 1, "Permission denied", text.name
    )


def test_a_folder_that_cannot_be_made(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(
        capsys,
        demo(*TINY, "--text", text, "--out", text / "below" / "a" / "file"),
        1,
        "--out",
        "Not a directory",
    )


def test_a_folder_without_room(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(job.shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 0))
    assert_refused(capsys, demo(*TINY, "--text", text, "--out", tmp_path / "a" / "b"), 1, "room")
    assert not (tmp_path / "a").exists()


def test_a_disk_that_fills_up_during_the_run(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "out"
    assert_refused(capsys, demo(*TINY, "--text", text, "--out", out), 1, "No space left")
    assert not out.exists()


def test_the_experiment_writes_medians_over_seeds(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--text",
        text,
        "--out",
        tmp_path / "out",
        "--results",
        tmp_path / "results",
        "--steps",
        3,
        "--seeds",
        2,
    ]
    assert demo(*TINY, *arguments) == 0
    (path,) = (tmp_path / "results").glob("*/demo_quality.json")
    assert str(path.resolve()) in capsys.readouterr().out.replace("\n", "")
    results = json.loads(path.read_text())
    assert {"device", "commit", "date", "versions", "mode", "records", "summary", "text"} <= results.keys()
    runs = {(record["model"], record["seed"], record["lr"]) for record in results["records"]}
    assert len(results["records"]) == len(runs) == 2 * 2 * len(train.LEARNING_RATES)
    assert [entry["model"] for entry in results["summary"]] == ["dense", "sparse"]
    assert "excess_percent" in results["summary"][1] and not (tmp_path / "out").exists()


def test_the_experiments_scores_do_not_depend_on_jobs(text: Path, tmp_path: Path) -> None:
    def scores(jobs: int) -> list[float]:
        results = tmp_path / str(jobs)
        arguments = [
            "--text",
            text,
            "--results",
            results,
            "--steps",
            3,
            "--seeds",
            1,
            "--threads",
            1,
            "--jobs",
            jobs,
        ]
        assert demo(*TINY, *arguments) == 0
        (path,) = results.glob("*/demo_quality.json")
        return [record["held_out_bits_per_byte"] for record in json.loads(path.read_text())["records"]]

    assert scores(1) == scores(2)
