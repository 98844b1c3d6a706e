"""`sparseloom experiment lm` on a CPU: tiny runs, runs that go on, packed texts, and what its page draws."""

import json
import lzma
import zipfile
from dataclasses import replace

import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import (
    corpus,
    curves,
    lm,
    lm_cli,
    lm_outcome,
    lm_speed,
    moves_plots,
    runs,
    side_by_side,
)
from sparseloom_bench.experiment.lm_arms import ARMS, PRESETS, average_share, pattern, shape

TINY = lm.Setting("", steps=40, batch=2, preset="tiny", block=16, tested=4)
#: One arm of each way to change the blocks, and one without.
STATEFUL = ("mlp25", "mlp25-set", "mlp25-rigl", "mlp25-rigl-plain", "gradual60", "tail")


def run_command(arguments):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "lm", *map(str, arguments)])
    assert ended.value.code == 0


def trained(arm, setting=TINY, stop=lambda: False):
    training = lm.Training(runs.Run(arm, 2e-3, 1, False), setting, corpus.invented())
    training.train(stop, lambda: None)
    return training


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A folder of two arms, trained side by side."""
    folder = tmp_path_factory.mktemp("lm")
    options = ["--arms", "dense|mlp25-rigl|all25-time", "--jobs", 2, "--minutes", 5, "--no-checkpoints"]
    run_command(["--smoke", "--speed", "--out", folder, *options])
    return folder


def test_a_smoke_run_measures_trains_side_by_side_and_writes_the_page(smoke, capsys):
    outcomes = [json.loads(path.read_text()) for path in smoke.glob("*.*.json")]
    assert len(outcomes) == 3 * (len(lm.PLAN.rates) + runs.SEEDS)
    times = lm_speed.read(smoke)["arms"]
    assert times["all25-time"]["multiple"] and times["dense"]["multiple"] is None
    assert {tuple(e["shape"]) for e in outcomes if e["arm"] == "all25-time"} == {
        tuple(times["all25-time"]["shape"])
    }
    record = lm_outcome.read(smoke)
    assert list(record) == ["dense", "all25-time", "mlp25-rigl"] and record["dense"].ms
    text, page = (smoke / "lm.md").read_text(), (smoke / "lm.html").read_text()
    assert ARMS["mlp25-rigl"].text in text and page.count("data:image/png") == 4 + 1 + 4
    before = {path: path.stat().st_mtime_ns for path in smoke.glob("*.*.json")}
    run_command(["--smoke", "--out", smoke, "--arms", "dense"])  # nothing is left
    assert before == {path: path.stat().st_mtime_ns for path in smoke.glob("*.*.json")}
    assert "sparseloom experiment lm" in capsys.readouterr().out


def test_a_run_in_another_process_is_the_run_in_this_one(smoke):
    setting = lm.Setting("", **lm_cli.SMOKE)
    run = runs.Run("dense", 2e-3, 2, False)
    alone = lm.Training(run, setting, corpus.invented())
    alone.train(lambda: False, lambda: None)
    beside = json.loads((smoke / "dense.seed2.json").read_text())
    assert beside["rate"] == 2e-3 and beside["losses"] == pytest.approx(alone.losses, rel=1e-4)


def test_no_run_begins_that_would_not_end_in_time(smoke, tmp_path, capsys):
    times = lm_speed.read(smoke)
    times["arms"]["dense"]["ms"] = 1e6
    (tmp_path / "speed.json").write_text(json.dumps(times))
    run_command(
        ["--smoke", "--out", tmp_path, "--arms", "dense", "--jobs", 1, "--minutes", 0.2, "--no-checkpoints"]
    )
    assert "dense.rate0.00012: would not end in time" in capsys.readouterr().out
    assert not list(tmp_path.glob("dense.*"))


@pytest.mark.parametrize("arm", STATEFUL)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(arm, tmp_path):
    whole = trained(arm)
    asked = iter([False] * 24 + [True])
    stopped = trained(arm, stop=lambda: next(asked))
    assert stopped.step == 25
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed = lm.Training(whole.run, TINY, corpus.invented())
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert resumed.train(lambda: False, lambda: None)
    states = whole.net.state_dict(), resumed.net.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))
    expected, got = whole.outcome(), resumed.outcome()
    assert {**expected, "seconds": 0} == {**got, "seconds": 0}


@pytest.mark.parametrize("arm", ["mlp25-set", "mlp25-rigl"])
def test_instruments_count_what_the_masks_say(arm):
    """Beside a second reading of the masks at each step."""
    training = lm.Training(runs.Run(arm, 2e-3, 1, False), TINY, corpus.invented())
    masks, tried, grown = [], [], 0

    def look():
        nonlocal grown
        now = [held.present() for held in training.method.weights]
        if masks:
            grown += sum(int((b & ~a).sum()) for a, b in zip(masks[-1], now, strict=True))
        masks.append(now)
        tried[:] = now if not tried else [a | b for a, b in zip(tried, now, strict=True)]
        return False

    look()
    training.train(look, lambda: None)
    told = training.outcome()["moves"]
    assert told["changes"] and sum(each["grown"] for each in told["changes"]) == grown
    assert sum(told["lives"]) + sum(told["alive"]) == grown
    total = sum(mask.numel() for mask in tried)
    assert told["tried"] == pytest.approx(sum(int(mask.sum()) for mask in tried) / total)
    first = sum(int(mask.sum()) for mask in masks[0])
    assert told["first_dropped"] + told["first_left"] == first
    for change in told["changes"]:
        gradients = change["gradients"]
        if arm == "mlp25-rigl":  # those that grow have the largest of all that are not kept
            assert gradients["grown"] >= gradients["absent"]
    assert {each["age"] for each in told["updates"]} <= {1, 2, 5, 10, 20, 50}


def test_the_first_update_after_growth_is_the_formula():
    training = trained("mlp25-rigl-plain", replace(TINY, steps=200), stop=lambda: True)
    while not training.moves.changes:
        training._step()
    training._step()
    (seen,) = training.moves.steps
    total = count = 0
    for held, new in zip(training.method.weights, training.moves._new, strict=True):
        state = training.optimizer.state[held.parameter]
        step = float(state["step"])
        m, v = state["exp_avg"][new] / (1 - 0.9**step), state["exp_avg_sq"][new] / (1 - 0.95**step)
        total += float((m / (v.sqrt() + 1e-8)).square().sum())
        count += m.numel()
    assert seen["age"] == 1 and seen["grown"] == pytest.approx((total / count) ** 0.5, rel=1e-4)


@pytest.mark.parametrize(
    "arm, times", [("dense", 1), ("dense-rates", 4), ("mlp25-scaled", 4), ("mlp25-time-scaled", 4)]
)
def test_rates_of_the_mlp_are_those_of_the_arm(arm, times):
    training = trained(arm, stop=lambda: True)
    of = {id(each): group["peak"] for group in training.optimizer.param_groups for each in group["params"]}
    assert of.keys() == {id(each) for each in training.net.parameters()}
    for name, parameter in training.net.named_parameters():
        wanted = times if ".up." in name or ".down." in name else 1
        assert of[id(parameter)] == pytest.approx(wanted, rel=0.02), name


@pytest.mark.parametrize("preset, largest", [("small", 60e6), ("base", 60e6)])
def test_arms_have_the_parameters_that_they_claim(preset, largest):
    """Of the linear layers, on average over the steps; those of dense's time are fitted."""
    dense = PRESETS[preset]

    def linear(arm):
        size = shape(arm, dense, 64)
        mlp, attention = (average_share(arm, density) for density in (arm.mlp, arm.attention))
        return size.depth * (3 * size.width * size.hidden * mlp + 4 * size.width**2 * attention)

    whole = linear(ARMS["dense"])
    assert 20e6 <= whole <= largest
    for name, arm in ARMS.items():
        if arm.fits is None:
            assert linear(arm) == pytest.approx(whole, rel=lm_outcome.PARAMETERS), name


