"""The command line: info, plans, commands of other packages, and clear words when something is missing."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch

import sparseloom
from sparseloom import Semi24Linear, SparseLinear, cli
from sparseloom_bench import commands


def run(*arguments, **options):
    command = [sys.executable, "-m", "sparseloom", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_info_tells_versions_machine_kernels_and_extras(capsys):
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__ and found["sparseloom"]["version"] == sparseloom.__version__
    assert "reference" in found["sparseloom"]["kernels"] and found["sparseloom"]["isa_active"]
    assert found["sparseloom"]["cuda"]["compiled"] or found["sparseloom"]["cuda"]["reason"]
    assert found["gpus"] and found["benchmarks"] == "installed"
    families = found["sparseloom"]["families"]
    assert {"bsr_linear", "semi24_linear", "csr_linear", "bsr_conv", "block_attention"} <= set(families)
    assert all({"dense", "reference"}.isdisjoint(kernels) for kernels in families.values())
    assert not set(families["bsr_linear"]) & set(found["sparseloom"]["kernels_unavailable"])
    for family, layer in (
        ("semi24_linear", Semi24Linear(64, 64)),
        ("csr_linear", SparseLinear.from_dense(torch.eye(64), "csr")),
    ):
        refused = {each["kernel"]: each["refusal"] for each in layer.plan(tokens=8)["candidates"]}
        lacking = {kernel for kernel, refusal in refused.items() if refusal.startswith("needs avx")}
        assert lacking.isdisjoint(families[family]), (lacking, families)
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for family, kernels in families.items():
        assert re.search(f"{family}: +{', '.join(kernels) or 'none'}\n", text)
    reasons = set(found["sparseloom"]["kernels_unavailable"].values())
    told = text.partition("kernels that do not run here")[2]
    assert all(told.count(reason) == 1 for reason in reasons)  # each once, with the kernels it holds for
    for part in (torch.__version__, "isa_active:", "reference", "reason:"):
        assert part in text


def test_version_is_the_cores(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"sparseloom {sparseloom.__version__}\n"


def without(tmp_path, name, *arguments):
    """Runs the program where importing the package ``name`` says that it is not there."""
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from sparseloom.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_command_says_which_package_it_lacks(tmp_path):
    demo = without(tmp_path, "typer", "demo")
    assert demo.returncode == 2 and demo.stderr.count("\n") == 1, demo.stderr
    assert "[demo] expected the package typer" in demo.stderr and "pip install typer" in demo.stderr


def test_the_library_alone_says_how_to_get_the_benchmarks(monkeypatch, capsys):
    real = cli.importlib.util.find_spec
    monkeypatch.setattr(
        cli.importlib.util, "find_spec", lambda name: None if name == cli.BENCHMARKS else real(name)
    )
    monkeypatch.setattr(cli, "entry_points", lambda **_: EntryPoints())
    assert cli.gathered_info()["benchmarks"] == f"missing: {cli.INSTALL_BENCHMARKS}"
    for name in ("bench", "demo", "experiment"):
        assert cli.main([name, "--help"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.endswith(f"; {cli.INSTALL_BENCHMARKS}\n")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "pip install ./benchmarks" in " ".join(capsys.readouterr().out.split())


def test_another_package_brings_a_command(monkeypatch, capsys):
    points = EntryPoint("length", "builtins:len", cli.GROUP), EntryPoint("gone", "no_such:f", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda **which: EntryPoints(points).select(**which))
    assert cli.main(["length", "a", "b"]) == 2
    assert cli.main(["gone"]) == 2 and "no_such:f that can be imported" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "number of items" in said and "missing: install the package" in said


def test_entry_points_name_functions_that_are_there():
    text = (Path(__file__).parents[3] / "benchmarks/pyproject.toml").read_text()
    points = re.findall(rf'(?m)^(\w+) = "{cli.BENCHMARKS}\.commands:(\w+)"$', text)
    assert points == [(name, name) for name in cli.OF_BENCHMARKS]
    for name, (module, function, _) in commands.COMMANDS.items():
        assert name.split()[0] in cli.OF_BENCHMARKS
        assert callable(getattr(importlib.import_module(module), function))


def test_commands_of_two_words_are_listed(capsys):
    for arguments, status in (([], 0), (["--help"], 0), (["nothing"], 2)):
        assert cli.main(["experiment", *arguments]) == status
        assert "sparseloom experiment char-lstm" in capsys.readouterr().out


@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_plan_explains_a_choice(direction, capsys):
    arguments = [
        "plan",
        "--direction",
        direction,
        "--tokens",
        "64",
        "--in-features",
        "256",
        "--out-features",
        "128",
        "--block",
        "16x32",
    ]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"plan: {direction} f32 m=64 W=[128, 256] block=16x32") and "runs " in text
    assert cli.main([*arguments, "--measure"]) == 0
    assert "measured" in capsys.readouterr().out
    assert cli.main([*arguments, "--json", "--dtype", "bfloat16"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] in sparseloom.info()["kernels"]
    for option, of in (("residual", "forward"), ("accumulate", "dw")):
        assert cli.main([*arguments, f"--{option}"]) == (0 if direction == of else 2)
        said = capsys.readouterr()
        assert f" {option} threads=" in said.out if direction == of else f"got {direction} of f32" in said.err


def test_wrong_use_is_one_line_and_a_status(capsys):
    assert cli.main(["plan", "--density", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sparseloom: [") and said.count("\n") == 1
    for arguments, status, part in (
        (["plan", "--block", "cube"], 2, "cube"),
        ([], 2, "COMMAND"),
        (["--help"], 0, "bench"),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        assert left.value.code == status and part in "".join(capsys.readouterr())


def test_it_is_a_program():
    ran = run("--help")
    assert ran.returncode == 0 and all(name in ran.stdout for name in ("info", "plan", "demo", "bench")), (
        ran.stderr
    )


def test_isa_forced_to_one_this_machine_lacks_is_an_error(tmp_path):
    ran = run("info", env={**__import__("os").environ, "SPARSELOOM_ISA": "vax"})
    assert ran.returncode == 2 and "SPARSELOOM_ISA" in ran.stderr and "vax" in ran.stderr


def test_a_missing_library_is_said_with_the_remedy(tmp_path):
    package = Path(sparseloom.__file__).parent
    shutil.copytree(package, tmp_path / "sparseloom", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    ran = subprocess.run(
        [sys.executable, "-c", "import sparseloom"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert (
        last.startswith("ImportError: sparseloom's operators are not built:")
        and "install torch, then sparseloom again" in last
    )


def test_public_names_are_present():
    assert all(hasattr(sparseloom, name) for name in sparseloom.__all__)  # how many: test_surface.py
    assert sparseloom.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="a name of the package, got 'nothing'"):
        sparseloom.nothing  # noqa: B018
    assert (Path(sparseloom.__file__).parent / "py.typed").exists()
