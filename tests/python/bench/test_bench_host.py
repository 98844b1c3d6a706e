"""bench host with a few calls: what its record and its table say."""

import json

import pytest

from sparseloom import cli
from sparseloom_bench.bench import host
from sparseloom_bench.bench.gpu import host as gpu_host


def test_every_kind_of_layer_is_recorded_beside_its_dense_twin(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_host, "BATCH", 1)
    monkeypatch.setattr(host, "ROUNDS", 1)
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "host", "--calls", "1", "--results", str(tmp_path)])
    assert not end.value.code
    (path,) = tmp_path.glob("*/host.json")
    records = json.loads(path.read_text())["records"]
    assert [each["kind"] for each in records] == list(host.KINDS)
    text = capsys.readouterr().out
    for each in records:
        for name in ("without_gradients", "with_gradients"):
            assert min(each[name]["us"], each[name]["dense_us"], *each[name]["over"].values()) > 0
        assert f"| {each['kind']} | {each['without_gradients']['us']} / " in text
