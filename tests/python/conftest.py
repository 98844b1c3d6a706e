"""Tests marked `gpu` run where torch sees a GPU, those marked `two_gpus` where it sees two, `package(name)`
where it is installed, `torch_at_least(version)` with such a torch: an older one fails in itself at what the
test does.

Elsewhere they are deselected, not skipped: a machine that could run a test and did not is then the only thing
that says "skipped". In CI every package is installed (tests/requirements.txt), so a test that lacks one is an
error there.

A test draws the same numbers in every run, whichever tests ran before it in its process: from a seed of its
name. SPARSELOOM_TEST_SEED, a number, draws others: a test that fails with some of them has a tolerance too
small.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion
from vision_operators import define_missing

define_missing()

# Tests of one room take cases and twins from those of another by name, whichever of them are collected.
sys.path += [str(room) for room in sorted(Path(__file__).parent.iterdir()) if room.is_dir()]

# In a source tree without the benchmarks installed, tests and the programs that they start find them too.
if importlib.util.find_spec("sparseloom_bench") is None:
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), sys.path[-1])))

#: Files that import packages which the tests' environment need not have (on Python 3.10 it has none of them).
NEEDS = {
    "integrations/test_callbacks.py": ("transformers", "accelerate", "lightning"),
    "patch/test_experts.py": ("transformers",),
    "integrations/test_hf.py": ("transformers",),
    "integrations/test_hf_gpt2_t5.py": ("transformers",),
    "integrations/test_hf_loading.py": ("transformers",),
    "integrations/test_lightning.py": ("lightning",),
    "integrations/test_lora.py": ("transformers", "peft"),
    "integrations/test_trainer.py": ("transformers", "accelerate"),
    "patch/test_fuse.py": ("transformers", "timm", "torchvision"),
    "patch/test_fused_life.py": ("transformers", "timm", "torchvision"),
    "patch/test_zoo.py": ("transformers", "timm", "torchvision"),
    "shrink/test_shrink_models.py": ("transformers", "timm"),
    "shrink/test_shrink_parts.py": ("transformers", "timm", "torchvision"),
}
collect_ignore = [
    name for name, packages in NEEDS.items() if not all(map(importlib.util.find_spec, packages))
]


def seed_by(name: str) -> None:
    seed = (zlib.crc32(name.encode()) + int(os.environ.get("SPARSELOOM_TEST_SEED", "0"))) % 2**32
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.fixture(autouse=True, scope="module")
def _seed_of_the_file(request: pytest.FixtureRequest) -> None:
    """For fixtures of modules, which are made before those of the first test that wants them."""
    hide_from_the_collector()
    seed_by(request.path.name)


@pytest.fixture(autouse=True)
def _as_if_it_were_the_first(request: pytest.FixtureRequest) -> None:
    """Seeds, and forgets what other tests compiled: torch limits how often a function is compiled anew."""
    seed_by(f"{request.path.name}::{request.node.name}")
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def hide_from_the_collector() -> None:
    """Takes what lives now out of the collector's sight: every change of a model looks through all objects
    for models around it. Before each file, since compilers and libraries that some test imports stay: with
    the imports of the collection alone hidden, test_faults[densify_] took 15.9 CPU seconds late in a run, and
    .5 in one of its own."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    hide_from_the_collector()


def absent_packages(item: pytest.Item) -> list[str]:
    """Names the packages that a test is marked with and that are not installed."""
    named = [marker.args[0] for marker in item.iter_markers("package")]
    return [name for name in named if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0

    def needs(item: pytest.Item) -> int:
        return 2 if item.get_closest_marker("two_gpus") else 1 if item.get_closest_marker("gpu") else 0

    def lacks(item: pytest.Item) -> bool:
        too_old = any(
            TorchVersion(torch.__version__) < marker.args[0] for marker in item.iter_markers("torch_at_least")
        )
        return too_old or bool(absent_packages(item))

    lacking = [*collect_ignore, *(item.nodeid for item in items if absent_packages(item))]
    if lacking and os.environ.get("CI") and sys.version_info >= (3, 11):
        raise pytest.UsageError(
            f"packages are missing, see tests/requirements.txt, for: {', '.join(lacking)}"
        )
    unable = [item for item in items if needs(item) > gpus or lacks(item)]
    if unable:
        config.hook.pytest_deselected(items=unable)
        items[:] = [item for item in items if item not in set(unable)]
