"""A printed report: totals first, equal layers together, untouched ones counted, never wider than 100
columns."""

import pytest
import torch
from torch import nn

from sparseloom import BlockSparse, pattern, prune_
from sparseloom import report as made_report
from sparseloom.report import LayerReport, ModelReport, Report, Spread, Totals
from sparseloom.report.groups import grouped
from sparseloom.report.text import WIDTH, elided

KERNELS = {"forward": "sm90_wgmma", "dx": "sm90_wgmma", "dw": "sm90_wgmma_narrow"}


def layer(name, us=50.0, *, dense=100.0, density=0.25, shape=(3072, 768), note="", **others):
    """A block-sparse layer that was measured: forward in ``us``, backward in three times as many."""
    times, dense_times = {"forward": us, "backward": 3 * us}, {"forward": dense, "backward": 3 * dense}
    ratio = Spread(dense / us, 0.9 * dense / us, 1.1 * dense / us)
    sizes = {"bytes": 1000, "dense_bytes": 4000, "block": (64, 64), "density": density, "tokens": 12608}
    measured = {"times": times, "dense_times": dense_times, "ratios": {"forward": ratio, "backward": ratio}}
    given = sizes | {"dtype": "bfloat16", "kernels": KERNELS} | measured | {"note": note} | others
    return LayerReport(name, "BlockSparseLinear", shape, **given)


def dense(name):
    return LayerReport(name, "LayerNorm", (768,), 3072, 3072, note="dense, not touched")


def report(*layers, **others):
    model = layer("model", 1e6, dense=1.5e6)
    own = ModelReport(64, model.times, model.dense_times, ratios=model.ratios)
    given = {"totals": Totals(24_000_000, 86_000_000, 96_000_000, 344_000_000, 0.98), "model": own} | others
    return Report(list(layers), 2, "NVIDIA H200", **given)


def test_what_was_found_and_the_whole_model_come_first():
    lines = str(report(layer("up"))).splitlines()
    assert lines[0] == (
        "A forward call takes 1 s, 1.50 times as fast as dense (1.5 s). 1 of 1 layers is sparse."
    )
    cells = [line.split() for line in lines[1:7]]
    assert cells[0] == [
        "whole",
        "model",
        "dense",
        "ms",
        "sparse",
        "ms",
        "0",
        "dense",
        "ratio",
        "kernel",
        "even",
    ]
    assert cells[1] == ["forward", "1,500", "1,000", "#####...", "1.50x"]
    assert cells[2] == ["backward", "4,500", "3,000", "#####...", "1.50x"]
    assert lines[4] == "  parameters  86M -> 24M; 98 % of them in sparse layers, 72 % left out"
    assert lines[5] == "  bytes       344 MB -> 96 MB"
    assert cells[5][:2] == ["layers", "size"]
    rows = [line.split() for line in lines[7:10]]
    assert rows[0] == [
        "up",
        "3072x768",
        "b64",
        ".25",
        "100",
        "50.0",
        "####....",
        "2.00x",
        "sm90_wgmma",
    ]
    assert rows[1][:5] == ["backward", "300", "150", "####....", "2.00x"] and rows[2][0].startswith("sm90_")


def test_a_slower_model_and_one_without_a_difference_say_so():
    slow = layer("up", 200.0, dense=100.0)
    own = ModelReport(1, slow.times, slow.dense_times, ratios=slow.ratios)
    text = str(report(slow, model=own))
    assert text.startswith("A forward call takes 200 us, 2.00 times as long as dense (100 us).")
    assert "1 of 1 layers is sparse, 1 of them slower than dense." in " ".join(text.split())
    assert "#######>  0.50x" in text
    own.ratios = {"forward": Spread(0.5, 0.4, 1.1)}
    assert "no difference was shown" in str(report(slow, model=own)) and "~0.50x" in str(
        report(slow, model=own)
    )
    assert "No layer of this model is sparse: advise(model, x)" in str(report(dense("n")))


def test_equal_layers_are_one_entry_with_the_medians_over_them():
    blocks = [layer(f"blocks.{i}.fc1", us) for i, us in enumerate((40.0, 50.0, 200.0))]
    blocks[2].note = "slower than dense: forward, backward"
    groups, hidden = grouped(blocks)
    (group,) = groups
    assert not hidden and group.names == ["blocks.0.fc1", "blocks.1.fc1", "blocks.2.fc1"]
    assert group.entry.times == {"forward": 50.0, "backward": 150.0} and group.entry.bytes == 3000
    assert group.entry.ratios["forward"] == Spread(2.0, pytest.approx(1.8), pytest.approx(2.2))
    text = str(report(*blocks))
    assert "  3 x blocks.0-2.fc1 " in text and "1 x " not in text and "Of equal layers" in text
    assert "slower than dense: forward, backward (1 of 3: blocks.2.fc1)" in text
    assert "12 kB -&gt; 3 kB" in report(*blocks).to_html()
    assert len(report(*blocks).layers) == 3  # each by itself, as before


