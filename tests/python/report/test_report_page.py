"""The report's page in a browser: nothing overflows or is clipped, in the light and in the dark, on a screen
and on a phone, and all text can be read."""

import html
import json
import re
import shutil
import subprocess

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom.advise.advice import Advice, LayerAdvice, Option
from sparseloom.report import ModelReport, Report, Spread, Totals
from sparseloom.report.result import LayerReport

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Finds what sticks out of the window or of its cell, text that is cut off, and text of too little contrast,
#: and writes it into the page around the frame.
LOOK = r"""
<script>
addEventListener('load', () => {
  const parse = c => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => {
    const [r, g, b] = parse(c).slice(0, 3).map(v => v / 255)
      .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    const p = parse(c); if (p.length < 4 || p[3] > 0) return c; } return 'rgb(255, 255, 255)'; };
  const found = [], wide = document.documentElement.clientWidth;
  const all = document.documentElement.scrollWidth;
  if (all > wide) found.push('page is ' + all);
  let texts = 0, worst = 99;
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') && e.tagName !== 'svg' || ['STYLE', 'SCRIPT'].includes(e.tagName))
      continue;
    const style = getComputedStyle(e), box = e.getBoundingClientRect();
    if (style.display === 'none' || !box.width) continue;
    if (box.right > wide + 1 || box.left < -1) found.push('out: ' + e.tagName + '.' + e.className);
    if (e.scrollWidth > e.clientWidth + 1 && style.display !== 'inline')
      found.push('cut: ' + e.tagName + ' ' + e.textContent.slice(0, 40));
    if ([...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) {
      const a = light(style.color), b = light(behind(e));
      const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      texts += 1; worst = Math.min(worst, contrast);
      if (contrast < 4.5) found.push('contrast ' + contrast.toFixed(2) + ': ' + e.textContent.slice(0, 40));
    }
  }
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const out = document.createElement('pre'); out.id = 'seen';
  out.textContent = JSON.stringify({found: found.slice(0, 20), texts, worst, wide, dark});
  parent.document.body.append(out);
});
</script>
"""


def layer(name, us, dense=100.0, **how):
    ratio = Spread(dense / us, 0.9 * dense / us, 1.1 * dense / us)
    given = {"block": (32, 32), "density": 0.25, "tokens": 128, "dtype": "float32"} | how
    times, kernels = (
        {"forward": us, "backward": 2 * us},
        {"forward": "avx2_panel", "dx": "dense", "dw": "dense copy"},
    )
    return LayerReport(
        name, "BlockSparseLinear", (3072, 768), 10**6, 4 * 10**6, kernels=kernels, times=times,
        dense_times={"forward": dense, "backward": 2 * dense}, ratios={"forward": ratio, "backward": ratio},
        break_even={"forward": 0.45, "backward": None},
        pattern=sparseloom.pattern.random(768, 768, 32, 0.25, seed=0), **given,
    )  # fmt: skip


def option(block, density, us, kept):
    ratio = Spread(100 / us, 95 / us, 105 / us)
    return Option((block, block), density, {"forward": "avx2"}, us, us, ratio, 0, (), 100.0, kept)


def advice():
    names = [f"encoder.layer.{i}.attention.self.query" for i in range(12)]
    options = [option(32, 0.25, 40.0, 0.61), option(64, 0.25, 55.0, 0.43), option(32, 0.5, 105.0, 0.81)]
    group = LayerAdvice(names, (768, 768), 128, "float32", 100.0, options, {(32, 32): 0.4, (64, 64): None})
    dense = LayerAdvice(["pooler.dense"], (768, 768), 1, "float32", 9.0, [], {})
    skipped = {f"encoder.layer.{i}.norm": "its dtype has no kernels" for i in range(40)}
    return Advice([group, dense], skipped, ("forward",), (0.25, 0.5))


def long_report():
    """A report with every part, long names and a slower layer."""
    layers = [layer(f"encoder.layer.{i}.intermediate.dense", 45.0 + i) for i in range(12)]
    layers += [layer(f"encoder.layer.{i}.output.dense", 130.0, density=0.9) for i in range(12)]
    layers.append(
        layer("a_module_of_a_name_" + "that_never_ends_" * 8 + "here", 99.0, note="slower than dense: " * 4)
    )
    layers += [LayerReport(f"norm.{i}", "LayerNorm", (768,), 3072, 3072, note="dense") for i in range(25)]
    ways = {"forward": 12_300.0, "backward": 40_100.0, "compiled": 9_800.0, "graph": 6_100.0}
    dense = {"forward": 30_100.0, "backward": 61_000.0, "compiled": 26_000.0, "graph": 5_900.0}
    ratios = {
        way: Spread(dense[way] / ways[way], 0.98 * dense[way] / ways[way], 1.05 * dense[way] / ways[way])
        for way in ways
    }
    model = ModelReport(8, ways, dense, ratios=ratios)
    totals = Totals(24_000_000, 86_000_000, 96_000_000, 344_000_000, 0.98)
    batches = [
        ModelReport(1, {"forward": 900.0}, {"forward": 1000.0}, ratios={"forward": Spread(1.11, 0.9, 1.3)})
    ]
    quality = {"dense": 3.21, "pruned": 3.4}
    return Report(
        layers, 8, "AMD EPYC 7763 64-Core Processor", totals, model, batches, 0.4, advice(), quality
    )  # fmt: skip


