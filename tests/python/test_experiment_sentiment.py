"""`sparseloom experiment sentiment` on a CPU: tiny networks and invented reviews."""

import json
import zipfile

import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom.experiment import checkpoints, reviews
from sparseloom.experiment import sentiment as recipe
from sparseloom.experiment.char_lstm import ARMS, TINY, network
from sparseloom.experiment.reviews import Text

pytest.importorskip("sklearn")


def run_to_end(arguments):
    with pytest.raises(SystemExit) as done:
        main(["experiment", "sentiment", *map(str, arguments)])
    assert not done.value.code


def archive(path, files):
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return path


def test_the_smoke_tells_invented_reviews_apart_and_keeps_what_is_done(tmp_path, capsys):
    run_to_end(["--smoke", "--out", tmp_path])
    record = json.loads((tmp_path / "sentiment.json").read_text())
    assert [run["arm"] for run in record["runs"].values()] == list(ARMS[:2])
    assert all(run["errors"]["invented"] < 0.3 for run in record["runs"].values())  # chance is half
    assert "| dense | 1 |" in (tmp_path / "sentiment.md").read_text()
    capsys.readouterr()
    run_to_end(["--smoke", "--out", tmp_path])
    assert "seed0:" not in capsys.readouterr().out


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
    (found,) = recipe.trained(tmp_path, torch.device("cpu"))
    assert found[:2] == ("dense.seed3", "dense") and len(found.weights) == 64
    assert torch.equal(found.net.gates.weight, net.gates.weight)
    with pytest.raises(Error, match="char-lstm first"):
        recipe.trained(tmp_path / "none", torch.device("cpu"))


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
        arm: {"arm": arm, "errors": {"a": a, "b": b}}
        for arm, a, b in (("dense", 0.1, 0.2), (ARMS[1], 0.11, 0.194))
    }
    found = {"setting": {"sets": {"a": [1, 1, 1], "b": [1, 1, 1]}}, "runs": runs}
    assert recipe.bar(found) == "+0.20 points, met"
    runs[ARMS[1]]["errors"]["a"] = 0.12
    assert recipe.bar(found) == "+0.70 points, missed"
    del runs["dense"]
    assert recipe.bar(found) == "not run"


def test_without_sets_it_says_what_to_pass(tmp_path, capsys):
    assert main(["experiment", "sentiment", "--out", str(tmp_path)]) == 2
    assert "--models" in capsys.readouterr().err
