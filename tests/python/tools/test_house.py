"""The tools that hold the house in order: include arrows, generated pages, examples in the documents."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
check_layers = importlib.import_module("check_layers")
generated = importlib.import_module("generated")
cpu_goals, cpu_tables, claims_tables = (
    importlib.import_module(name) for name in ("cpu_goals", "cpu_tables", "claims_tables")
)


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_include_arrows_hold() -> None:
    assert check_layers.main(ROOT) == 0


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("src/pattern/bad.cpp", '#include "layout/index.h"'),
        ("src/core/bad.h", '#include "sparseloom/executor.h"'),
        ("src/runtime/bad.cpp", '#include "plan/machine.h"'),
        ("src/layout/bad.cpp", '  #  include "runtime/cpu.h"'),
        ("src/kernels/bsr_linear/cpu/bad.h", '#include "plan/registry.h"'),
        ("src/kernels/shared/cost/bad.h", '#include "kernels/bsr_linear/verb.h"'),
        ("src/kernels/shared/cost/bad.h", '#include "kernels/generic/predict_dense.h"'),
        ("src/kernels/generic/bad.h", '#include "kernels/csr_linear/cpu/lanes.h"'),
        ("include/sparseloom/plan.h", '#include "sparseloom/ops.h"'),
        ("include/sparseloom/layout_concept.h", '#include "sparseloom/plan.h"'),
        ("python/sparseloom/nn/bad.py", "torch.ops.sparseloom.bsr_linear(x)"),
        ("python/sparseloom/nn/bad.py", "library.packet('bsr_linear')(x)"),
        ("python/sparseloom/ops/fakes.py", "name = 'sparseloom::bsr_linear'"),
        ("python/sparseloom/__main__.py", "def f(): from sparseloom.cli import main"),
        ("python/sparseloom/io/bad.py", "from ..cli import main"),
        ("python/sparseloom/nn/bad.py", "from sparseloom_bench.demo.data import Text"),
        ("benchmarks/sparseloom_bench/bench/bad.py", "from sparseloom._checks import whole"),
        ("benchmarks/sparseloom_bench/bench/bad.py", "def f(): from sparseloom.ops.conv.product import _dx"),
        ("python/sparseloom/nn/bad.py", "def f(): from ..report import candidates"),
        ("python/sparseloom/nn/bad.py", "def f(): import sparseloom.patch.optimizer"),
        ("python/sparseloom/nn/bad.py", "from .. import io"),
        ("python/sparseloom/patch/forms/bad.py", "from ...quantize import quantize_"),
        ("python/sparseloom/patch/bad.py", "from ..hf import describe_"),
        ("python/sparseloom/sparsify/bad.py", "from sparseloom import nn"),
        ("python/sparseloom/_bad.py", "from .timing.rounds import Spread"),
    ],
)
def test_a_wrong_arrow_is_named_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, line: str
) -> None:
    bad = tmp_path / path
    bad.parent.mkdir(parents=True)
    bad.write_text(f"\n{line}\n")
    assert check_layers.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    "line", ['#include "sparseloom/error.h"', '#include "sparseloom/generic/parallel.h"', "#include <vector>"]
)
def test_a_right_arrow_passes(tmp_path: Path, line: str) -> None:
    good = tmp_path / "src/kernels/good.cpp"
    good.parent.mkdir(parents=True)
    good.write_text(f"{line}\n")
    assert check_layers.main(tmp_path) == 0


@pytest.mark.parametrize(
    "tool",
    [
        "make_support_table.py",
        "make_results.py",
        "make_api.py",
        "make_break_even.py",
        "make_sweep.py",
        "make_patterns.py",
        "make_campaigns.py",
    ],
)
def test_generated_pages_are_up_to_date(tool: str) -> None:
    done = run_tool(f"tools/{tool}", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_generated_part_needs_its_markers() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n"
    assert generated.fill(text, "x", "new") == "a\n<!-- generated: x -->\nnew\n<!-- end -->\nb\n"
    with pytest.raises(ValueError, match="'y'"):
        generated.fill(text, "y", "new")


def test_a_loss_against_dense_is_shown_and_the_newest_measurement_counts(tmp_path: Path) -> None:
    record = {
        "op": "linear",
        "direction": "dx",
        "dtype": "bf16",
        "m": 1024,
        "k": 4096,
        "n": 4096,
        "block": [32, 32],
        "density": 0.5,
        "pattern": "balanced",
        "kernel": "k",
        "us": {"median": 50, "p20": 40, "p80": 60},
        "dense_us": 100,
    }
    slower = record | {"us": {"median": 200.0, "p20": 190, "p80": 210}}
    for date, measured in (("2026-01-02", slower), ("2026-01-01", record)):
        run = {
            "device": "d",
            "commit": "c",
            "date": date,
            "versions": {},
            "mode": "burst",
            "records": [measured],
        }
        (tmp_path / f"{date}.json").write_text(json.dumps(run))
    other = {
        "machine": {"isa": "avx2", "threads": 4},
        "device": "d",
        "commit": "c",
        "date": "2026-01-03",
        "versions": {},
    }
    (tmp_path / "other.json").write_text(json.dumps(other | {"mode": "burst", "records": [record]}))
    lesser = other | {"machine": {"isa": "avx2", "threads": 4, "torch_isa": "AVX2, oneDNN up to AVX2"}}
    (tmp_path / "lesser.json").write_text(json.dumps(lesser | {"mode": "burst", "records": [record]}))
    # what another instruction set took replaces nothing, nor what torch took by one
    settings = cpu_tables.load(tmp_path)
    assert list(settings) == [
        "?, ? threads",
        "avx2, 4 threads",
        "avx2, 4 threads, torch by AVX2, oneDNN up to AVX2",
    ]
    records = settings["?, ? threads"]
    assert [record["us"] for record in records] == [slower["us"]]
    assert cpu_tables.captions(records) == "d; commit c, 2026-01-02; ."
    assert "0.50x **slower**" in cpu_tables.record_table(records)


def test_cpu_figures_that_are_short_are_listed_by_cell() -> None:
    record = {
        "op": "linear",
        "direction": "forward",
        "dtype": "f32",
        "m": 1024,
        "k": 4096,
        "n": 4096,
        "block": [32, 32],
    }
    record |= {
        "pattern": "balanced",
        "kernel": "avx512_panel",
        "peak": "f32_avx512",
        "threads": 2,
        "speedup": 30.0,
    }
    short, good = (
        record | {"density": 0.05, "share_of_peak": 0.591},
        record | {"density": 0.1, "share_of_peak": 0.8},
    )
    elsewhere = short | {"m": 77}  # of another suite: nothing is promised
    part = cpu_goals.cpu_goals_part("here", [short, good, elsewhere])
    assert part.startswith("here: 3 of 4 figures reach their targets.")
    assert "- forward f32 1024 tokens, of f32_avx512: 59.1 % for 60 % (blocks of 32 at 0.05)." in part
    worse = short | {"block": [16, 16], "share_of_peak": 0.3}
    part = cpu_goals.cpu_goals_part("here", [short, worse])
    assert "2 short, most of all 30.0 % for 60 % (blocks of 16 at 0.05)." in part
    assert cpu_goals.cpu_goals_part("here", [good]) == "here: 2 of 2 figures reach their targets."
    assert (
        cpu_goals.cpu_goals_part(
            "here", [elsewhere, {"op": "linear"} | {k: short[k] for k in short if k != "peak"}]
        )
        == ""
    )


def test_a_claim_says_what_each_record_has_or_that_there_is_none(tmp_path: Path) -> None:
    arm = {"bits": 2.0, "deviation": 0.01, "parameters": 1000}
    spread = {"median": 7.0, "p20": 6.5, "p80": 7.5}
    step = {"op": "lstm", "units": 2048, "density": 0.05, "batch": 16, "direction": "forward"}
    seeds = [{"test": 3.0, "searching": False}, {"test": 3.2, "searching": False}]
    errors = {"arm": "dense", "errors": {"imdb": 0.1}}
    for name, record in {
        "char-lstm": {"arms": {"dense": arm, "barabasi-albert": arm | {"bits": 1.98}}},
        "lstm": {
            "clock": "wall",
            "machine": {"threads": 2},
            "records": [step | {"speedup": spread}, step | {"density": 0.1, "speedup": spread}],
        },
        "pixelcnn": {"dense": {"searches": [], "finals": seeds}},
        "sentiment": {"setting": {"sets": {"imdb": []}}, "runs": {"a": errors, "b": errors}},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    told = claims_tables.page(claims_tables.read([tmp_path]))
    assert "barabasi-albert 1.9800 ± 0.0100 of 1,000 parameters (-1.00 %)" in told
    assert (
        f"{tmp_path.name}: forward 7.0x nn.LSTM (6.5 to 7.5), threads: 2, clock: wall" in told
        and "imdb 10.00 %" in told
    )
    assert "dense 3.1000 ± 0.1414" in told and told.count(claims_tables.NONE) == 2
    nothing = claims_tables.page(claims_tables.read([]))
    assert nothing.count(claims_tables.NONE) == len(claims_tables.CLAIMS)


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("docs/quickstart.md", 5),
        ("docs/concepts.md", 2),
        ("docs/eight_bits.md", 1),
        ("docs/index.md", 1),
        ("docs/tutorials/one_layer.md", 6),
        ("docs/tutorials/rigl.md", 4),
        ("docs/tutorials/deploy.md", 5),
        ("docs/tutorials/several_gpus.md", 1),
        ("docs/converting.md", 5),
        ("docs/training.md", 5),
        ("docs/moving_blocks.md", 2),
        ("docs/add_a_module.md", 4),
        ("docs/add_a_layout.md", 3),
        ("docs/convolutions.md", 5),
        ("docs/semi24.md", 5),
        ("docs/methods.md", 5),
        ("docs/csr.md", 3),
        ("docs/nmg.md", 2),
        ("docs/programming_model.md", 6),
        ("docs/patterns.md", 3),
        ("docs/recurrent.md", 3),
        ("docs/migrating.md", 1),
    ],
)
def test_the_examples_of_a_page_run_in_order(page: str, least: int, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= least
    done = forked.run("\n".join(blocks), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.package("transformers")
def test_the_tutorial_of_a_smaller_bert_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/tutorials/bert.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    tests = str(ROOT / "tests" / "python")
    define = f"import sys; sys.path.insert(0, {tests!r})\nimport vision_operators as v; v.define_missing()"
    done = forked.run("\n".join([define, *blocks]), tmp_path)
    assert len(blocks) == 7 and done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    done = forked.run(path.read_text(), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nn/good.py", "if TYPE_CHECKING:\n    from ..report import Report\n"),
        ("nn/good.py", "import torch.nn\nfrom ..timing import candidates\nfrom .report import x\n"),
        ("patch/holders.py", "def f():\n    from ..hf import describe_\n"),
        ("__init__.py", "from .report import report\n"),
    ],
)
def test_a_right_arrow_of_the_front_passes(tmp_path: Path, path: str, text: str) -> None:
    good = tmp_path / "python/sparseloom" / path
    good.parent.mkdir(parents=True, exist_ok=True)
    good.write_text(text)
    assert check_layers.main(tmp_path) == 0


def test_one_place_asks_for_the_class_of_a_sparse_module() -> None:
    """Everything else goes by the protocol. An instance of BlockSparseWeight is a tensor, not a module. The
    8-bit layer's ``from_sparse`` refuses arguments of other classes, and linears.py imports that module."""
    package = ROOT / "python" / "sparseloom"
    asks = re.compile(r"(isinstance|issubclass)\([^\n]*(BlockSparse(?!Weight)\w+|SparseModule)")
    found = {
        path.relative_to(package).as_posix(): len(hits)
        for path in package.rglob("*.py")
        if (hits := asks.findall(path.read_text()))
    }
    assert found == {"nn/linears.py": 6, "nn/held/sparse_weight.py": 1, "nn/quantized.py": 1}


