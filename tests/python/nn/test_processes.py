"""Layers in other processes: what pickling by shared memory makes of them."""

import multiprocessing
import pickle

import pytest
import torch
import torch.multiprocessing

import sparseloom
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear

# Seconds; a child that imports torch beside two busy tests took more than half a minute.
PATIENCE = 600
X = torch.linspace(-1, 1, 3 * 64).reshape(3, 64)


def things():
    layer = BlockSparseLinear(64, 72, density=0.5, block=16)
    quantized = QuantizedBlockSparseLinear.from_sparse(layer)
    quantized.kernel = "reference"
    return {"layer": layer, "quantized": quantized, "pattern": layer.pattern}


def answers(given):
    with torch.no_grad():  # a tensor that needs a gradient does not leave its process
        return [given["layer"](X), given["quantized"](X), given["pattern"].mask]


def work(argument, requests, results, done):
    """The child: what it makes of its argument and of what comes through a queue, which it sends back."""
    results.put(answers(argument))
    received = requests.get(timeout=PATIENCE)
    results.put(answers(received))
    results.put(received)
    done.wait(PATIENCE)  # torch wants a sender to live until its tensors have arrived


@pytest.mark.parametrize("package", ["torch.multiprocessing", "multiprocessing"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_layers_reach_another_process_as_argument_and_by_queue_and_come_back(method, package):
    context = (torch.multiprocessing if package.startswith("torch") else multiprocessing).get_context(method)
    given, (requests, results, done) = things(), (context.Queue(), context.Queue(), context.Event())
    child = context.Process(target=work, args=(given, requests, results, done))
    child.start()
    try:
        requests.put(given)
        expected = answers(given)
        for _ in range(2):
            assert all(map(torch.equal, results.get(timeout=PATIENCE), expected))
        back = results.get(timeout=PATIENCE)
        assert all(map(torch.equal, answers(back), expected)) and back["pattern"] == given["pattern"]
    finally:
        done.set()
        child.join(PATIENCE)
        if child.is_alive():
            child.terminate()
    assert child.exitcode == 0


@pytest.mark.parametrize("size", [(64, 72), (0, 64), (64, 0), (0, 0)])
def test_a_pattern_is_pickled_without_tensors(size):
    pattern = sparseloom.pattern.random(*size, 16, 0.5, seed=1)
    assert pickle.loads(pickle.dumps(pattern)) == pattern
    assert not any(isinstance(part, torch.Tensor) for part in pattern.__reduce__()[1])