@pytest.mark.parametrize("kind", ["balanced", "barabasi-albert", "shuffle", "butterfly"])
@pytest.mark.parametrize("rows, cols", [(5632, 512), (512, 5632), (512, 512)])
@pytest.mark.parametrize("density", [0.25, 0.125])
def test_patterns_have_as_many_blocks_and_no_empty_line(kind, rows, cols, density):
    found = pattern(kind, rows, cols, 64, density, 3)
    assert found.blocks == round(density * found.mask.numel())
    if kind in ("balanced", "shuffle"):
        assert int(found.mask.sum(1).min()) > 0
    assert torch.equal(found.mask, pattern(kind, rows, cols, 64, density, 3).mask)


def folder_of_texts(path, sentences=200):
    path.mkdir()
    rows = ["split\tlabel\tid_rating\ttext"]
    for number in range(120):
        part = ("train", "val", "test")[number % 3]
        rows.append(f"{part}\t{('neg', 'pos')[number // 3 % 2]}\t{number}\treview {number % 100}, a film")
    packed = lzma.compress("\n".join(rows).encode())
    (path / "imdb50k.tsv.xz").write_bytes(packed)
    (path / "tinyshakespeare.txt.xz").write_bytes(lzma.compress(b"A:\nwords, words\n\n" * 4000))
    for name in {name for name, _ in corpus.SOURCES.values() if name.endswith(".zip")}:
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("README.txt", "left out")
            archive.writestr("a.txt", "\n".join(f"{name} line {n}" for n in range(sentences)))
    return path


