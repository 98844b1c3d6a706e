"""What makes the site and checks it: links, what a page loads, the search, the records, the sentences."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
check_english = importlib.import_module("check_english")
links, records, drawings = (
    importlib.import_module(f"docsite.{name}") for name in ("links", "records", "drawings")
)


def test_links_of_a_page_lead_to_pages_of_the_site() -> None:
    wanted: set[str] = set()
    text = "[a](why.md#x) [b](../CONTRIBUTING.md) [c](../src/plan/cache.h) [d](#here) [e](https://x.org)\n"
    fence = "```md\n[a](nowhere.md)\n```\n"
    made = links.rewritten(text + fence, "docs/tour.md", wanted)
    expected = (
        "[a](why.md#x) [b](contributing.md) [c](source/src/plan/cache.h.md) [d](#here) [e](https://x.org)\n"
    )
    assert made == expected + fence
    assert wanted == {"docs/why.md", "CONTRIBUTING.md", "src/plan/cache.h"}
    page = links.rewritten("[a](../../README.md)", "docs/tutorials/bert.md", wanted)
    assert page == "[a](../index.md)"
    with pytest.raises(ValueError, match=r"docs/tour.md: a link to gone.md"):
        links.rewritten("[a](gone.md)", "docs/tour.md", wanted)


def test_a_drawing_in_a_page_has_no_empty_line_and_no_style_of_its_own() -> None:
    svg = "<svg a>\n<style>.x{}</style>\n\n<g/>\n</svg>\n"
    assert drawings.inline(svg, 'a "b"').splitlines() == [
        '<div class="drawing">',
        '<svg role="img" aria-label="a &quot;b&quot;" a>',
        "<g/>",
        "</svg>",
        "</div>",
    ]


def test_every_record_has_a_row_and_losses_are_marked(tmp_path: Path) -> None:
    linear = {"op": "linear", "direction": "forward", "dtype": "bf16", "m": 8, "k": 64, "n": 32}
    linear |= {"block": [16, 32], "density": 0.25, "us": {"median": 4.0}, "dense_us": 2.0, "kernel": "<k>"}
    other = {"op": "host", "kind": "Linear"}
    run = {"device": "d", "commit": "0123456789", "date": "2026-01-02T03", "suite": "gpu", "gpu": {}}
    (tmp_path / "a.json").write_text(json.dumps(run | {"records": [other, linear]}))
    found = records.rows([tmp_path])
    assert [line[1] for line in found] == ["linear", "host"]  # those beside dense come first
    assert found[0][4:11] == ["8 x 64 x 32", "16 x 32", "0.25", "0.50", "4", "2", "<k>"]
    assert found[0][11:] == ["", "GPU", "2026-01-02", "0123456"]
    page = records.page(found)
    assert page.count("<tr") == 3 and page.count("<tr class=slower>") == 1 and "&lt;k&gt;" in page


def test_sentences_are_counted_without_code_tables_and_generated_parts() -> None:
    text = "# A heading that is long\n\nOne two `code with words` four. Is it?\n\n- an item\n  of two lines\n"
    text += "\n    indented code\n\n| a | b |\n<!-- generated: x -->\nlong long long\n<!-- end -->\n"
    assert check_english.sentences(text) == ["One two CODE four", "Is it", "- an item of two lines"]
    assert check_english.average(text) == pytest.approx(11 / 3)


MODULE = '''"""One of a module."""

def f():
    """Says two words.

    Args:
        x: a number
        y: another

    >>> f(1, 2)
    """

class A:
    """Has one."""

    def _hidden(self):
        """Hidden."""

    def shown(self):
        """Is shown."""
'''


def test_docstrings_of_public_names_are_a_page(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(MODULE)
    found = ["One of a module", "Says two words", "Args:", "x: a number", "y: another", "Has one", "Is shown"]
    assert check_english.sentences(check_english.read(module)) == found


@pytest.mark.parametrize(("count", "status"), [(25, 0), (26, 1)])
def test_a_page_with_long_sentences_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    status: int,
) -> None:
    page = tmp_path / "page.md"
    page.write_text("word " * count + "\n")
    monkeypatch.setattr(check_english, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["check_english.py", str(page)])
    assert check_english.main() == status
    assert ("page.md: 26.0 words a sentence" in capsys.readouterr().out) == bool(status)


PAGE = (
    '<html><head><link rel="stylesheet" href="{style}"></head><body><h1 id="top"></h1>{links}</body></html>'
)


def site(folder: Path, links: str = "", style: str = "a.css", terms: dict[str, int] | None = None) -> Path:
    (folder / "index.html").write_text(PAGE.format(style=style, links=links))
    (folder / "a.css").write_text("p { background: url(data:x) }")
    names = ["results_break_even", "training", "converting", "semi24"]
    found = {"break-even": 0, "torch.compil": 1, "checkpoint": 2, "2:4": 3} if terms is None else terms
    index = {"docnames": names, "terms": found, "titleterms": {}}
    (folder / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    return folder


def test_faults_of_a_site_are_named(tmp_path: Path) -> None:
    pytest.importorskip("snowballstemmer")  # of tools/docsite/requirements.txt
    check_site = importlib.import_module("check_site")
    good = site(tmp_path, '<a href="#top">a</a><a href="index.html#top">b</a><a href="https://x.org">c</a>')
    assert check_site.faults_of_links(good) == check_site.faults_of_search(good) == []
    bad = site(
        tmp_path, '<a href="gone.html">a</a><a href="#gone">b</a><img src="//x.org/y.png">', "b.css", {}
    )
    (bad / "a.css").write_text("@import 'https://x.org/z.css';")
    assert check_site.faults_of_links(bad) == [
        "index.html: loads b.css, which is not there",
        "index.html: loads //x.org/y.png",
        "index.html: a link to gone.html, which is not there",
        "index.html: a link to #gone, a page without that heading",
        "a.css: loads https://x.org/z.css",
    ]
    assert len(check_site.faults_of_search(bad)) == 4
