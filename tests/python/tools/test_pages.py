"""The pages a reader finds: links that lead somewhere, pages short enough to finish, a front page that is
made of results."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
front_page = importlib.import_module("front_page")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests" / "api").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have: lower case, no punctuation, hyphens for spaces."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead(page: Path, text: str) -> list[str]:
    """The links of a page's text that lead nowhere. Code has none: a lambda of C++ looks like one."""
    found = []
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", prose):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(f"{target}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert not dead(page, page.read_text())


def test_a_link_to_no_page_and_to_no_heading_is_found() -> None:
    page = ROOT / "README.md"
    text = "[a](docs/why.md) [b](docs/why.md#nowhere) [c](docs/gone.md) [d](docs/performance.md#method)"
    text += "\n```cpp\n[](int code) {}\n```\n"
    assert dead(page, text) == ["docs/why.md#nowhere", "docs/gone.md#"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_tables_have_pages_of_their_own(page: Path) -> None:
    """A page of prose is one that a reader finishes; what grows with every measurement lies in results_*."""
    made = page.name == "api.md" or page.name.startswith(("results_", "performance_"))
    assert made or len(page.read_text().splitlines()) <= 255


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_code_fit_a_page(page: Path) -> None:
    blocks = re.findall(r"^( *)```(?:python|cpp)\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert not [
        line for indent, block in blocks for line in block.splitlines() if len(line) > 80 + len(indent)
    ]


def linear(block: int, density: float, us: float, dense_us: float = 100.0, **others: object) -> dict:
    record = front_page.LAYER | {"direction": "forward", "block": [block, block], "density": density}
    return record | {"us": {"median": us}, "dense_us": dense_us} | others


def run(records: list[dict], **others: object) -> dict:
    about = {"device": "d", "commit": "0123456789", "date": "2026-01-01", "versions": {"torch": "2"}}
    gpu = {"suite": "gpu", "gpu": {"name": "NVIDIA X"}}
    return about | gpu | {"records": records} | others


def written(folder: Path, *runs: dict) -> Path:
    folder.mkdir()
    for number, each in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps(each))
    return folder


def test_the_front_page_shows_the_newest_figures_and_says_which_are_losses(tmp_path: Path) -> None:
    step = linear(64, 0.2, 50) | {"op": "step"}
    old, new = run([linear(64, 0.1, 10), step]), run([linear(64, 0.1, 200)], date="2026-02-01")
    text = front_page.front([written(tmp_path / "x", new | {"commit": "f" * 12}, old)])
    assert "| X | 0.1 of 64 x 64 | 100 us | 200 us | 0.50x **slower** |" in text
    assert "| X | 0.2 of 64 x 64 | 100 us | 50 us | 2.00x |" in text
    assert text.endswith("d: torch 2, 2026-01-01 to 2026-02-01, fffffff, 0123456.")
    assert "bits per byte" not in text  # what was not measured has no row
    failed = run([linear(64, 0.1, 10, error="no memory")])
    assert front_page.front([written(tmp_path / "y", failed)]) == "No result files yet."


def test_a_model_s_row_is_of_one_graph_where_that_was_measured(tmp_path: Path) -> None:
    patterns = {"a": {"density": 0.25, "block": [64, 64]}, "b": {"density": 0.3, "block": [64, 64]}}
    of_model, suite = {"model": "bert_base", "patterns": patterns}, {"suite": "models"}
    rates = {"steps_per_s": {"sparse": {"median": 90.0}, "dense": {"median": 100.0}}, "speedup": 0.9}
    course = run([of_model | {"op": "model", "speedup": 0.8, "graphed": rates}], date="2026-03-01", **suite)
    slow = written(tmp_path / "a", course)
    assert front_page.front([slow]) == "No result files yet."  # a loss is told under "When not"
    assert "BERT-base: training step, compiled, as a CUDA graph, 0.25" in front_page.losses([slow])
    assert front_page.losses([slow]).endswith(" on X: 0.90x; without graphs 0.80x.")
    ways = {"step, graph": {"sparse": {"median": 7.0}, "dense": {"median": 9.1}, "speedup": 1.3}}
    ways |= {"step, compiled": {"error": "no memory"}, "inference, graph": {"speedup": 1.25}}
    newer = run([of_model | {"op": "ways", "ways": ways}], **suite)
    folder = written(tmp_path / "b", course, newer)
    text = front_page.front([folder])
    assert front_page.losses([folder]) == ""
    assert "| 0.25 and 0.3 of 64 x 64 | 9.10 ms | 7.00 ms | 1.30x; inference by a graph 1.25x |" in text
    assert "by one CUDA graph |" in text and "steps/s" not in text and "alone" not in text


def test_a_speedup_that_only_a_slow_dense_product_explains_leaves_the_front_page(tmp_path: Path) -> None:
    cpu = {"suite": "cpu", "machine": {"isa": "avx512_bf16", "threads": 2}, "device": "amd-epyc-zen5-2c"}
    record = {"m": 1024, "block": [32, 32], "density": 0.2}
    fair, weak = (linear(32, 0.2, us) | record for us in (25, 19))
    assert front_page.fair(fair) and not front_page.fair(weak)
    text = front_page.front([written(tmp_path / "a", run([fair]) | cpu)])
    assert "| EPYC Zen 5, 2 threads | 0.2 of 32 x 32 | 100 us | 25 us | 4.00x |" in text
    assert front_page.front([written(tmp_path / "b", run([weak]) | cpu)]) == "No result files yet."


def test_the_picture_has_a_line_for_each_block_and_marks_dense_as_one(tmp_path: Path) -> None:
    records = [linear(64, 0.1, 10), linear(64, 0.5, 80), linear(128, 0.1, 8)]
    records += [records[0] | {"pattern": "lognormal", "us": {"median": 1.0}}]
    panels, title, note = front_page.picture([written(tmp_path / "x", run(records))])
    assert [(panel.title, panel.lines) for panel in panels] == [
        ("forward", {"128 x 128": [(0.1, 12.5)], "64 x 64": [(0.1, 10.0), (0.5, 1.25)]})
    ]
    assert "(dense = 1)" in title and note.startswith("d: torch 2")
    assert "dense = 1" in (ROOT / "docs" / "speedup.svg").read_text()
    assert front_page.picture([]) == ([], "", "")


def test_the_front_page_is_short_and_its_five_lines_run(tmp_path: Path) -> None:
    """In a process of its own, as somebody who copies it runs it."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in block.splitlines() if line and not line.startswith("import ")]
    assert len(lines) == 5 and all(name in block for name in ("sparsify_(", "report(", "save(")), lines
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").exists()