def test_packed_texts_are_split_by_document_and_read_again(tmp_path):
    folder, packed = folder_of_texts(tmp_path / "texts"), tmp_path / "texts.xz"
    run_command(["--prepare", folder, "--data", packed])
    found = corpus.load(packed)
    train, held = (bytes(each.tolist()).decode() for each in (found.train, found.held))
    corpus.unpack(packed, tmp_path / "plain")
    plain = corpus.load(tmp_path / "plain")
    assert torch.equal(plain.train, found.train) and torch.equal(plain.held, found.held)
    assert found.sources["IMDB's reviews"]["train"] + found.sources["IMDB's reviews"]["held"] == 100
    assert sum(each["held_bytes"] for each in found.sources.values()) == len(found.held) > 0
    assert all(each["train"] for each in found.sources.values()) and "left out" not in train + held
    both = set(train.splitlines()) & set(held.splitlines())
    assert not {line for line in both if line.startswith(("review", "subjectivity"))}
    (folder / "subjectivity.zip").unlink()
    with pytest.raises(Error, match=r"subjectivity.zip in the folder of texts"):
        corpus.prepare(folder, packed)
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(Error, match="a file of packed texts"):
        corpus.load(packed)


def test_the_best_of_the_arms_that_prune_with_as_many_parameters_is_compared():
    def row(arm, bits, ms=1.0):
        size = shape(ARMS[arm], PRESETS["small"], 64)
        density = ARMS[arm].mlp, ARMS[arm].attention
        mlp, attention = 3 * size.width * size.hidden * density[0], 4 * size.width**2 * density[1]
        found = {"shape": list(size), "parameters": size.depth * (mlp + attention) + 256 * size.width}
        finals = [
            found | {"test": bits + 0.01 * seed, "validation": bits, "seconds": 400.0} for seed in (0, 1, 2)
        ]
        return lm_outcome.Row([], finals, ms)

    bits = {"dense": 2.0, "all25": 1.99, "all25-time": 1.98, "gradual60": 2.01, "gradual60-all": 1.97}
    record = {arm: row(arm, each, 2.0 if arm == "all25" else 1.0) for arm, each in bits.items()}
    bars = {bar.text: bar for bar in lm_outcome.bars(record)}
    assert bars["gradual60-all 0.01 bits below dense (goal)"].met
    assert bars["best arm at dense's time a step: 0.5 % below dense (must)"].value.startswith("gradual60-all")
    assert bars["3 seeds of each arm"].met and bars["a run takes 360 s at least, beside others"].met
    del record["gradual60-all"]
    bars = {bar.text: bar for bar in lm_outcome.bars(record)}
    assert not bars["gradual60 not above dense (must)"].met
    assert bars["best arm at dense's time a step: 0.5 % below dense (must)"].value.startswith("all25-time")
    assert bars["best arm at dense's parameters: 1.0 % below dense (must)"].value.startswith("all25:")


