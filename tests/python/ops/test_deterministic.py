"""torch.use_deterministic_algorithms: the same kernels and bits in every process and with any threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from sparseloom import BlockSparse, InLayout, sparsify_
from sparseloom.nn import Semi24Linear

#: Shapes on which plans of the measured rates go dense with one number of threads and not with another.
BITS = """
import hashlib, json, sys
import torch
from torch import nn
from sparseloom import BlockSparse, InLayout, Semi24, sparsify_

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
told = {}
configs = [BlockSparse(block=32, density=0.7), Semi24("magnitude"), InLayout("csr", density=0.3)]
for number, config in enumerate(configs):
    model = nn.Sequential(nn.Linear(384, 384))
    sparsify_(model, {".*": config})
    for tokens in (1, 64, 200):
        x = torch.randn(tokens, 384, requires_grad=True)
        y = model(x)
        y.backward(torch.randn(y.shape))
        tensors = y, x.grad if number != 1 else y
        bits = [hashlib.sha256(each.detach().numpy().tobytes()).hexdigest()[:12] for each in tensors]
        told[f"{number} {tokens}"] = [model[0].plan(tokens)["kernel"], *bits]
print(json.dumps(told))
"""


def told(threads: int) -> dict[str, list[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "SPARSELOOM_CACHE": "off"}
    run = subprocess.run(
        [sys.executable, "-c", BITS], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def test_kernels_and_bits_are_those_of_other_processes_with_other_threads():
    first = told(1)
    assert told(3) == first


@pytest.fixture
def deterministic():
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(was)


def test_plans_say_that_they_follow_nominal_rates_and_do_not_go_dense(deterministic):
    model = nn.Sequential(nn.Linear(256, 256))
    sparsify_(model, {".*": BlockSparse(block=32, density=0.9)})
    plan = model[0].plan(512)
    assert "rates nominal" in plan["text"] and plan["kernel"] not in ("dense", "reference")
    model = nn.Sequential(nn.Linear(256, 256))
    sparsify_(model, {".*": InLayout("csr", density=0.5)})
    assert model[0].plan(512)["kernel"] not in ("dense", "reference")
    # where no sparse kernel takes dX of 2:4 for so many tokens, which those of AVX-512 do
    plan = Semi24Linear(256, 256).plan(5000, "dx")
    can = {each["kernel"] for each in plan["candidates"] if not each["refusal"]} - {"dense", "reference"}
    assert plan["kernel"] in (can or {"dense"})


def test_the_switch_takes_effect_at_once_and_ends():
    layer = Semi24Linear(64, 64)
    before = layer.plan(8)["text"]
    torch.use_deterministic_algorithms(True)
    try:
        assert "nominal" in layer.plan(8)["text"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert layer.plan(8)["text"] == before


def test_eight_threads_that_share_a_2_4_layer_get_one_kind_of_bits(deterministic):
    torch.manual_seed(0)
    layer = Semi24Linear.from_dense(nn.Linear(256, 256), "magnitude").eval()
    x = torch.randn(64, 256)
    with torch.no_grad():
        expected = layer(x)
    others: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            others.extend(y for y in (layer(x) for _ in range(40)) if not torch.equal(y, expected))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not others


#: Results that grow by a token a call, beside the plan that each number of tokens makes.
GROWS = """
import sys
import torch
from sparseloom import BlockSparse, Semi24, sparsify_


def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20


config = {"blocks": BlockSparse(block=32, density=0.2), "semi24": Semi24("magnitude")}[sys.argv[1]]
model = torch.nn.Sequential(torch.nn.Linear(256, 256)).eval()
sparsify_(model, {".*": config})
with torch.no_grad():
    model(torch.randn(700, 256))
    before, x = megabytes(), torch.zeros(0, 256)
    for _ in range(500):
        x = torch.cat([x, torch.randn(1, 256)])
        model(x)
print(megabytes() - before)
"""


@pytest.mark.parametrize("layer", ["blocks", "semi24"])
def test_results_that_grow_by_a_token_a_call_leave_no_holes(layer):
    run = subprocess.run(
        [sys.executable, "-c", GROWS, layer],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 40  # it was a third of all results together: 125 MB x 2