@pytest.mark.parametrize(
    "other",
    [
        {"density": 0.3},
        {"shape": (768, 3072)},
        {"block": (32, 64)},
        {"tokens": 1},
        {"dtype": "float32"},
        {"kernels": KERNELS | {"dx": "dense"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_layers_that_differ_are_not_joined(other):
    groups, _ = grouped([layer("a"), layer("b", **other), layer("c")])
    assert [group.names for group in groups] == [["a", "c"], ["b"]]


def test_untouched_layers_are_counted_and_not_listed():
    text = str(report(layer("up"), dense("norm1"), dense("norm2")))
    assert "norm" not in text and "2 dense layers not touched" in text
    assert "not touched" not in str(report(layer("up")))
    assert "1 dense layer not touched" in str(report(dense("norm1")))
    page = report(layer("up"), dense("norm<1>")).to_html()
    assert "<details><summary>1 dense layer not touched</summary><p>norm&lt;1&gt;</p></details>" in page


def test_no_line_is_wider_than_100_columns_whatever_the_names():
    long = "model.decoder.layers.{}." + "transformer_block." * 12 + "self_attention.query_key_value"
    wide = {"us": 123456.7, "dense": 9876543.2, "shape": (123456, 123456), "tokens": 12345678}
    kernels = {"forward": "k" * 70, "dx": "l" * 70, "dw": "m" * 170}
    break_even = {"forward": 0.5, "backward": None}
    layers = [layer(long.format(i), **wide, kernels=kernels, break_even=break_even) for i in range(2)]
    layers.append(layer(long.format("last"), 5.0, note="note " * 60 + "n" * 200))
    layers[-1].kind, layers[-1].ratios["forward"] = "K" * 90, Spread(5.0, 0.5, 1234.5)
    batches = [ModelReport(1, layers[0].times, layers[0].dense_times, "words " * 40, layers[0].ratios)]
    text = str(report(*layers, batches=batches, lost=0.9))
    assert text.startswith("!!! BUSY MACHINE") and max(map(len, text.splitlines())) <= WIDTH == 100
    assert " 2 x model" in text and text.count("key_value") >= 2  # both ends stay
    assert "~5.00x" in text and "never" in text


def test_a_name_is_shortened_in_its_middle():
    assert elided("layers.0.query", 14) == "layers.0.query"
    assert elided("layers.0.query", 11) == "laye..query" and len(elided("x" * 99, 10)) == 10


def test_batches_follow_the_totals_one_by_one():
    other = layer("other")
    batches = [
        ModelReport(1, other.times, other.dense_times, ratios=other.ratios),
        ModelReport(256, note="forward not measured: out of memory"),
    ]
    lines = str(report(layer("up"), batches=batches)).splitlines()
    assert lines[4].split() == ["forward,", "1", "row", "0.10", "0.05", "####....", "2.00x"]
    assert lines[5].split()[:3] == ["backward,", "1", "row"]
    assert lines[6] == "  256 rows: not measured; forward not measured: out of memory"


def test_the_repr_is_one_short_line():
    made = report(*(layer(f"blocks.{i}", pattern=pattern.full(2, 2, 32)) for i in range(48)), dense("n"))
    assert repr(made) == "Report(48 of 49 layers sparse, forward 1.50x, backward 1.50x)"
    assert repr(Report([], 1, "cpu")) == "Report(0 of 0 layers sparse)"


def test_a_model_without_sparse_layers_says_its_own_time_alone():
    own = ModelReport(1, {"forward": 7.0})
    text = str(report(dense("a"), model=own, totals=Totals(9, 9, 36, 36, 0.0)))
    assert "  forward " in text and "7.00" in text and "parameters  9; 0 %" in text


def test_names_sizes_and_kernels_that_do_not_fit_their_columns_are_whole_on_lines_of_their_own():
    name, kernels = "encoder.layers.11.attention.output", {"forward": "avx512bf16_panel", "dx": "a" * 9}
    lines = str(report(layer(name, kernels=kernels | {"dw": "b" * 9}))).splitlines()
    at = next(i for i, line in enumerate(lines) if name in line)
    assert lines[at].split()[0] == name
    assert lines[at + 1].split()[0] == "forward" and lines[at + 2].strip() == "avx512bf16_panel"
    assert lines[at + 3].split()[0] == "backward" and lines[at + 4].strip() == f"{'a' * 9}, {'b' * 9}"


def test_the_quality_is_shown_when_it_is_given_or_evaluated():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout())
    prune_(model, BlockSparse(16, 0.5), method="magnitude", evaluate=lambda _: 3.5)
    seen = []

    def evaluate(given):
        seen.append((given, given[1].training))
        return 4.25

    found = made_report(model.train(), torch.randn(4, 64), seconds=0, evaluate=evaluate, quality={"then": 3})
    assert list(found.quality) == ["then", "dense", "pruned", "exchanged", "now"]
    assert "quality     then 3, dense 3.5, pruned 3.5, exchanged 3.5, now 4.25" in str(found)
    assert "now 4.25" in found.to_html() and found.to_dict()["quality"]["now"] == 4.25
    assert seen == [(model, False)] and model[1].training
    assert not made_report(nn.Sequential(nn.Linear(64, 64)), torch.randn(4, 64), seconds=0).quality
