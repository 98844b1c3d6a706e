"""The folder for Hugging Face's `kernels`: it loads by itself and beside an installed Sparseloom of the same
version, computes, and refuses another version. Where `kernels` is installed, it loads the folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sparseloom

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import make_hf_kernel

PACKAGE = Path(sparseloom.__file__).parent
#: What `kernels` does with a folder (importer.py of 0.17.2), and a product by each of its functions.
LOADS = """
import importlib.util, json, sys
from pathlib import Path
import torch
folder, installed = Path(sys.argv[1]), sys.argv[2]
if installed == "other":
    import sparseloom
    sparseloom.__version__ = "0.0.1"
if importlib.util.find_spec("kernels"):
    import kernels
    kernel = kernels.get_local_kernel(folder.parent)
else:
    name = json.loads((folder / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    kernel = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
q = torch.randn(1, 2, 128, 32)
kept = kernel.AttentionPattern.from_map(torch.ones(1, 1, 2, 2, dtype=torch.bool), 64)
expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.testing.assert_close(kernel.attention(q, q, q, kept), expected)
crow, col = (torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 2], [1, 0]))
values, x = torch.randn(2, 32, 32), torch.randn(8, 64)
weight = torch.zeros(64, 64)
weight[:32, 32:], weight[32:, :32] = values
index = kernel.make_index(crow, col, 64, 64, (32, 32))
torch.testing.assert_close(kernel.linear(x, values, index), x @ weight.T)
import sparseloom
print(sparseloom.__file__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_hf_kernel.laid_out(PACKAGE, tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A folder with what torch's has, but Sparseloom."""
    packages = tmp_path_factory.mktemp("packages")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if "sparseloom" not in entry.name.lower() and not entry.name.endswith(".pth"):
            (packages / entry.name).symlink_to(entry)
    return packages


def test_the_folder_is_one_that_kernels_finds(folder):
    told = json.loads((folder / "metadata.json").read_text())
    assert folder.parent.name == "build" and folder.name.startswith("torch-stable-abi211-cpu-")
    assert told["id"].isidentifier() and told["id"] != told["name"] == "sparseloom"
    assert told["version"] == int(sparseloom.__version__.split(".")[0])
    assert told["backend"] == {"type": "cpu"} and told["python-depends"] == []


@pytest.mark.parametrize("installed", ["none", "same", "other"])
def test_the_kernel_loads_and_computes(installed, folder, without):
    path = [str(without if installed == "none" else PACKAGE.parent)]
    site = [] if installed == "none" else [str(Path(torch.__file__).parents[1])]
    command = [sys.executable, "-S", "-c", LOADS, str(folder), installed]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder.anchor, env={"PYTHONPATH": ":".join(path + site)}
    )
    if installed == "other":
        assert (
            done.returncode == 1
            and f"this kernel is of sparseloom {sparseloom.__version__}, and 0.0.1 from" in done.stderr
        )
        return
    assert done.returncode == 0, done.stderr
    home = folder / "sparseloom" if installed == "none" else PACKAGE
    assert Path(done.stdout.strip()).parent == home


@pytest.mark.parametrize("wrong, says", [
    ({"backend": "rocm61"}, "neither cpu nor such as cu128"), ({"package": Path("/")}, "build the package"),
    ({}, "is there already"),
])  # fmt: skip
def test_what_cannot_be_laid_out_is_refused(wrong, says, folder):
    with pytest.raises(ValueError, match=says):
        make_hf_kernel.laid_out(**({"package": PACKAGE, "out": folder.parents[1]} | wrong))