@pytest.mark.parametrize(
    ("says", "ends", "status"),
    [
        (
            "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
            0,
            1,
        ),
        ("ptxas info : Used 168 registers", 0, 0),
        ("error: no such file", 2, 2),
    ],
)
def test_a_build_fails_on_serialised_wgmma(says: str, ends: int, status: int) -> None:
    script = ROOT / "cmake" / "refuse_serialized_wgmma.sh"
    done = subprocess.run(
        [script, "sh", "-c", f"echo '{says}' >&2; exit {ends}"], capture_output=True, text=True
    )
    assert done.returncode == status and says in done.stderr


@pytest.mark.parametrize(("page", "least"), [("docs/add_a_layout.md", 5), ("docs/add_a_kernel.md", 5)])
def test_the_cpp_of_a_page_is_that_of_a_tested_library(page: str, least: int) -> None:
    """Each block is a part of the example that test_custom_layout.py builds, or of test_core_library.py's."""
    files = [*(ROOT / "examples/custom_layout").iterdir(), ROOT / "tests/python/ops/test_core_library.py"]
    built = [" ".join(path.read_text().split()) for path in files if path.is_file()]
    blocks = re.findall(r"^ *```cpp\n(.*?)^ *```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= least
    for block in blocks:
        assert any(" ".join(block.split()) in text for text in built), block
