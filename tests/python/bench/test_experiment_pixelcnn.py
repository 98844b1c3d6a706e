"""`sparseloom experiment pixelcnn` on a CPU: the likelihood, the networks, and tiny runs."""

import base64
import dataclasses
import io
import json
import math

import pytest
import torch
from test_experiment_vit import image_archive, temporary  # noqa: F401  a fixture

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import mixture, pixelcnn, pixelcnn_outcome, runs
from sparseloom_bench.experiment.pixelcnn_model import ARMS, SMALL, PixelCNN, Size

TINY = pixelcnn.Setting("archive", steps=6, batch=3, size=Size(64, 1, 4))
SEED0 = runs.finals("groups-4", 4e-3)[0]


def every_value(of: int) -> torch.Tensor:
    """Pixels [256, 3, 1, 1] with all values of one colour, the others fixed."""
    x = torch.tensor([40, 255, 0])[:, None, None].repeat(256, 1, 1, 1)
    x[:, of, 0, 0] = torch.arange(256)
    return mixture.scaled(x).double()


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_the_likelihood_is_a_distribution_over_bytes(spread: float) -> None:
    parameters = spread * torch.randn(1, 100, 1, 1, generator=torch.Generator().manual_seed(1))
    blues = 2 ** (-3 * mixture.bits(parameters.expand(256, -1, -1, -1), every_value(2)))
    # the sum over blue is the likelihood of red and green, whatever the parameters of blue are
    other = parameters.clone()
    for part in range(3):
        other[:, 10 + 30 * part + 20 : 10 + 30 * part + 30] = 0.3 * part
    others = 2 ** (-3 * mixture.bits(other.expand(256, -1, -1, -1), every_value(2)))
    assert float(blues.sum()) > 0
    torch.testing.assert_close(blues.sum(), others.sum(), rtol=2e-4, atol=0.0)


def test_all_colours_together_sum_to_one() -> None:
    means, scales = torch.tensor([-0.9, 0.4, 0.95]), torch.tensor([-1.0, -3.0, -2.0])
    parameters = torch.zeros(1, 3, 3, 10)
    parameters[:, 0], parameters[:, 1] = means[:, None], scales[:, None]
    parameters = torch.cat([torch.zeros(1, 10), parameters.flatten(1)], 1)[:, :, None, None]
    # without linear terms the colours are independent: p(r, g0, b0) p(r0, g, b0) p(r0, g0, b) summed
    many = parameters.expand(256, -1, -1, -1)
    sums = [float((2 ** (-3 * mixture.bits(many, every_value(of)))).sum()) for of in range(3)]
    one = float(
        2 ** (-3 * mixture.bits(parameters, mixture.scaled(torch.tensor([[40, 255, 0]]))[..., None, None]))
    )
    assert math.prod(sums) == pytest.approx(one**2, rel=1e-3)


def test_samples_follow_the_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(1, 100, generator=generator)
    draws = mixture.sample(parameters.expand(40_000, -1), torch.rand(40_000, 13, generator=generator))
    assert float(draws.abs().max()) <= 1
    reds = ((draws[:, 0] + 1) * 127.5).round().long()
    share = reds.bincount(minlength=256) / len(reds)
    logits, means, scales, _ = mixture._parts(parameters[..., None, None])
    mean, scale = means[0, 0, :, 0, 0], scales[0, 0, :, 0, 0].exp()
    edges = (torch.arange(255) - 127) / 127.5
    below = torch.sigmoid((edges[:, None] - mean) / scale) @ logits[0, :, 0, 0].softmax(0)
    expected = torch.diff(torch.cat([torch.zeros(1), below, torch.ones(1)]))
    assert float((share - expected).abs().sum()) < 0.09, "256 shares of 40,000 draws stray by .06"
    sure = parameters.clone()
    sure[:, 40:70] = -20.0
    sure[:, 10:40], sure[:, 70:] = 0.2, 0.5
    red, green, blue = mixture.sample(sure, torch.full((1, 13), 0.5))[0].tolist()
    term = math.tanh(0.5)
    assert red == pytest.approx(0.2, abs=0.004) and green == pytest.approx(0.2 + term * red, abs=0.004)
    assert blue == pytest.approx(0.2 + term * (red + green), abs=0.004)


