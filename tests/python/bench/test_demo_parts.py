"""The demo's parts: text and batches, the model and its cache, the schedule, the experiment's summary, the
drawing."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sparseloom.nn import BlockSparseLinear
from sparseloom_bench.demo import data, generate, quality, train
from sparseloom_bench.demo.data import DemoError
from sparseloom_bench.demo.interrupt import Interrupted, Interrupts
from sparseloom_bench.demo.measure import Outcome, rows
from sparseloom_bench.demo.page import curves

SETTINGS = train.Settings(steps=4, width=64, layers=2, context=32, block=16, threads=torch.get_num_threads())


def test_the_default_text_is_source_without_tests_and_packages() -> None:
    paths = [str(path) for path in data._source_files(Path(data.sysconfig.get_path("stdlib")))]
    assert any(path.endswith("argparse.py") for path in paths)
    for path in paths:
        assert (
            path.endswith(".py")
            and "site-packages" not in path
            and "/test/" not in path
            and "/tests/" not in path
        )
    text = data.load_text(None, 1000)
    assert text.split == "file" and text.train.numel() > 4_000_000
    assert min(text.validation.numel(), text.held_out.numel()) > 100_000


def test_a_file_stays_in_its_part_when_others_come(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"{i}.txt").write_bytes(bytes([i % 255 + 1]) * 50)
    before = data.load_text(tmp_path, 50)
    assert before.split == "file"
    (tmp_path / "zzz.txt").write_bytes(b"\xff" * 50)
    after = data.load_text(tmp_path, 50)
    for part in ("train", "validation", "held_out"):
        old, new = (set(getattr(text, part).tolist()) for text in (before, after))
        assert new - old <= {255} and old <= new
    assert before.sha256 != after.sha256


def test_one_file_is_cut_by_position_and_binaries_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 101)) * 10)
    (tmp_path / "b.bin").write_bytes(b"\0" * 100)
    (tmp_path / ".hidden").write_bytes(b"x" * 100)
    text = data.load_text(tmp_path, 20)
    assert text.files == 1 and text.split == "position"
    whole = torch.cat((text.train, text.validation, text.held_out))
    assert bytes(whole.tolist()) == bytes(range(1, 101)) * 10
    with pytest.raises(DemoError, match="too short"):
        data.load_text(tmp_path, 100)


def test_windows_hold_the_next_byte_and_stay_inside() -> None:
    part = torch.arange(50, dtype=torch.uint8)
    offsets = data.batch_offsets(part, 1000, 4, 10, seed=3)
    assert offsets.min() == 0 and offsets.max() == 39
    assert torch.equal(offsets, data.batch_offsets(part, 1000, 4, 10, seed=3))
    inputs, targets = data.windows(part, offsets[0], 10)
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 0], offsets[0])
    even = data.even_offsets(part, 100, 10)
    assert even.tolist() == [0, 13, 26, 39]
    assert data.even_offsets(part[:11], 5, 10).tolist() == [0]


@pytest.mark.parametrize("kind", train.KINDS)
def test_the_cache_changes_nothing(kind: str) -> None:
    model = train.build_model(kind, SETTINGS)
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        tokens = torch.randint(256, (2, 20), generator=torch.Generator().manual_seed(1))
        whole = model(tokens)
        logits, cache = model.extend(tokens[:, :12], None)
        pieces = [logits]
        for i in range(12, 20):
            logits, cache = model.extend(tokens[:, i : i + 1], cache)
            pieces.append(logits)
    assert cache.seen == 20
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_no_byte_sees_a_later_one() -> None:
    model = train.build_model("sparse", SETTINGS)
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        tokens = torch.randint(256, (1, 16), generator=torch.Generator().manual_seed(1))
        changed = tokens.clone()
        changed[0, 9] = (changed[0, 9] + 1) % 256
        a, b = model(tokens), model(changed)
    assert torch.equal(a[:, :9], b[:, :9]) and not torch.equal(a[:, 9], b[:, 9])


def test_the_twins_differ_in_the_layers_alone() -> None:
    dense, sparse = (train.build_model(kind, SETTINGS) for kind in train.KINDS)
    layers = [module for module in sparse.modules() if isinstance(module, BlockSparseLinear)]
    assert len(layers) == 4 * SETTINGS.layers
    for layer in layers:
        assert layer.density == 0.25 and layer.pattern.mask.sum(0).min() > 0  # no input feature is dropped
        # Both start from variance 1 / (3 fan-in), the writers to the residual stream 2 x layers lower.
        depth = 2 * SETTINGS.layers if layer.out_features == SETTINGS.width else 1
        assert layer.values.detach().var().item() == pytest.approx(
            1 / (3 * train.fan_in(layer) * depth), rel=0.1
        )
    kept = {
        name: tuple(p.shape)
        for name, p in dense.named_parameters()
        if not name.endswith(("qkv.weight", "out.weight", "up.weight", "down.weight"))
    }
    assert kept.items() <= {name: tuple(p.shape) for name, p in sparse.named_parameters()}.items()


def test_sparser_layers_take_larger_steps() -> None:
    rates = {}
    for kind in train.KINDS:
        model = train.build_model(kind, SETTINGS)
        optimizer = train.make_optimizer(model, 1e-3)
        assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
        weight = next(iter(model.layers[0].up.parameters()))
        rates[kind] = next(group["lr"] for group in optimizer.param_groups if group["params"][0] is weight)
    assert rates == {"dense": pytest.approx(2e-3), "sparse": pytest.approx(4e-3)}


def test_the_schedule_rises_and_ends_near_zero() -> None:
    shares = [train.schedule(step, 100) for step in range(100)]
    assert shares[:3] == pytest.approx([0.05, 0.10, 0.15]) and max(shares) == shares[19] == 1
    assert all(a > b for a, b in pairwise(shares[20:])) and shares[-1] < 0.01
    assert train.schedule(0, 1) == 1


def test_a_diverging_run_is_an_error() -> None:
    trainer = train.Trainer("dense", SETTINGS)
    with torch.no_grad():
        trainer.model.head.weight.fill_(math.inf)
    tokens = torch.ones(1, 8, dtype=torch.int64)
    with pytest.raises(DemoError, match="diverged"):
        trainer.step(tokens, tokens)


def test_an_untrained_model_scores_eight_bits() -> None:
    model = train.build_model("dense", SETTINGS)  # its head starts at zero: every byte is equally likely
    part = torch.randint(256, (5000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert train.score(model, part, 1000) == pytest.approx(8, abs=1e-5)


def test_generation_follows_the_seed_past_the_context() -> None:
    model = train.build_model("sparse", SETTINGS)
    texts = [generate.generate(model, b"def ", 3 * SETTINGS.context, seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) == 3 * SETTINGS.context
    assert len(generate.generate(model, b"x" * 100, 3)) == 3


def test_what_is_printed_cannot_steer_a_terminal() -> None:
    assert generate.printable(b"a\tb\n\x1b[31mc\xff\r\x07") == "a   b\n\ufffd[31mc\ufffd\ufffd\ufffd"


def test_a_signal_waits_for_the_step_and_a_second_does_not() -> None:
    interrupts = Interrupts()
    interrupts.deferring = True
    interrupts._take(2, None)
    assert interrupts.pending is not None and interrupts.pending.code == 130
    with pytest.raises(Interrupted):
        interrupts._take(15, None)
    with pytest.raises(Interrupted) as stopped:
        Interrupts()._take(15, None)
    assert stopped.value.code == 143


def test_the_summary_picks_rates_on_validation_and_reports_held_out() -> None:
    def record(model: str, lr: float, seed: int, validation: float, held_out: float) -> quality.Record:
        return {
            "model": model,
            "lr": lr,
            "seed": seed,
            "validation_bits_per_byte": validation,
            "held_out_bits_per_byte": held_out,
        }

    records = [record("dense", 1e-3, seed, 2.0 + seed, 4.0) for seed in range(3)]
    records += [record("dense", 2e-3, seed, 2.5 + seed, 1.0) for seed in range(3)]
    records += [record("sparse", 1e-3, seed, 9.0, 9.0) for seed in range(3)]
    records += [record("sparse", 2e-3, seed, 3.0, held_out) for seed, held_out in enumerate((3.0, 4.1, 99.0))]
    dense, sparse = quality.summarise(records)
    assert (dense["lr"], dense["held_out_bits_per_byte"], dense["seeds"]) == (1e-3, 4.0, 3)
    assert (sparse["lr"], sparse["held_out_bits_per_byte"]) == (2e-3, 4.1)
    assert sparse["excess_percent"] == pytest.approx(2.5)


def test_the_table_and_the_curves() -> None:
    dense = Outcome("dense", 2.0, 1000, 800, 4000, 100.0, 200.0, 50.0, [8.0, 4.0, 2.0], [(1, 5.0), (3, 2.5)])
    sparse = Outcome(
        "sparse", 2.02, 400, 200, 1600, 150.0, 400.0, 40.0, [8.0, 4.1, 2.1], [(1, 5.1), (3, 2.6)]
    )
    ratios = [ratio for *_, ratio in rows([dense, sparse])]
    assert ratios == ["+1.0 %", "-60.0 %", "-75.0 %", "-60.0 %", "1.50x", "2.00x", "0.80x"]
    drawing = curves([dense, sparse], 3)
    assert drawing.count("<polyline") == 2 and drawing.count("<circle") == 4 and "nan" not in drawing
    assert curves([dense, dense], 3).startswith("<svg")
