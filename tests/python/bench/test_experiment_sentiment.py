"""`sparseloom experiment sentiment` on a CPU: tiny networks and invented reviews."""

import json
import zipfile

import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import checkpoints, reviews
from sparseloom_bench.experiment import sentiment as recipe
from sparseloom_bench.experiment.char_lstm import ARMS, TINY, network
from sparseloom_bench.experiment.reviews import Text


def run_to_end(arguments):
    with pytest.raises(SystemExit) as done:
        main(["experiment", "sentiment", *map(str, arguments)])
    assert not done.value.code


def archive(path, files):
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return path


def test_the_smoke_tells_invented_reviews_apart_and_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    logistic = recipe.logistic
    run_to_end(["--smoke", "--out", tmp_path, "--minutes", 0])
    assert "dense.seed0: not all fits" in capsys.readouterr().out
    first = json.loads((tmp_path / "dense.seed0.fits").read_text())["sets"]["invented"]["fits"]
    assert len(first) == 1 and not (tmp_path / "sentiment.json").exists()
    asked = []
    monkeypatch.setattr(recipe, "logistic", lambda *args: asked.append(args) or logistic(*args))
    run_to_end(["--smoke", "--out", tmp_path, "--only", "dense.*"])
    assert len(asked) == 7  # the first fit is kept
    assert len(json.loads((tmp_path / "sentiment.json").read_text())["runs"]) == 1
    run_to_end(["--smoke", "--out", tmp_path])
    assert len(asked) == 15
    record = json.loads((tmp_path / "sentiment.json").read_text())
    assert [run["arm"] for run in record["runs"].values()] == list(ARMS[:2])
    assert all(run["errors"]["invented"] < 0.3 for run in record["runs"].values())  # chance is half
    assert "| dense | 1 |" in (tmp_path / "sentiment.md").read_text()
    shown = (tmp_path / "sentiment.html").read_text()
    assert "| dense | 1 |" in shown and shown.count("data:image/png;base64,") == 2  # test and validation
    capsys.readouterr()
    run_to_end(["--smoke", "--out", tmp_path])
    assert len(asked) == 15 and json.loads((tmp_path / "sentiment.json").read_text()) == record
    sets = {"invented": reviews.invented()}
    assert list(recipe.record(tmp_path, sets, {"dense.seed0": ""})["runs"]) == ["dense.seed0"]
    assert not recipe.record(tmp_path, sets, {"dense.seed0": "another network"})["runs"]


def test_the_regression_is_scikit_learns():
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 30, dtype=torch.float64, generator=generator)
    y = (x[:, 0] + torch.randn(200, generator=generator) > 0.3).long()
    for strength in (1e-4, 1e-2, 10.0):
        weight, bias = recipe.logistic(x, y, strength)
        theirs = linear_model.LogisticRegression(C=strength, tol=1e-8, max_iter=3000).fit(
            x.numpy(), y.numpy()
        )
        assert weight.tolist() == pytest.approx(theirs.coef_[0].tolist(), abs=1e-3, rel=1e-3)
        assert float(bias) == pytest.approx(float(theirs.intercept_[0]), abs=1e-3)


def test_states_are_those_of_each_text_alone(monkeypatch):
    net = network("barabasi-albert", TINY)
    monkeypatch.setattr(recipe, "STEPS", 3)
    texts = [Text(b"a good film", 1), Text(b"no", 0), Text(b"what?", 1)]
    found = recipe.states(net, texts)
    assert net.head is not None and net.outputs == TINY.ends and net.training
    net.eval()
    net.head, net.outputs = None, net.hidden_size
    for row, text in enumerate(texts):
        with torch.no_grad():
            h, _ = net(torch.tensor(list(text.content))[:, None])
        torch.testing.assert_close(found["mean"][row], h.mean(0)[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["last"][row], h[-1, 0], rtol=1e-4, atol=1e-5)


def test_networks_are_read_as_char_lstm_leaves_them(tmp_path):
    net = network("dense", TINY, seed=3)
    kept = {"arm": "dense", "size": TINY.__dict__, "net": net.state_dict()}
    checkpoints.save(tmp_path / "dense.seed3.model", kept)
    (found,) = recipe.trained(tmp_path, torch.device("cpu"), "dense.*")
    assert found[:2] == ("dense.seed3", "dense") and len(found.weights) == 64
    assert torch.equal(found.net.gates.weight, net.gates.weight)
    with pytest.raises(Error, match="char-lstm first"):
        next(recipe.trained(tmp_path, torch.device("cpu"), "wide.*"))


def test_customers_sentences_have_opinions_of_one_sign(tmp_path):
    lines = [
        "[t]title",
        "phone[+3], work[+2]##fine phone",
        "size[+1][u],price[-2]##small, dear",
        "##no opinion",
    ]
    lines += ["reception[-2]##no signal", "* Annotated"]
    path = archive(tmp_path / "products.zip", {"set/phone.txt": "\n".join(lines), "set/README.txt": "[+n]"})
    assert reviews.products([path]) == [Text(b"fine phone", 1), Text(b"no signal", 0)]
    movies = archive(tmp_path / "movies.zip", {"m/neg/a.txt": "bad", "m/pos/b.txt": "good", "m/README": "c"})
    assert reviews.movies(movies) == [Text(b"bad", 0), Text(b"good", 1)]
    with pytest.raises(Error, match="none in"):
        reviews.movies(path)
    movies.write_bytes(movies.read_bytes()[:40])
    with pytest.raises(Error, match="copy or download it again"):
        reviews.movies(movies)


def test_parts_share_no_text():
    parts = reviews.parted([Text(str(number).encode(), number % 2) for number in range(50)])
    assert [len(part) for part in parts] == [40, 5, 5]
    assert len({text.content for part in parts for text in part}) == 50


def test_the_bar_is_by_the_mean_over_the_sets():
    runs = {
        arm: {"arm": arm, "errors": {"a": a, "b": b}, "validation": {"a": a, "b": b}}
        for arm, a, b in (("dense", 0.1, 0.2), (ARMS[1], 0.11, 0.194))
    }
    found = {"setting": {"sets": {"a": [1, 1, 1], "b": [1, 1, 1]}}, "runs": runs}
    assert recipe.bar(found) == "+0.20 points, met"
    worse = {"errors": {"a": 0.1, "b": 0.1}, "validation": {"a": 0.2, "b": 0.2}}
    runs[ARMS[2]] = {"arm": ARMS[2]} | worse  # which the test likes most, and validation least
    assert recipe.bar(found) == "+0.20 points, met"
    runs[ARMS[1]]["errors"]["a"] = 0.12
    assert recipe.bar(found) == "+0.70 points, missed"
    del runs["dense"]
    assert recipe.bar(found) == "not run"


def test_without_sets_it_says_what_to_pass(tmp_path, capsys):
    assert main(["experiment", "sentiment", "--out", str(tmp_path)]) == 2
    assert "--models" in capsys.readouterr().err
