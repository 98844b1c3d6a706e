"""`sparseloom experiment vit` on a CPU: tiny archives and a tiny network."""

import io
import json
import pickle
import tarfile
import tempfile
from dataclasses import replace

import numpy
import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import augment, checkpoints, cifar, vit, vit_outcome
from sparseloom_bench.experiment.vit_model import Size, ViT

TINY = vit.Setting("archive", epochs=3, batch=10, size=Size(64, 1, 2))
#: Arms that differ from another in a number alone are left out.
ARMS = [
    name
    for name in vit.trials(1)
    if name not in ("rigl-80-row", "rigl-80-sum", "rigl-80-warm", "supermask-90", "rigl-90-grace")
]


def add(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def image_archive(path, side=32, train=2, test=1):
    """Classes a to j, one colour each."""
    image = pytest.importorskip("PIL.Image")
    with tarfile.open(path, "w:xz") as tar:
        for part, count in (("train", train), ("test", test)):
            for number, name in enumerate("jihgfedcba"):
                for each in range(count):
                    content = io.BytesIO()
                    image.new("RGB", (side, side), (20 * number, 0, 100)).save(content, "PNG")
                    add(tar, f"{part}/{name}/{each:04}.png", content.getvalue())
    return path


def pickled_archive(path, batch):
    with tarfile.open(path, "w:gz") as tar:
        for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
            add(tar, f"cifar-10-batches-py/{name}", pickle.dumps(batch, protocol=4))
    return path


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path_factory):
    """A folder of its own for decoded images."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return cifar.Images(x, torch.arange(20) % 10, x[:10], torch.arange(10))


def test_a_tar_of_images_is_read_with_classes_by_name(tmp_path, monkeypatch):
    path = image_archive(tmp_path / "images.tar.xz")
    found = cifar.load(path, whole=False)
    assert found.x.shape == (20, 3, 32, 32) and found.test_y.bincount().tolist() == [1] * 10
    red = found.x[:, 0, 0, 0].float()
    assert torch.equal(red, 180 - 20.0 * found.y), "class a has the largest red"
    (kept,) = cifar._temporary().iterdir()
    assert kept.parent.stat().st_mode & 0o777 == 0o700 and {path} == set(tmp_path.iterdir())
    monkeypatch.setattr(cifar, "_read", pytest.fail)  # the copy is read
    path.rename(tmp_path / "moved.tar.xz")
    again = cifar.load(tmp_path / "moved.tar.xz", whole=False)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_the_published_pickles_are_read_and_no_other_class(tmp_path):
    pixels = numpy.arange(20 * 3072, dtype=numpy.uint32).astype(numpy.uint8).reshape(20, 3072)
    batch = {b"data": pixels, b"labels": list(range(10)) * 2, b"batch_label": b"one"}
    path = pickled_archive(tmp_path / "python.tar.gz", batch)
    found = cifar.load(path, whole=False)
    assert found.x.shape == (100, 3, 32, 32) and found.test_x.shape == (20, 3, 32, 32)
    assert torch.equal(found.test_x.view(20, 3072), torch.from_numpy(pixels))
    for bad in ({b"data": io.BytesIO()}, {b"data": "text"}, [1]):
        with pytest.raises(Error, match="whole tar archive"):
            cifar.load(pickled_archive(tmp_path / "bad.tar.gz", bad), whole=False)


def test_archives_that_are_missing_damaged_or_others_say_so(tmp_path):
    whole = image_archive(tmp_path / "images.tar.xz")
    damaged = tmp_path / "damaged.tar.xz"
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 255
    cases = {
        "none at": tmp_path / "nowhere.tar",
        "cannot be read": damaged,
        "5000 images of each": whole,
        "images of 32 x 32 pixels": image_archive(tmp_path / "large.tar.xz", side=40),
    }
    damaged.write_bytes(content)
    for said, path in cases.items():
        with pytest.raises(Error, match=said):
            cifar.load(path)
    damaged.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(Error, match="cannot be read"):
        cifar.load(damaged, whole=False)
    empty = tmp_path / "empty.tar"
    tarfile.open(empty, "w").close()
    with pytest.raises(Error, match="some images of each of 10 classes in the part train"):
        cifar.load(empty, whole=False)
    kept = list(cifar._temporary().iterdir())
    assert not kept, "nothing of these is kept"
    cifar.load(whole, whole=False)
    with pytest.raises(Error, match="5000 images of each"):
        cifar.load(whole)  # from the copy


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_trains_and_resumes_to_the_same_bits(name, images):

    def training():
        return vit.Training(name, 0, TINY, images, compiled=False)

    straight, stopped, resumed = training(), training(), training()
    assert straight.train(lambda: False, pytest.fail)
    saved = []
    assert not stopped.train(lambda: True, lambda: saved.append(stopped.state_dict()))
    assert stopped.step == 2
    content = io.BytesIO()
    torch.save(saved[0], content)
    content.seek(0)
    resumed.load_state_dict(torch.load(content, weights_only=True))
    assert resumed.train(lambda: False, pytest.fail)
    assert straight.losses == resumed.losses and len(straight.losses) == 3
    expected = straight.net.state_dict()
    for key, value in resumed.net.state_dict().items():
        assert torch.equal(value, expected[key]), key
    first, second = straight.outcome(), resumed.outcome()
    assert first == second
    trial = vit.trials(6)[name]
    kept = 1 if trial.arm.dense else 1 - trial.sparsity / 100
    assert first["density"] == pytest.approx(kept, abs=0.06)


def test_arms_to_try_have_the_densities_and_the_deviation_that_they_say(images):
    setting = replace(TINY, size=Size(192, 1, 3))

    def net(name):
        return vit.Training(name, 0, setting, images, compiled=False).net

    even, by_shape = net("rigl-80"), net("rigl-80-erk")
    shares = [[layer.pattern.density for layer in each.hidden()] for each in (even, by_shape)]
    assert shares[1][0] > shares[0][0] > shares[1][1] and shares[1][1] == pytest.approx(shares[1][2])
    blocks = [sum(layer.pattern.blocks for layer in each.hidden()) for each in (even, by_shape)]
    assert abs(blocks[0] - blocks[1]) <= 2
    plain, scaled = net("supermask-80"), net("supermask-80-scaled")
    for one, other in zip(plain.hidden(), scaled.hidden(), strict=True):
        torch.testing.assert_close(other.weight, one.weight * 0.2**-0.5)
    rows = net("rigl-80-row").hidden()[1].pattern.mask.sum(1)
    assert rows.max() - rows.min() <= 1


def test_a_checkpoint_of_another_setting_is_refused(images):
    state = vit.Training("dense", 0, TINY, images, compiled=False).state_dict()
    state["setting"]["epochs"] = 7
    with pytest.raises(Error, match=r"one of .*'epochs': 3"):
        vit.Training("dense", 0, TINY, images, compiled=False).load_state_dict(state)
    small = vit.Setting("archive", batch=64)
    with pytest.raises(Error, match="64 images for a batch"):
        vit.Training("dense", 0, small, images, compiled=False)


def test_augmentations_move_whole_pixels_and_mix_labels():
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([3, 5])
    still = torch.full((2, augment.NUMBERS), 0.75)  # no flip, no mixup
    still[:, :2], still[:, 3:5] = 0.5, 0.0  # no shift; the square is around the corner
    seen, labels = augment.batch(x, y, still)
    cut = x.clone()
    cut[:, :, :4, :4] = 0
    assert torch.equal(seen, cut)
    assert labels[0].argmax() == 3 and labels.sum().item() == pytest.approx(2)
    moved = still.clone()
    moved[1, :3] = torch.tensor([0.99, 0.2, 0.25])  # four rows down, three columns back, and a flip
    both, _ = augment.batch(x, y, moved)
    assert torch.equal(both[0], cut[0])
    wanted = torch.zeros(3, 32, 32)
    wanted[:, :28, 3:] = x[1, :, 4:, :29]
    wanted = wanted.flip(-1)
    wanted[:, :4, :4] = 0
    assert torch.equal(both[1], wanted)
    mixed = still.clone()
    mixed[0, 5:] = torch.tensor([0.25, 0.3])
    blend, labels = augment.batch(x, y, mixed)
    torch.testing.assert_close(blend, 0.3 * cut + 0.7 * cut.flip(0))
    assert labels[0, 3].item() == pytest.approx(0.3 * 0.91 + 0.7 * 0.01)


def test_the_network_has_the_size_that_the_experiment_names():
    net = ViT()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    sparse = [p.numel() for n, p in net.named_parameters() if p.dim() == 2 and ("fc" in n or "proj" in n)]
    assert len(sparse) == 27 and sum(sparse) == 9 * 9 * 192**2


def outcome(arm, accuracy, seed=0, **setting):
    size = {"width": 1, "depth": 1, "patch": 4}
    return {
        "arm": arm, "seed": seed, "accuracy": accuracy, "density": 0.2,
        "device": "cpu", "setting": {"epochs": 3, "batch": 8, "size": size} | setting,
    }  # fmt: skip


def test_bars_compare_means_with_dense_and_static(tmp_path):
    found = [outcome("dense", 0.85), outcome("dense", 0.87, 1), outcome("static-80", 0.84)]
    found += [outcome("gradual-80", 0.852), outcome("rigl-80", 0.838), outcome("gradual-70", 0.85)]
    found += [outcome("rigl-80-smet", 0.839), outcome("rigl-80-grace", 0.845)]
    for each in found:
        (tmp_path / f"{each['arm']}.seed{each['seed']}.json").write_text(json.dumps(each))
    (tmp_path / "dense.speed.json").write_text('{"arm": "dense", "steps_per_second": 50.0}')
    (tmp_path / "rigl-80.speed.json").write_text('{"arm": "rigl-80", "steps_per_second": 40.0}')
    bars = {bar.text: bar for bar in vit_outcome.bars(vit_outcome.read(tmp_path))}
    assert bars["dense at least 84 %"].value == pytest.approx(86) and bars["dense at least 84 %"].met
    assert bars["best by test accuracy at 80 %: at most 1.2 points below dense"].value == pytest.approx(0.8)
    assert bars["best by test accuracy at 80 %: at least 1.0 points above static"].met
    assert not bars["best by test accuracy at 70 %: at most 0.7 points below dense"].met
    assert bars["rigl-80 not below static"].value == pytest.approx(-0.2)
    new = "best RigL with new rules at 80 %: at least 0.3 points above static"
    assert bars[new].met and bars[new].value == pytest.approx(0.5)
    assert bars["rigl-90 not below static"].value is None and not bars["supermask-80 not below static"].met
    text = vit_outcome.table(vit_outcome.read(tmp_path))
    assert "| dense |  | 20.0 % | 2 | 86.00 ± 1.41 % | +0.00 | 50.0 | 1.00 |" in text
    assert "+2.20 | 40.0 | 0.80 |" in text
    assert "| rigl-90 not below static |  | not run |" in text and "**missed**" in text
    (tmp_path / "spartan-80.seed0.json").write_text(json.dumps(outcome("spartan-80", 0.9, epochs=4)))
    with pytest.raises(Error, match="outcomes of one setting"):
        vit_outcome.read(tmp_path)


def test_nothing_counts_below_the_bar_of_dense(tmp_path):
    record = {"dense": [outcome("dense", 0.8)], "gradual-70": [outcome("gradual-70", 0.8)]}
    assert "does not count" in vit_outcome.table(record)
    with pytest.raises(Error, match="an outcome of the arm dense"):
        vit_outcome.read(tmp_path)


def test_the_command_trains_an_arm_once_and_writes_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpoints, "LARGEST", 60_000)  # the tiny network has several parts then
    path, out = image_archive(tmp_path / "images.tar.xz"), tmp_path / "out"
    words = ["experiment", "vit", "--data", str(path), "--out", str(out), "--device", "cpu", "--smoke"]

    def run(*more):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert not ended.value.code
        return capsys.readouterr().out

    assert "run the same command again" in run("--arm", "dense", "--minutes", "0")
    kept = list(out.glob("dense.seed0.checkpoint*"))
    assert len(kept) > 3 and max(each.stat().st_size for each in kept) <= 60_000
    assert "goes on at step 5" in (said := run("--arm", "dense")) and "dense, seed 0:" in said
    assert not list(out.glob("dense.seed0.checkpoint*")) and "is there already" in run("--arm", "dense")
    run("--arm", "static-80")
    monkeypatch.setattr(vit, "TIMED", 3)
    assert "steps per second" in run("--arm", "static-80", "--speed")
    assert (out / "static-80.speed.json").exists()
    assert "| static-80 | 16 |" in run("--table", str(out)) and (out / "vit.md").exists()
    assert main([*words, "--arm", "rigl"]) == 2
    assert "the arms are dense, static-80," in capsys.readouterr().err
    words[3] = str(tmp_path / "none.tar")
    assert main([*words, "--arm", "static-90"]) == 2
    assert "expected a CIFAR-10 archive" in capsys.readouterr().err
