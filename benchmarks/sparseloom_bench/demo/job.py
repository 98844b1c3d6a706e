"""Runs the demo from text to report: trains both models, saves and reloads them, generates and measures."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

import sparseloom
from sparseloom.io.files import write_whole

from . import checkpoint
from .data import DemoError, Text, batch_offsets, load_text, windows
from .generate import generate, printable
from .interrupt import Interrupts
from .measure import Outcome, measure
from .page import report_page
from .presets import repeatable
from .record import write_record
from .train import KINDS, Settings, Trainer, build_model, inference_model

Say = Callable[[str], None]
SAMPLE_BYTES = 240
# Bytes per parameter of both models: the fp32 weights and two Adam moments of a checkpoint, and the weights
# of the model files. SPACE_REPORT is for the report with its curves.
SPACE_PER_PARAMETER = 4 * 3 + 4
SPACE_REPORT = 4 << 20


def run(
    settings: Settings,
    source: Path | None,
    out: Path,
    resume: bool,
    seconds: float,
    say: Say,
    record: Path | None = None,
) -> list[Outcome]:
    """Runs the whole job.

    Files go to `out`: dense.safetensors, sparse.safetensors, results.json, report.html. seconds: time for
    each measurement. record: a folder of results files that this run shall be added to. Raises DemoError or
    sparseloom.Error, and Interrupted after leaving a checkpoint.
    """
    with repeatable(settings.device):
        return _run(settings, source, out, resume, seconds, say, record)


def _run(
    settings: Settings,
    source: Path | None,
    out: Path,
    resume: bool,
    seconds: float,
    say: Say,
    record: Path | None,
) -> list[Outcome]:
    began = time.perf_counter()
    text = load_text(source, settings.context + 1)
    say(str(text))
    torch.set_num_threads(settings.threads)
    trainers = [Trainer(kind, settings) for kind in KINDS]
    parameters = sum(parameter.numel() for trainer in trainers for parameter in trainer.model.parameters())
    with (
        output_folder(out, SPACE_PER_PARAMETER * parameters + SPACE_REPORT, resume),
        Interrupts() as interrupts,
    ):
        if resume:
            checkpoint.read(out, settings, text, trainers)
            say(f"going on from {out / checkpoint.NAME} after step {trainers[0].done} of {settings.steps}")
        train(trainers, text, settings, out, interrupts, say)
        # From here on an interruption loses seconds, not the training.
        checkpoint.write(out, settings, text, trainers)
        files = save_and_reload(trainers, text, settings, out, say)
        say("measuring")
        models = [inference_model(trainer.model, settings) for trainer in trainers]
        outcomes = measure(trainers, models, files, text, settings, seconds)
        example, _ = windows(
            text.train, batch_offsets(text.train, 1, settings.batch, settings.context, 0)[0], settings.context
        )
        layers = sparseloom.report(models[1], example.to(settings.device), seconds=seconds / 4)
        prompt = bytes(text.held_out[: settings.context // 2].tolist())
        samples = {
            k: printable(generate(m, prompt, SAMPLE_BYTES, settings.seed))
            for k, m in zip(KINDS, models, strict=True)
        }
        results = results_of(settings, text, outcomes) | {"layers": layers.to_dict()["layers"]}
        write_whole(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        page = report_page(
            settings, text, outcomes, layers, printable(prompt), samples, time.perf_counter() - began
        )
        write_whole(out / "report.html", page.encode())
        if record is not None:
            path = write_record(record, settings, text, outcomes, layers, time.perf_counter() - began)
            say(f"results: {path.resolve()}")
        (out / checkpoint.NAME).unlink(missing_ok=True)
    say(f"\nthe sparse model goes on after {printable(prompt)!r}:\n{samples['sparse']}\n")
    say(f"{layers}\n")
    return outcomes


def train(
    trainers: list[Trainer], text: Text, settings: Settings, out: Path, interrupts: Interrupts, say: Say
) -> None:
    """Trains all models step by step, in turn on the same batch: all see the same bytes, and a busy machine
    distorts their timings alike."""
    offsets = batch_offsets(text.train, settings.steps, settings.batch, settings.context, settings.seed)
    interrupts.deferring = True
    with progress(settings.steps, trainers[0].done) as advance:
        for step in range(trainers[0].done, settings.steps):
            inputs, targets = windows(text.train, offsets[step], settings.context)
            for trainer in trainers:
                trainer.step(inputs, targets)
            if (step + 1) % settings.validate_every == 0 or step + 1 == settings.steps:
                for trainer in trainers:
                    trainer.validate(text)
            advance(trainers)
            if interrupts.pending is not None:
                path = checkpoint.write(out, settings, text, trainers)
                say(
                    f"interrupted after step {step + 1} of {settings.steps}: the "
                    f"same command with --resume goes on from {path}"
                )
                raise interrupts.pending
    interrupts.deferring = False


def save_and_reload(
    trainers: list[Trainer], text: Text, settings: Settings, out: Path, say: Say
) -> list[Path]:
    """Saves both models, loads each into a new one of another seed, and requires bitwise equal logits."""
    inputs, _ = windows(
        text.held_out, batch_offsets(text.held_out, 1, 2, settings.context, 1)[0], settings.context
    )
    inputs = inputs.to(settings.device)
    files = []
    for trainer in trainers:
        path = out / f"{trainer.kind}.safetensors"
        sparseloom.save(trainer.model, path)
        again = build_model(trainer.kind, Settings(**(asdict(settings) | {"seed": settings.seed + 1})))
        sparseloom.load(path, again)
        with torch.no_grad(), torch.autocast(settings.device, torch.bfloat16, enabled=settings.amp):
            if not torch.equal(again(inputs), trainer.model(inputs)):
                raise DemoError(
                    f"{path} reloaded gives other logits than the model that was saved: please report this"
                )
        trainer.model = again
        files.append(path)
    say("saved and reloaded both models: logits bitwise equal")
    return files


def results_of(settings: Settings, text: Text, outcomes: list[Outcome]) -> dict[str, object]:
    """Returns the table and the curves as plain data."""
    about = {"name": text.name, "sha256": text.sha256, "files": text.files}
    return {"settings": asdict(settings), "text": about, "models": [asdict(outcome) for outcome in outcomes]}


@contextmanager
def output_folder(out: Path, space: int, resume: bool) -> Iterator[None]:
    """Makes sure, before minutes of training, that `out` can be written and has room; removes the folders it
    made when the job fails and left nothing in them."""
    if resume and not out.is_dir():
        raise DemoError(f"--resume: no checkpoint in {out}; start without --resume", 2)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        _remove_empty(made)
        raise DemoError(f"--out {out}: cannot make this folder: {error.strerror}") from error
    if free < space:
        _remove_empty(made)
        raise DemoError(f"--out {out}: {space >> 20} MiB of room needed, {free >> 20} MiB free")
    try:
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        _remove_empty(made)
        raise DemoError(f"--out {out}: cannot write into this folder: {error.strerror}") from error
    try:
        yield
    finally:
        _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # the folder is missing, or something was written into it


@contextmanager
def progress(steps: int, done: int) -> Iterator[Callable[[list[Trainer]], None]]:
    """Shows a bar on a terminal, a line at every validation elsewhere."""
    from tqdm import tqdm

    with tqdm(
        total=steps, initial=done, unit="step", disable=not sys.stderr.isatty(), dynamic_ncols=True
    ) as bar:

        def advance(trainers: list[Trainer]) -> None:
            recent = ", ".join(f"{t.kind} {sum(t.losses[-20:]) / len(t.losses[-20:]):.3f}" for t in trainers)
            bar.set_postfix_str(f"{recent} bits/byte")
            bar.update()
            step = trainers[0].done
            if bar.disable and trainers[0].validation and trainers[0].validation[-1][0] == step:
                latest = ", ".join(f"{t.kind} {t.validation[-1][1]:.3f}" for t in trainers)
                print(
                    f"step {step} of {steps}: validation bits per byte {latest}", file=sys.stderr, flush=True
                )

        yield advance
