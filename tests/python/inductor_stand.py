"""What the tests of Inductor's pass share: compiling up to Inductor's code, and fixtures."""

import re

import pytest
import torch

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.ops import autograd
from sparseloom.ops.inductor import beside, epilogues

DTYPES = [torch.float32, torch.bfloat16]
ALL = tuple(ops.ACTIVATIONS)


@pytest.fixture
def as_on_cuda(monkeypatch):
    monkeypatch.setattr(autograd, "CPU_FUSES", ALL)


@pytest.fixture
def unchanged(monkeypatch):
    """Counts the graphs that the pass meets, which it has to leave as they are."""
    met = []

    def checked(graph):
        def all_of_it():
            return str(graph), [dict(node.meta) for node in graph.nodes]

        before = all_of_it()
        epilogues.fold(graph)
        now = all_of_it()
        assert now[0] == before[0]
        for a, b in zip(now[1], before[1], strict=True):
            assert a.keys() == b.keys() and all(a[key] is b[key] for key in a)
        met.append(graph)

    monkeypatch.setattr(beside, "fold", checked)
    return met


def words(node):
    """What an operator of ours computes: name, activation, and what it adds."""
    target = node.args[0] if "auto_functionalized" in str(node.target) else node.target
    if getattr(target, "namespace", "") != "sparseloom":
        return []
    given = dict(zip([each.name for each in target._schema.arguments], node.args, strict=False))
    given = node.kwargs if node.kwargs else given
    name = target._schema.name.removeprefix("sparseloom::").removeprefix("bsr_")
    activation = ALL[given.get("activation", 0)]
    added = "+residual" if isinstance(given.get("residual"), torch.fx.Node) else ""
    return [f"{name}{f'({activation})' if activation else ''}{added}"]


class Compiled:
    """A function compiled as by Inductor up to its code, for which torch's own operators run; ``graphs`` are
    those behind the passes. A hundred forms would take Inductor's C++ compiler minutes."""

    def __init__(self, function, dynamic=None):
        from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes

        self.graphs = []

        def keep(graph, _):
            self.graphs.append(graph.graph)
            return make_boxed_func(graph.forward)

        def parted(joint, inputs, **how):
            return min_cut_rematerialization_partition(joint_graph_passes(joint), inputs, **how)

        backend = aot_autograd(
            fw_compiler=keep, inference_compiler=lambda graph, given: keep(joint_graph_passes(graph), given),
            partition_fn=parted, decompositions=select_decomp_table(),
        )  # fmt: skip
        self.call = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)

    def operators(self):
        return [word for graph in self.graphs for node in graph.nodes for word in words(node)]


def agree(got, want, dtype):
    """One rounding more or less in between costs half an ulp, 2^-9 in bfloat16, and as much at each of the
    few operators behind."""
    for a, b in zip(got, want, strict=True):
        bound = (2**-17 if dtype == torch.float32 else 8 * 2**-9) * (float(b.detach().float().norm()) + 1e-6)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert float((a.detach().float() - b.detach().float()).norm()) <= bound


def run(function, parameters, x, train, dynamic=None):
    """Returns the operators of the compiled function, whose results and gradients agree with eager ones."""
    compiled, leaves = Compiled(function, dynamic), [x, *parameters]
    x.requires_grad_(train)
    with torch.set_grad_enabled(train):
        y, expected = compiled.call(x), function(x)
        agree([y], [expected], expected.dtype)
        if train:
            dy = torch.randn_like(expected)
            gradients = [torch.autograd.grad(each, leaves, dy, allow_unused=True) for each in (y, expected)]
            assert [each is None for each in gradients[0]] == [each is None for each in gradients[1]]
            pairs = ([each for each in group if each is not None] for group in gradients)
            agree(*pairs, expected.dtype)
    return compiled.operators()


def mlp(dtype=torch.float32, **how):
    how = {"density": 0.5, "block": 16, "dtype": dtype, "generator": 3, **how}
    return BlockSparseLinear(48, 64, **how), BlockSparseLinear(64, 48, **how)


def named(text):
    names = {".": "linear", "train": "linear_train", "back": "linear_backward"}
    found = []
    for word in text.split():
        name, *rest = re.split(r"(?=[(+])", word, maxsplit=1)
        found.append(names.get(name, name or "linear") + "".join(rest))
    return found
