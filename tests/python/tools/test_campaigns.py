"""The first seeds of each campaign of tests/campaigns; and its record."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from campaigns import calls, files
from campaigns.__main__ import CAMPAIGNS, main, run
from campaigns.file_kinds import KINDS
from campaigns.kept_files import KEPT
from campaigns.record import Record, Run

#: A number and not seconds: a faster machine would try other cases. Of files, each kind once.
SEEDS = {"products": 40, "files": len(KINDS) + len(KEPT), "arguments": 1, "faults": 2, "soak": 1, "gpu": 20}
MARKS = {"gpu": pytest.mark.gpu}


@pytest.mark.parametrize(
    "name",  # make sanitizers runs cpp
    [pytest.param(name, marks=MARKS.get(name, ())) for name in sorted(CAMPAIGNS.keys() - {"cpp"})],
)
def test_a_campaign_finds_nothing(name, monkeypatch):
    monkeypatch.setattr(files, "FILES", 25)
    done = run(name, 0, None, 0, SEEDS[name])
    assert done.cases > 0 and done.findings == []


def test_every_operator_has_a_valid_call_in_the_campaign_of_arguments():
    assert calls.names() == {*calls.calls(), *calls.LEFT_OUT}


def test_a_record_adds_up_over_runs_and_says_where_to_go_on(tmp_path):
    path = tmp_path / "products.json"
    for first, found in ((0, 0), (5, 1)):
        record = Record("products", path)
        assert record.next_seed == first
        done = Run(first, first + 5, 30.0, "a machine", "a commit")
        done.add({"bsr": 10, "csr": 2})
        if found:
            done.report(7, "wrong")
        record.write(done)
    told = json.loads(path.read_text())
    assert (told["cases"], told["minutes"], told["found"]) == (24, 1.0, 1)
    assert told["runs"][1]["findings"] == ["seed 7: wrong"]


def test_a_finding_is_counted_and_the_status_says_so(monkeypatch, capsys):
    from campaigns import products

    def case(seed):
        raise AssertionError(f"wrong at {seed}")

    monkeypatch.setattr(products, "case", case)
    assert main(["products", "--seconds", "0", "--seed", "3", "--no-record"]) == 1
    assert "seed 3: wrong at 3" in capsys.readouterr().out
