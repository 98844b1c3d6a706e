"""The C++ layout of examples/custom_layout, built against the installed package as a user builds it: the
generic rows, a fast row of its own, and everything that SparseLinear does."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import Error, layouts
from sparseloom.nn import SparseLinear

PACKAGE = Path(sparseloom.__file__).parent
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "custom_layout"
#: What a source tree, whose headers lie beside python/, has in place of an installed package's CMake files.
IN_PLACE = """
add_library(sparseloom::sparseloom SHARED IMPORTED)
set_target_properties(sparseloom::sparseloom PROPERTIES
  IMPORTED_LOCATION "{library}" IMPORTED_NO_SONAME OFF INTERFACE_INCLUDE_DIRECTORIES "{headers}"
  INTERFACE_COMPILE_FEATURES cxx_std_20)
"""


def cmake_dir(scratch: Path) -> Path:
    done = subprocess.run([sys.executable, "-m", "sparseloom", "--cmake-dir"], capture_output=True, text=True)
    if done.returncode == 0:
        return Path(done.stdout.strip())
    assert "an installed package" in done.stderr, done.stderr
    headers = PACKAGE.parents[1] / "include"
    assert headers.is_dir(), "neither an installed package nor a source tree"
    text = IN_PLACE.format(library=PACKAGE / "libsparseloom.so", headers=headers)
    (scratch / "sparseloom-config.cmake").write_text(text)
    (scratch / "sparseloom-config-version.cmake").write_text("set(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    return scratch


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The example's Python module with its operators. A machine without CMake or a compiler fails here."""
    build, scratch = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("package")
    found = [f"-Dsparseloom_DIR={cmake_dir(scratch)}", f"-DPython3_EXECUTABLE={sys.executable}"]
    for command in (["cmake", "-S", EXAMPLE, "-B", build, *found], ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    spec = importlib.util.spec_from_file_location("diagonal_plus_blocks", EXAMPLE / "diagonal_plus_blocks.py")
    assert spec and spec.loader
    made = sys.modules["diagonal_plus_blocks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.load(build / "custom_layout.so")
    return made


@pytest.fixture
def layer(module: ModuleType) -> SparseLinear:
    torch.manual_seed(0)
    return SparseLinear(96, 64, layout="diagonal_plus_blocks", side=16, blocks=7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(96, 64), (64, 96), (64, 64)])
@pytest.mark.parametrize("tokens", [0, 1, 37])
def test_products_and_gradients_are_those_of_the_dense_twin(
    module: ModuleType, dtype: torch.dtype, shape: tuple[int, int], tokens: int
):
    torch.manual_seed(1)
    layer = SparseLinear(*shape, layout="diagonal_plus_blocks", side=16, blocks=7, dtype=dtype)
    twin = layer.to_dense().double()
    x = torch.randn(tokens, shape[0], dtype=dtype, requires_grad=True)
    x_twin = x.detach().double().requires_grad_()
    dy = torch.randn(tokens, shape[1], dtype=dtype)
    y, y_twin = layer(x), twin(x_twin)
    y.backward(dy)
    y_twin.backward(dy.double())
    assert layer.values.grad is not None and twin.weight.grad is not None
    packed = layer.layout.pack(twin.weight.grad)
    eps = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2**-7}[dtype]
    for got, want in ((y, y_twin), (x.grad, x_twin.grad), (layer.values.grad, packed)):
        torch.testing.assert_close(got.double(), want, rtol=eps, atol=eps * max(1, tokens))


@pytest.fixture
def very_sparse(module: ModuleType) -> SparseLinear:
    """So sparse that the dense product does a hundred times the work."""
    torch.manual_seed(0)
    return SparseLinear(1024, 1024, layout="diagonal_plus_blocks", side=16, blocks=32)