def looked(page, folder, width, dark):
    """Returns what a headless Chromium sees of a page in a frame of that width: its own window has at least
    500 pixels."""
    inner = html.escape(page.replace("</body>", LOOK + "</body>"), quote=True)
    style = f"width:{width}px;height:900px;border:0"
    path = folder / "frame.html"
    path.write_text(f'<body style="margin:0"><iframe style="{style}" srcdoc="{inner}"></iframe></body>')
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom",
        f"--user-data-dir={folder}/profile", "--window-size=1400,1000", "--hide-scrollbars",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]  # fmt: skip
    done = subprocess.run([*command, f"file://{path}"], capture_output=True, text=True, timeout=300)
    match = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_all_of_the_page(tmp_path, width, dark):
    seen = looked(long_report().to_html("A report"), tmp_path, width, dark)
    assert seen["dark"] == dark and seen["wide"] == width and seen["texts"] > 60, seen
    assert not seen["found"] and seen["worst"] >= 4.5, seen


def test_the_page_stands_alone_and_escapes_names():
    page = long_report().to_html("A <report>")
    assert page.startswith("<!DOCTYPE html>") and "A &lt;report&gt;" in page and "viewport" in page
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "@media (prefers-color-scheme:dark)" in page and "<h1>" in page
    for part in (
        "Whole model",
        "Layers",
        "Patterns",
        "Advice",
        "Machine and measurement",
        "torch.compile",
        "CUDA graph",
    ):
        assert part in page, part
    assert "keeps 61 % of sum |w|" in page and "quality" in page and "24 dense" not in page
    assert page.count("<svg") <= 13


def test_json_lies_beside_the_page(tmp_path):
    report = long_report()
    report.save(tmp_path / "a.html")
    data = json.loads((tmp_path / "a.json").read_text())
    assert (
        data["headline"] == report.headline and data["advice"]["layers"] and data["quality"]["dense"] == 3.21
    )
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(sparseloom.Error, match="another path"):
        report.save(tmp_path / "none" / "a.html")


FACTORY = """
import torch, sparseloom
from torch import nn
def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    sparseloom.sparsify_(model, {"0": sparseloom.BlockSparse(16, 0.5)})
    return model, torch.randn(8, 64)
lonely = nn.Linear(4, 4)
"""


def test_the_command_reports_a_factory_and_writes_the_page(tmp_path, monkeypatch, capsys):
    from sparseloom.cli import main

    (tmp_path / "my_report_models.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "my_report_models:make", "--seconds", "0.01", "--out", "out.html"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 layers is sparse" in said and "\x1b" not in said and "wrote out.html" in said
    assert json.loads((tmp_path / "out.json").read_text())["advice"] is not None
    for wrong, says in {
        "my_report_models:mak": "did you mean my_report_models:make",
        "no_such_module_here:make": "where the module lies",
        "my_report_models": "MODULE:FACTORY", "my_report_models:lonely": "example input",
    }.items():  # fmt: skip
        assert main(["report", wrong]) == 2
        assert says in capsys.readouterr().err, wrong
    assert main(["report"]) == 2 and main(["report", "--hf", "no_folder"]) == 2


def test_the_command_reads_a_folder_of_transformers(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    from sparseloom.cli import main

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)
    )
    sparseloom.sparsify_(model, {r".*intermediate.dense": sparseloom.BlockSparse(16, 0.5)})
    model.save_pretrained(tmp_path / "folder")
    arguments = ["--tokens", "8", "--seconds", "0.01", "--no-advice", "--out", str(tmp_path / "a.html")]
    assert main(["report", "--hf", str(tmp_path / "folder"), *arguments]) == 0
    assert "layers is sparse" in capsys.readouterr().out


def test_a_terminal_gets_colours_and_nothing_else_does(monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    report = long_report()
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        report.show(stream)
        assert ("\x1b[32m" in stream.getvalue()) == coloured
        assert re.sub(r"\x1b\[\d*m", "", stream.getvalue()) == str(report) + "\n"
    assert "\x1b" not in str(report)
    monkeypatch.setenv("NO_COLOR", "1")
    report.show(stream := Terminal())
    assert "\x1b" not in stream.getvalue()


def test_a_dataframe_has_a_row_for_each_direction(monkeypatch):
    import sys
    import types

    monkeypatch.setitem(sys.modules, "pandas", None)
    report = long_report()
    with pytest.raises(sparseloom.Error, match="pip install pandas"):
        report.to_dataframe()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    rows = report.to_dataframe()
    assert len(rows) == 2 * 25 + 25 and {row["direction"] for row in rows} == {"forward", "backward", None}
    assert rows[0]["ratio"] == pytest.approx(100 / 45) and rows[1]["kernel"] == "dense, dense copy"


def test_advice_names_the_best_in_a_hundred_columns():
    made = advice()
    best = made.best()
    assert len(best) == 12 and next(iter(best.values())) == sparseloom.BlockSparse((32, 32), 0.25)
    assert not made.best(least=0.4)
    text = str(made)
    assert text.startswith("12 of 13 dense layers would gain: advice.best() has them.")
    assert max(map(len, text.splitlines())) <= 100, text
    assert "100 -> 40" in text and "keeps 61 %" in text and "2.50x (2.38 to 2.62)" in text
    assert text.count("its dtype has no kernels") == 1


def test_medians_and_ratios_never_contradict():
    from sparseloom.timing.rounds import quotient

    dense, ours = [10.0, 11.0, 30.0, 31.0, 32.0], [9.0, 10.0, 40.0, 10.0, 45.0]
    spread = quotient(dense, ours)
    assert spread.median == 30.0 / 10.0 and spread.p20 <= spread.median <= spread.p80
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    sparseloom.sparsify_(model, {"0": sparseloom.BlockSparse(16, 0.5)})
    found = sparseloom.report(model, torch.randn(4, 64), seconds=0.02)
    for entry in (found.model, found.layers[0]):
        for way, ratio in entry.ratios.items():
            assert ratio.median == pytest.approx(entry.dense_times[way] / entry.times[way])
            assert ratio.p20 <= ratio.median <= ratio.p80