@pytest.mark.parametrize("arm", ARMS)
def test_no_pixel_sees_itself_or_a_later_one(arm: str) -> None:
    torch.manual_seed(0)
    net = PixelCNN(Size(64, 2 if arm == "dense" else 1, 5), ARMS[arm])
    x = torch.randn(1, 3, 5, 5, requires_grad=True)
    y = net(x)
    for pixel in range(25):
        (grad,) = torch.autograd.grad(y[0, :, pixel // 5, pixel % 5].square().sum(), x, retain_graph=True)
        seen = grad.abs().sum((0, 1)).flatten() > 0
        assert not seen[pixel:].any(), pixel
        row, column = divmod(pixel, 5)
        near = [(row, column - 1), (row - 1, column), (row - 1, column + 1), (row - 1, column - 1)]
        assert all(seen[5 * i + j] for i, j in near if i >= 0 and 0 <= j < 5), pixel


def test_the_likelihood_gets_parameters_that_bf16_would_round() -> None:
    torch.manual_seed(0)
    net = PixelCNN(Size(64, 1, 4))
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.fill_(0.999)  # bf16 has 0.9961 and 1
    x = torch.randn(2, 3, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        parameters = net(x)
        assert (
            parameters.dtype == torch.float32 and net.mixed(x.new_zeros(1, 64, 1, 1)).dtype == torch.bfloat16
        )
    torch.testing.assert_close(parameters, torch.full_like(parameters, 0.999), rtol=0, atol=1e-6)
    assert mixture.bits(parameters, x).dtype == torch.float32
    parameters.sum().backward()
    assert net.head.weight.grad is not None and net.mixed.weight.grad.dtype == torch.float32


def test_arms_have_equal_parameters_and_more_layers_by_the_groups() -> None:
    nets = {arm: PixelCNN(SMALL, groups) for arm, groups in ARMS.items()}
    counts = {arm: sum(each.numel() for each in net.parameters()) for arm, net in nets.items()}
    assert max(counts.values()) <= 1.02 * min(counts.values()), counts
    assert {arm: len(net.layers) for arm, net in nets.items()} == {"dense": 3, "groups-2": 6, "groups-4": 12}
    for arm, groups in ARMS.items():
        if groups > 1:
            assert {layer.vertical.density for layer in nets[arm].layers} == {1 / groups}


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "dense"])
def test_the_shuffle_joins_all_channels(arm: str) -> None:
    torch.manual_seed(0)
    net = PixelCNN(Size(64, 1, 2), ARMS[arm])
    v, h = (torch.randn(1, 64, 2, 2, requires_grad=True) for _ in range(2))
    out = v, h
    for layer in net.layers:
        out = layer(*out)
    for channel in range(64):
        for stack, inputs in ((0, v), (1, h)):
            (grad,) = torch.autograd.grad(out[stack][0, channel, 1, 1], inputs, retain_graph=True)
            assert (grad.abs().sum((0, 2, 3)) > 0).all(), (channel, stack)


def test_crops_lie_where_the_numbers_say_and_every_tenth_image_is_for_validation() -> None:
    images = pixelcnn.invented()
    parts = pixelcnn.split(images)
    assert torch.equal(parts.validation, images.x[::10]) and len(parts.train) == 45
    u = torch.tensor([[0.0, 0.999, 0.9], [0.5, 0.0, 0.1]])
    first, flipped = pixelcnn.crops(images.x, torch.tensor([3, 7]), u, 16)
    assert torch.equal(first, images.x[3, :, :16, 16:])
    assert torch.equal(flipped, images.x[7, :, 8:24, :16].flip(-1))


@pytest.mark.parametrize("run", [SEED0, runs.Run("dense", 4e-3, 0, True)], ids=str)
def test_a_run_resumes_to_the_same_bits(run: runs.Run) -> None:
    parts = pixelcnn.split(pixelcnn.invented())

    def training() -> pixelcnn.Training:
        return pixelcnn.Training(run, TINY, parts, graphed=False)

    straight, stopped, resumed = training(), training(), training()
    assert straight.train(lambda: False, pytest.fail)
    saved: list[dict[str, object]] = []
    stopped.train(lambda: True, lambda: saved.append(stopped.state_dict()))
    assert stopped.step == 1
    content = io.BytesIO()
    torch.save(saved[0], content)
    content.seek(0)
    state = torch.load(content, weights_only=True)
    resumed.load_state_dict(state)
    assert resumed.train(lambda: False, pytest.fail)
    first, second = straight.outcome(), resumed.outcome()
    assert first.pop("seconds") != second.pop("seconds") and first == second
    assert first["steps"] == (1 if run.searching else 6) == len(first["losses"])
    assert ("test" in first) != run.searching and (first["samples"] is None) == run.searching
    if not run.searching:
        assert len(base64.b64decode(first["samples"])) == pixelcnn.SAMPLES * 4 * 4 * 3
    other = pixelcnn.Training(runs.finals("dense", 4e-3)[1], TINY, parts, graphed=False)
    with pytest.raises(Error, match="a checkpoint of"):
        other.load_state_dict(state)


def test_the_loss_falls_and_a_checkpoint_of_the_real_size_is_small() -> None:
    parts = pixelcnn.split(pixelcnn.invented())
    setting = pixelcnn.Setting("archive", steps=1, batch=1)
    training = pixelcnn.Training(SEED0, setting, parts, graphed=False)
    training.train(lambda: False, pytest.fail)
    content = io.BytesIO()
    torch.save(training.state_dict(), content)
    assert len(content.getvalue()) <= 15 * 2**20
    longer = pixelcnn.Training(SEED0, dataclasses.replace(TINY, steps=40), parts, graphed=False)
    longer.train(lambda: False, pytest.fail)
    assert longer.losses[-1] < longer.losses[0] - 1


def outcome(arm: str, name: str, bits: float | None, **others: object) -> dict[str, object]:
    searching = name.startswith("rate")
    size = {"width": 8, "depth": 3, "side": 16}
    return {
        "arm": arm, "searching": searching, "validation": bits, "seconds": 50.0, "steps": 100,
        "rate": float(name[4:]) if searching else 4e-3, "seed": 0 if searching else int(name[4:]),
        "parameters": 1000, "device": "cpu", "samples": None,
        "losses": [4.0] * 80 + [2.0] * 20, "setting": {"steps": 100, "batch": 8, "size": size},
    } | ({} if searching else {"test": bits}) | others  # fmt: skip


def write(folder, *found: dict[str, object]) -> None:
    for each in found:
        run = runs.Run(each["arm"], each["rate"], each["seed"], each["searching"])
        (folder / f"{run.name}.json").write_text(json.dumps(each))


def test_the_table_compares_means_with_dense(tmp_path) -> None:
    for arm, bits in (("dense", 3.0), ("groups-2", 2.97), ("groups-4", 3.005)):
        write(tmp_path, *(outcome(arm, f"rate{rate:g}", 3.1 + rate) for rate in pixelcnn.PLAN.rates))
        rate = 4e-3 if arm == "groups-4" else 2e-3  # what the search below chooses
        write(tmp_path, *(outcome(arm, f"seed{seed}", bits + 0.01 * seed, rate=rate) for seed in range(3)))
    write(
        tmp_path, outcome("groups-4", "rate0.002", None), outcome("groups-4", "seed0", 3.005, seconds=300.0)
    )
    write(tmp_path, outcome("groups-4", "seed1", 3.015, losses=[4.0] * 90 + [3.0] * 10, parameters=1030))
    record = pixelcnn_outcome.read(tmp_path)
    text = pixelcnn_outcome.table(record)
    assert "| dense | 3 | 1,000 | 0.002 | 3 | 3.0100 ± 0.0100 | +0.0000 | 0.00 % | 50 |" in text
    assert "| groups-2 | 6 | 1,000 | 0.002 | 3 | 2.9800 ± 0.0100 | -0.0300 |" in text
    assert "| groups-4 | none | 3.1040 | 3.1080 | chose 0.004 |" in text
    assert "| dense | 3.1020 | 3.1040 | 3.1080 | chose 0.002, an end of the range |" in text
    met = {bar.text: (bar.value, bar.met) for bar in pixelcnn_outcome.bars(record)}
    assert met["groups-2 goal: -0.02 bits of dense"] == ("-0.0300", True)
    assert met["groups-4 at most +0.01 bits of dense"] == ("+0.0050", True)
    assert met["groups-4 goal: -0.02 bits of dense"] == ("+0.0050", False)
    assert met["losses fall less than 1 % in the last tenth"] == ("25.00 %", False)
    assert met["a run takes at most 240 s"] == ("300 s", False)
    assert met["3 seeds of each arm"] == ("3", True) and met["parameters at most 2 % apart"][1]
    assert runs.best_rate(pixelcnn.PLAN, runs.read(pixelcnn.PLAN, tmp_path)["groups-4"]) == 4e-3
    write(tmp_path, outcome("dense", "seed2", 3.0, setting={"steps": 7}))
    with pytest.raises(Error, match="outcomes of one setting"):
        pixelcnn_outcome.read(tmp_path)


def test_what_is_missing_is_named(tmp_path) -> None:
    with pytest.raises(Error, match="outcomes of the arm dense"):
        pixelcnn_outcome.read(tmp_path)
    write(tmp_path, *(outcome("dense", f"rate{rate:g}", None) for rate in pixelcnn.PLAN.rates[1:]))
    seeds = runs.left(pixelcnn.PLAN, tmp_path, ["dense"], "seed.*")
    with pytest.raises(Error, match=r"no dense\.rate0\.002; run it"):
        next(seeds)
    write(tmp_path, outcome("dense", "rate0.002", None))
    with pytest.raises(Error, match="whose losses are numbers"):
        list(runs.left(pixelcnn.PLAN, tmp_path, ["dense"]))


@pytest.mark.package("matplotlib")
@pytest.mark.package("jinja2")
def test_a_smoke_run_trains_all_arms_and_writes_the_page(tmp_path, capsys) -> None:
    out = tmp_path / "out"

    def run(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["experiment", "pixelcnn", "--smoke", "--out", str(out), *more])
        assert not ended.value.code
        return capsys.readouterr().out

    assert "dense.rate0.002: step 1 of 2; run the same command again" in run("--minutes", "0")
    assert (out / "dense.rate0.002.checkpoint").exists()
    said = run("--minutes", "60")
    assert "dense.rate0.002: goes on at step 1 of 2" in said and said.count(": validation ") == 18
    assert not list(out.glob("*.checkpoint*")) and "| groups-4 | 4 |" in (out / "pixelcnn.md").read_text()
    html = (out / "pixelcnn.html").read_text()
    assert html.count("data:image/png;base64,") == 3 and html.count("data:image/svg+xml;base64,") == 1
    record = json.loads((out / "pixelcnn.json").read_text())
    assert [len(arm["finals"]) for arm in record.values()] == [3, 3, 3]
    assert all(0 < each["test"] < 12 for arm in record.values() for each in arm["finals"])
    before = (out / "pixelcnn.html").stat().st_mtime_ns
    assert run("--table", str(out)).startswith("# sparseloom experiment pixelcnn")
    assert (out / "pixelcnn.html").stat().st_mtime_ns > before


def test_the_command_reads_an_archive_and_names_what_is_wrong(tmp_path, capsys) -> None:
    path, out = image_archive(tmp_path / "images.tar.xz"), tmp_path / "out"
    words = ["experiment", "pixelcnn", "--out", str(out), "--arm", "groups-2"]
    with pytest.raises(SystemExit):
        main([*words, "--smoke", "--data", str(path), "--only", "rate0.004"])
    assert "groups-2.rate0.004: " in capsys.readouterr().out
    outcome = json.loads((out / "groups-2.rate0.004.json").read_text())
    assert len(outcome["setting"]["archive"]) == 64 and outcome["arm"] == "groups-2"
    for more, expected in (
        (["--smoke", "--data", str(path), "--only", "seed0"], "a search at 3 learning rates"),
        (["--smoke"], "pass another --out"),
        ([], "expected --data"),
        (["--smoke", "--arm", "groups-3"], "dense, groups-2, groups-4"),
        (["--smoke", "--data", str(tmp_path / "none")], "a CIFAR-10 archive"),
    ):
        assert main([*words, *more]) == 2
        assert expected in capsys.readouterr().err
