"""The folder for Hugging Face's `kernels`: it loads by itself, and beside an installed Sparseloom and another
kernel, each with operators of its own. Where `kernels` is installed, it loads the folder.

SPARSELOOM_BUILD names the CMake folder whose objects the kernels are linked of, as `make test` sets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparseloom

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import make_hf_kernel

BUILD = os.environ.get("SPARSELOOM_BUILD")
NAMES = ("_sparseloom_test_a", "_sparseloom_test_b")
#: What `kernels` does with a folder (importer.py of 0.17.2), and each copy's products, eager and compiled.
LOADS = """
import importlib.util, json, sys
from pathlib import Path
import torch
kernels = importlib.util.find_spec("kernels") and importlib.import_module("kernels")
def loaded(folder):
    if kernels:
        return kernels.get_local_kernel(folder.parent)
    name = json.loads((folder / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
copies = [loaded(Path(folder)) for folder in sys.argv[2:]]
if sys.argv[1] == "installed":
    import sparseloom
    sparseloom.linear, sparseloom.make_index = sparseloom.ops.linear, sparseloom.ops.make_index
    copies.insert(1, sparseloom)
crow, col = (torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 2], [1, 0]))
def dense(x, values, q):
    zero = values.new_zeros(32, 32)
    weight = torch.cat([torch.cat([zero, values[0]], 1), torch.cat([values[1], zero], 1)])
    return (x @ weight.T).relu(), torch.nn.functional.scaled_dot_product_attention(q, q, q)
given = [torch.randn(sizes, requires_grad=True) for sizes in ((8, 64), (2, 32, 32), (1, 2, 128, 32))]
def results(function):
    out = function(*given)
    return *out, *torch.autograd.grad(sum((each * each).sum() for each in out), given)
def of(copy):
    index = copy.make_index(crow, col, 64, 64, (32, 32))
    kept = copy.AttentionPattern.from_map(torch.ones(1, 1, 2, 2, dtype=torch.bool), 64)
    return lambda x, values, q: (copy.linear(x, values, index).relu(), copy.attention(q, q, q, kept))
functions = [of(copy) for copy in copies]
for function in functions + [torch.compile(each, fullgraph=True) for each in functions * 2]:
    for actual, expected in zip(results(function), results(dense), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
def passes(given):
    return (type(given).__name__ == "Beside") + sum(map(passes, getattr(given, "users", ())))
print("passes", passes(torch._inductor.config.joint_custom_post_pass))
for copy in copies:
    try:
        copy.linear(torch.randn(8, 63), given[1], copy.make_index(crow, col, 64, 64, (32, 32)))
    except RuntimeError as error:
        print(type(error).__module__)
names = (name.split("::")[0] for name in torch._C._dispatch_get_all_op_names())
print(*sorted({name for name in names if "sparseloom" in name}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    if not BUILD:
        pytest.skip("SPARSELOOM_BUILD names no CMake folder")
    return [str(make_hf_kernel.made(tmp_path_factory.mktemp(name), Path(BUILD), name=name)) for name in NAMES]


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A folder with what torch's has, but Sparseloom."""
    packages = tmp_path_factory.mktemp("packages")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if "sparseloom" not in entry.name.lower() and not entry.name.endswith(".pth"):
            (packages / entry.name).symlink_to(entry)
    return packages


def test_the_folder_is_one_that_kernels_finds(folders):
    folder = Path(folders[0])
    told = json.loads((folder / "metadata.json").read_text())
    assert folder.parent.name == "build" and folder.name.startswith("torch-stable-abi211-cpu-")
    assert told["id"] == NAMES[0] and told["name"] == "sparseloom"
    assert told["version"] == int(sparseloom.__version__.split(".")[0])
    assert told["backend"] == {"type": "cpu"} and told["python-depends"] == []


@pytest.mark.parametrize("installed, loads", [("none", 1), ("installed", 2)])
def test_copies_of_the_operators_live_in_one_process(installed, loads, folders, without, tmp_path):
    path = (
        [without]
        if installed == "none"
        else [Path(sparseloom.__file__).parents[1], Path(torch.__file__).parents[1]]
    )
    environment = dict(os.environ) | {
        "PYTHONPATH": ":".join(map(str, path)), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-S", "-c", LOADS, installed, *folders[:loads]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    copies = [*NAMES[:loads], *(["sparseloom"] if installed == "installed" else [])]
    passes, *errors, namespaces = done.stdout.splitlines()
    assert passes == f"passes {len(copies)}" and namespaces.split() == sorted(copies)
    assert sorted(errors) == sorted(
        f"{each}.sparseloom.errors".removeprefix("sparseloom.") for each in copies
    )


def test_the_name_is_that_of_the_sources(monkeypatch, tmp_path):
    first, names = make_hf_kernel.digest(), [*make_hf_kernel._SOURCES, "python/sparseloom"]
    assert len(first) == 12 and all((make_hf_kernel.ROOT / name).exists() for name in names)
    (tmp_path / "other.py").write_text("")
    monkeypatch.setattr(make_hf_kernel, "modules", lambda: [make_hf_kernel.PACKAGE / "__init__.py"])
    assert make_hf_kernel.digest() != first


@pytest.mark.parametrize(
    "backend, says", [("rocm61", "neither cpu nor such as cu128"), ("cpu", "is there already")]
)
def test_what_cannot_be_laid_out_is_refused(backend, says, tmp_path):
    name = f"torch-stable-abi{make_hf_kernel.abi()}-cpu-{make_hf_kernel.platform.machine()}-linux"
    (tmp_path / "build" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=says):
        make_hf_kernel.made(tmp_path, tmp_path / "none", backend)
