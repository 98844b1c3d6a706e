"""The compile budget: a faster machine is divided out, growth is not, and ccache's hits are not compared."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "compile_budget.py"
SECONDS = {f"CMakeFiles/a.dir/{name}.cpp.o": 2.0 + i for i, name in enumerate("abcdefgh")}
SECONDS |= {f"CMakeFiles/a.dir/{name}.cu.o": 20.0 for name in "xyz"}
#: What a build for a check takes for the CUDA objects.
CHECK = {name: 10.0 for name in SECONDS if name.endswith(".cu.o")}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compile_budget", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tool, tmp_path, monkeypatch, capsys):
    """Returns a function that runs the tool on a build of these seconds; it returns status and text."""

    def run(seconds, size=1000, again=None, check=False, arguments=(), has_figures=True):
        budget = {"seconds": SECONDS, "bytes": {"libsparseloom.so": 1000}}
        if has_figures:
            budget["check"] = {"seconds": CHECK, "bytes": {"libsparseloom.so": 500}}
        (tmp_path / "budget.json").write_text(json.dumps(budget))
        objects = [*seconds, "tests/cpp/CMakeFiles/tests.dir/huge.cpp.o"]  # the last is not the library's
        for name, took in {**seconds, objects[-1]: 900.0, "CMakeFiles/a.dir/removed.cpp.o": 900.0}.items():
            path = tmp_path / f"{name}.cpu"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"0m0.01s 0m0.02s\n{int(took // 60)}m{took % 60}s 0m0.00s\n")
        (tmp_path / "build.ninja").write_text("".join(f"build {name}: CXX a.cpp\n" for name in objects))
        (tmp_path / "CMakeCache.txt").write_text(f"SPARSELOOM_CUDA_CHECK:BOOL={'ON' if check else 'OFF'}\n")
        (tmp_path / "libsparseloom.so").write_bytes(b"x" * size)
        monkeypatch.setattr(tool, "compile_again", lambda build, name: (again or seconds)[name])
        status = tool.main([str(tmp_path), "--budget", str(tmp_path / "budget.json"), *arguments])
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


def test_a_build_for_a_check_has_figures_of_its_own(run, tmp_path):
    status, text = run(SECONDS | CHECK, size=500, check=True)
    assert status == 0 and "1.000x of the budget" in text
    z = "CMakeFiles/a.dir/z.cu.o"
    assert run(SECONDS | CHECK | {z: 40.0}, size=500, check=True)[0] == 1
    assert run(SECONDS | CHECK, size=600, check=True)[0] == 1
    # and it writes those, in seconds of the machine that measured the others, and what is new of the others
    new = {"CMakeFiles/a.dir/i.cpp.o": 3.0}
    slower = {name: 2 * took for name, took in (SECONDS | CHECK | {z: 11.0} | new).items()}
    run(slower, size=501, check=True, arguments=["--update"])
    written = json.loads((tmp_path / "budget.json").read_text())
    assert written["seconds"] == SECONDS | new
    assert written["check"] == {"seconds": CHECK | {z: 11.0}, "bytes": {"libsparseloom.so": 501}}
    assert written["bytes"] == {"libsparseloom.so": 1000}


def test_without_figures_of_a_check_the_other_objects_are_compared(run):
    status, text = run(SECONDS | CHECK, size=500, check=True, has_figures=False)
    assert status == 0 and "1.000x of the budget" in text and "not compared" in text
    grown = SECONDS | CHECK | {"CMakeFiles/a.dir/h.cpp.o": 60.0}
    assert run(grown, size=500, check=True, has_figures=False)[0] == 1


def test_a_build_that_wrote_no_seconds_is_told_how(run):
    with pytest.raises(SystemExit, match="SPARSELOOM_CPU_SECONDS=ON"):
        run({})
