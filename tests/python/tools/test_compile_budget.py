"""The compile budget: a faster machine is divided out, growth is not, and ccache's hits are not compared."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "compile_budget.py"
SECONDS = {f"CMakeFiles/a.dir/{name}.cpp.o": 2.0 + i for i, name in enumerate("abcdefgh")}
SECONDS |= {f"CMakeFiles/a.dir/{name}.cu.o": 20.0 for name in "xyz"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compile_budget", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tool, tmp_path, monkeypatch, capsys):
    """Returns a function that runs the tool on a build of these seconds; it returns status and text."""

    def run(seconds, size=1000, again=None):
        (tmp_path / "budget.json").write_text(
            json.dumps({"seconds": SECONDS, "bytes": {"libsparseloom.so": 1000}})
        )
        lines = ["# ninja log v5"]
        lines += [f"0\t{round(1000 * took)}\t0\t{name}\tabc" for name, took in seconds.items()]
        lines.append("0\t900000\t0\ttests/cpp/CMakeFiles/tests.dir/huge.cpp.o\tabc")  # not the library's
        (tmp_path / ".ninja_log").write_text("\n".join(lines))
        (tmp_path / "libsparseloom.so").write_bytes(b"x" * size)
        monkeypatch.setattr(tool, "compile_again", lambda build, name: (again or seconds)[name])
        status = tool.main([str(tmp_path), "--budget", str(tmp_path / "budget.json")])
        return status, capsys.readouterr().out

    return run


@pytest.mark.parametrize("speed", [0.4, 1, 3])
def test_a_faster_or_slower_machine_passes(run, speed):
    status, text = run({name: speed * took for name, took in SECONDS.items()})
    assert status == 0
    assert "1.000x of the budget" in text


@pytest.mark.parametrize("speed", [0.4, 1, 3])
def test_growth_fails_and_names_the_object(run, speed):
    grown = {name: speed * took for name, took in SECONDS.items()}
    grown["CMakeFiles/a.dir/z.cu.o"] *= 1.9
    status, text = run(grown)
    assert status == 1
    assert "z.cu.o" in text and "--update" in text


def test_a_new_object_counts(run):
    status, text = run(SECONDS | {"CMakeFiles/a.dir/new.cu.o": 15.0})
    assert status == 1
    assert "new.cu.o" in text


def test_a_busy_neighbour_is_forgiven_once_the_object_is_compiled_again(run):
    status, _ = run(SECONDS | {"CMakeFiles/a.dir/z.cu.o": 60.0}, again=SECONDS)
    assert status == 0


def test_hits_of_ccache_are_not_compared(run):
    status, text = run(SECONDS | {"CMakeFiles/a.dir/z.cu.o": 0.1})
    assert status == 0
    assert "not compared" in text


def test_a_build_for_cpus_alone_is_compared_with_its_own_objects(run):
    cpu = {name: took for name, took in SECONDS.items() if not name.endswith(".cu.o")}
    assert run(cpu, size=9)[0] == 0
    grown = cpu | {"CMakeFiles/a.dir/h.cpp.o": 30.0}
    assert run(grown, size=9)[0] == 1


def test_a_larger_library_fails(run):
    assert run(SECONDS, size=1101)[0] == 1
    assert run(SECONDS, size=1099)[0] == 0


def test_the_committed_figures_are_of_this_library(tool):
    """They name most sources of the tree: a file of another tree, or of years ago, holds nothing."""
    budget = json.loads(tool.BUDGET.read_text())
    root = TOOL.parents[1]
    named = {name.split(".dir/", 1)[1].removesuffix(".o") for name in budget["seconds"]}
    sources = {str(path.relative_to(root)) for path in (root / "src").rglob("*.cpp")}
    assert len(sources & named) > 0.9 * len(sources)
    assert set(budget["bytes"]) == {"libsparseloom.so", "libsparseloom_torch.so"}