def test_the_pareto_front_joins_what_nothing_beats():
    assert curves.front([(3, 1), (1, 3), (2, 4), (2, 2), (4, 1)]) == [(1, 3), (2, 2), (3, 1)]


def test_lives_that_have_not_ended_count_while_they_were_seen():
    """Ten blocks: two end after one change, four were seen for one, one of the other four ends after two."""
    ages, shares = moves_plots.survival({"lives": [2, 1], "alive": [4, 3]})
    assert ages == [0, 1, 2] and shares == pytest.approx([1, 0.8, 0.8 * 0.75])


@pytest.mark.parametrize(
    "options, words",
    [({"arms": "none"}, "some of the arms"), ({}, "--data"), ({"prepare": "x"}, "--data beside --prepare")],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(Error, match=words):
        lm_cli.lm_command(**options)


def _fails(setting):
    raise_on = {"mlp25.rate0.002"}

    def made(run):
        if run.name in raise_on:
            raise torch.OutOfMemoryError("no memory")
        return lm.Training(run, setting, corpus.invented())

    return made


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path):
    setting, said = lm.Setting("", **lm_cli.SMOKE), []
    tmp_path.mkdir(exist_ok=True)
    work = side_by_side.Work(lm.PLAN, tmp_path, _fails, (setting,), "cpu", keep=False)
    assert not side_by_side.go(work, ["mlp25"], "rate.*", 1, 5, said.append)
    assert said == ["mlp25.rate0.002: OutOfMemoryError: no memory"]
    others = {"mlp25.rate0.00012.json", "mlp25.rate0.0003.json", "mlp25.rate0.0008.json"}
    assert {path.name for path in tmp_path.glob("*.json")} == others


def test_an_arm_that_cannot_be_timed_is_told_and_the_others_are(tmp_path, monkeypatch):
    def timed(arm, *rest):
        if arm == "all25":
            raise torch.OutOfMemoryError("no memory")
        return {"ms": 2.0, "multiple": None, "shape": [], "parameters": 1}

    monkeypatch.setattr(lm_speed, "_timed", timed)
    said, setting = [], lm.Setting("", **lm_cli.SMOKE)
    lm_speed.measure(tmp_path, ["all25", "mlp25"], setting, corpus.invented(), False, said.append)
    assert "all25: OutOfMemoryError: no memory" in said
    assert lm_speed.milliseconds(tmp_path) == {"dense": 2.0, "mlp25": 2.0}


def test_runs_that_are_expected_to_be_faster_beside_others_begin(tmp_path):
    """Ten seconds alone, of eight jobs: eighty would not end in fifty, twenty would."""
    setting, said = lm.Setting("", **lm_cli.SMOKE), []
    work = side_by_side.Work(lm.PLAN, tmp_path, _fails, (setting,), "cpu", keep=False)
    arguments = ["dense"], "rate0.0003", 8, 50 / 60, said.append, lambda run: 10.0
    assert not side_by_side.go(work, *arguments)
    assert said == ["dense.rate0.0003: would not end in time"]
    assert side_by_side.go(work, *arguments, 2.0)
    assert said[1].endswith("times as long as alone, among 1")
    assert (tmp_path / "dense.rate0.0003.json").exists()