def test_the_fast_row_is_chosen_and_the_others_explained(very_sparse: SparseLinear):
    layer = very_sparse
    plan = layer.plan(200)
    assert plan["kernel"] == "eight_lanes", plan["text"]
    assert plan["text"].startswith(
        "plan: forward f32 m=200 W=[1024, 1024] layout=diagonal_plus_blocks stored=9216 bias threads="
    )
    names = {candidate["kernel"]: candidate for candidate in plan["candidates"]}
    assert names.keys() == {"eight_lanes", "dense", "reference"}
    assert all(
        not each["refusal"] and each["predicted_us"] > plan["predicted_us"] / 1.001 for each in names.values()
    )
    of_blocks = sparseloom.nn.BlockSparseLinear(8, 8, density=1.0, block=8).plan(1).keys()
    assert plan.keys() >= of_blocks - {"dense_copy", "dense_copy_us"}  # only weights in blocks keep a copy
    refused = {each["kernel"]: each["refusal"] for each in layer.plan(200, "dw")["candidates"]}
    assert (
        refused["eight_lanes"] == "multiplies forward only" and "without a dense buffer" in refused["dense"]
    )
    assert "f32 only, the dtype is bf16" in layer.plan(200, "forward", torch.bfloat16)["text"]
    assert layer.plan(200, "dx")["kernel"] in ("dense", "reference")


def test_the_fast_row_has_the_same_bits_for_any_number_of_threads(very_sparse: SparseLinear):
    layer = very_sparse
    x, threads = torch.randn(50, 1024), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert layer.plan(50)["kernel"] == "eight_lanes"
            found.append(layer(x).detach())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_compiles_trains_saves_and_is_reported(layer: SparseLinear, tmp_path: Path):
    net, x = nn.Sequential(layer, nn.ReLU(), nn.Linear(64, 4)), torch.randn(8, 96)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    first = None
    for _ in range(20):
        loss = compiled(x).square().sum()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1 * first
    sparseloom.save(net, tmp_path / "net.safetensors")
    other = nn.Sequential(
        SparseLinear(96, 64, layout="diagonal_plus_blocks", side=16, blocks=3), nn.ReLU(), nn.Linear(64, 4)
    )
    sparseloom.load(tmp_path / "net.safetensors", other)
    assert torch.equal(other(x), net(x))
    sides = nn.Sequential(
        SparseLinear(96, 64, layout="diagonal_plus_blocks", side=8, blocks=3), nn.ReLU(), nn.Linear(64, 4)
    )
    with pytest.raises(Error, match="'side': 8"):
        sparseloom.load(tmp_path / "net.safetensors", sides)
    report = sparseloom.report(net, x, seconds=0.01)
    assert report.layers[0].layout == "diagonal_plus_blocks" and "diagonal_plus_blocks" in report.to_html()
    assert report.layers[0].density == pytest.approx(0.302, abs=5e-4) and "64x96" in str(report)


@pytest.mark.parametrize(
    ("col", "says"), [(99, r"col\[3\] = 99"), (-1, r"col\[3\] = -1"), (0, r"col\[\d\] = ")]
)
def test_an_index_that_would_lead_outside_is_refused(layer: SparseLinear, col: int, says: str):
    layer.col[3] = col
    with pytest.raises(RuntimeError, match=says):
        layer(torch.randn(3, 96))


def test_a_fast_row_is_in_report_and_plan_after_save_load_and_pickle(
    very_sparse: SparseLinear, tmp_path: Path
):
    """What is read back into a dense model runs the row from outside too, under autocast as well."""
    net, x = nn.Sequential(very_sparse), torch.randn(200, 1024)
    found = sparseloom.report(net, x, seconds=0.01)
    (told,) = found.layers
    assert told.kernels["forward"] == "eight_lanes" and told.layout == "diagonal_plus_blocks"
    sparseloom.save(net, tmp_path / "net.safetensors")
    read = nn.Sequential(nn.Linear(1024, 1024))
    sparseloom.load(tmp_path / "net.safetensors", read, sparsify=True)
    copied = pickle.loads(pickle.dumps(net))
    for other in (read, copied):
        assert (
            other[0].layout.name == "diagonal_plus_blocks" and other[0].plan(200)["kernel"] == "eight_lanes"
        )
        assert torch.equal(other(x), net(x))
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), net(x), rtol=0.05, atol=0.05)


def test_the_layout_is_found_by_name(module: ModuleType):
    assert layouts.get("diagonal_plus_blocks") is module.DiagonalPlusBlocks
