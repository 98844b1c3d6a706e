"""report: the whole model against its dense twin, totals, break-even densities, batch sizes, strict."""

import copy
import json
import re

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, Error, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.report import ModelReport, Report, break_even, inputs, layers, whole
from sparseloom.timing.rounds import without_cast_cache


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products on two busy cores wait for each other longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Model(nn.Module):
    """A sparse layer used twice, sparse layers inside other forms, and a Parameter of the model's own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.shared = nn.Linear(64, 64, bias=False)
        self.again = self.shared
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 5)

    def forward(self, x, shift=None):
        y = self.attention(x, x, x, need_weights=False)[0] * self.scale
        y = self.norm(self.again(torch.relu(self.shared(y))))
        return {"logits": self.head(y.mean(1)), "hidden": y if shift is None else y + shift}


def model(density=0.25):
    torch.manual_seed(0)
    net = Model()
    sparsify_(net, {"attention|shared": BlockSparse(block=16, density=density)})
    return net


def x(rows=3):
    return torch.randn(rows, 4, 64, generator=torch.Generator().manual_seed(0))


def test_the_dense_twin_computes_the_same_and_leaves_the_model_alone():
    net = model().eval()
    twin = whole.dense_twin(net)
    assert not any(isinstance(module, BlockSparseLinear) for module in twin.modules())
    assert (
        isinstance(net.shared, BlockSparseLinear)
        and type(twin.shared) is nn.Linear
        and twin.shared is twin.again
    )
    torch.testing.assert_close(twin(x())["hidden"], net(x())["hidden"], atol=1e-5, rtol=1e-5)
    root = BlockSparseLinear(64, 32, density=0.5, block=16, activation="gelu")
    torch.testing.assert_close(whole.dense_twin(root)(x()), root(x()), atol=1e-5, rtol=1e-5)


def test_the_dense_twin_of_torchs_encoder_takes_the_fused_path_that_a_dense_model_takes():
    torch.manual_seed(0)
    dense = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 2, 128, batch_first=True), 1)
    net = copy.deepcopy(dense)
    sparsify_(net, {r".*linear1": BlockSparse(block=16, density=0.5)})
    twin = whole.dense_twin(net)
    assert net.layers[0].activation_relu_or_gelu == 0 and not net.use_nested_tensor
    assert twin.layers[0].activation_relu_or_gelu == dense.layers[0].activation_relu_or_gelu == 1
    assert twin.use_nested_tensor == dense.use_nested_tensor


def test_totals_count_what_is_shared_once_and_the_twin_as_it_would_be():
    net = model()
    totals = sparseloom.report(net, x(), seconds=0.01).totals
    twin = whole.dense_twin(net)
    assert totals.parameters == sum(p.numel() for p in net.parameters())
    assert totals.dense_parameters == sum(p.numel() for p in twin.parameters())
    assert totals.dense_bytes == 4 * totals.dense_parameters
    indices = sum(
        4 * (m.crow.numel() + m.col.numel()) for m in net.modules() if isinstance(m, BlockSparseLinear)
    )
    assert totals.bytes == 4 * totals.parameters + indices
    assert totals.sparse_share == (192 + 64 + 64) * 64 / totals.dense_parameters


def test_the_whole_model_is_timed_forward_and_backward_beside_the_twin(monkeypatch):
    seen = []

    def in_turn(calls, seconds, gpu, **options):
        seen.append((torch.is_grad_enabled(), [call() for call in calls], gpu))
        return [[10.0] * 5, [30.0] * 5][: len(calls)]

    monkeypatch.setattr(whole, "in_turn", in_turn)
    net = model()
    found = sparseloom.report(net, x(), seconds=0.01)
    assert found.model.times == {"forward": 10.0, "backward": 10.0} and found.model.speedups == {
        "forward": 3.0,
        "backward": 3.0,
    }
    assert found.model.batch == 3 and not found.model.note
    (forward_grad, (ours, dense), gpu), (backward_grad, (our_gradients, dense_gradients), _) = seen
    assert not forward_grad and backward_grad and gpu is None
    torch.testing.assert_close(ours["logits"], dense["logits"], atol=1e-5, rtol=1e-5)
    assert len(our_gradients) == len(list(net.parameters())) == len(dense_gradients)
    # of scale: the same in both
    torch.testing.assert_close(our_gradients[0], dense_gradients[0], atol=1e-4, rtol=1e-4)
    assert all(p.grad is None for p in net.parameters()) and net.training
    text = str(found)
    assert (
        "30.0      10.0 ###.....  3.00x" in text
        and "parameters" in text
        and "left out" in text
        and "3.00x" in found.to_html()
    )
    assert json.loads(json.dumps(found.to_dict()))["model"]["speedups"]["backward"] == 3.0


def test_what_does_not_train_has_no_backward_time_and_a_model_without_sparse_layers_no_twin():
    net = model().requires_grad_(False)
    assert set(sparseloom.report(net, x(), seconds=0.01).model.times) == {"forward"}
    dense = sparseloom.report(nn.Linear(64, 64), x(), seconds=0.01)
    assert (
        set(dense.model.times) == {"forward", "backward"}
        and dense.model.dense_times is None
        and not dense.model.speedups
    )
    assert dense.totals.parameters == dense.totals.dense_parameters and dense.totals.sparse_share == 0


def test_a_twin_that_cannot_be_is_noted_and_the_model_measured_all_the_same(monkeypatch):
    class Uncopied(Model):
        def __deepcopy__(self, memo):
            raise TypeError("this model holds a socket\nand more")

    net = Uncopied()
    sparsify_(net, {"shared": BlockSparse(block=16, density=0.5)})
    found = sparseloom.report(net, x(), seconds=0.01)
    assert found.model.note == "no dense twin: this model holds a socket" and found.model.dense_times is None
    assert found.model.times["forward"] > 0 and found.model.note in str(found)

    def no_memory(models, example):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(whole, "_backwards", no_memory)
    noted = sparseloom.report(model(), x(), seconds=0.01).model
    assert set(noted.times) == {"forward"} and noted.note.startswith(
        "backward not measured: CUDA out of memory"
    )


def test_batch_sizes_scale_the_first_dimension_alone():
    net, seen = model(), []
    net.register_forward_pre_hook(
        lambda m, a, k: seen.append((a[0].shape, k["shift"].shape)), with_kwargs=True
    )

    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, data, shift, name):
            assert name == "kept"
            return self.net(data, shift=shift)

    example = {"data": x(), "shift": torch.zeros(1, 1, 64), "name": "kept"}
    found = sparseloom.report(Keywords(), example, seconds=0.01, batch_sizes=[1, 3, 8])
    assert [batch.batch for batch in found.batches] == [1, 3, 8] and found.batches[1] is found.model
    assert {shapes[0][0] for shapes in seen} >= {1, 3, 8} and {shapes[1] for shapes in seen} == {(1, 1, 64)}
    assert all(set(batch.speedups) == {"forward", "backward"} for batch in found.batches)
    assert ", 1 row" in str(found) and ", 1 row" in found.to_html()
    assert len(found.to_dict()["batches"]) == 3


def test_a_resized_input_repeats_its_own_rows():
    rows = torch.arange(3)
    assert inputs.resized(rows, 3, 7).tolist() == [0, 1, 2, 0, 1, 2, 0] and inputs.resized(
        rows, 3, 2
    ).tolist() == [0, 1]
    nested = inputs.resized({"a": (rows, torch.zeros(4)), "b": [torch.tensor(1.0), None]}, 3, 5)
    assert (
        nested["a"][0].shape == (5,)
        and nested["a"][1].shape == (4,)
        and nested["b"][0].dim() == 0
        and nested["b"][1] is None
    )
    assert (
        inputs.batch_of([{"a": torch.tensor(1.0)}, torch.zeros(6, 2)]) == 6
        and inputs.batch_of((1, "b")) is None
    )


def test_batch_sizes_from_1_to_256():
    net = nn.Sequential(BlockSparseLinear(64, 64, density=0.25, block=16)).requires_grad_(False)
    found = sparseloom.report(net, torch.randn(4, 64), seconds=0.01, batch_sizes=[2**i for i in range(9)])
    assert [batch.batch for batch in found.batches] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert all(batch.times["forward"] > 0 and batch.dense_times["forward"] > 0 for batch in found.batches)
    assert all(f", {size} row" in str(found) and f", {size} row" in found.to_html() for size in (1, 64, 256))


def test_other_ways_are_rows_of_the_whole_model():
    net = nn.Sequential(BlockSparseLinear(64, 64, density=0.25, block=16))
    ways = ["eager", "compiled", "exported"]
    found = sparseloom.report(net, {"input": torch.randn(4, 64)}, seconds=0.01, ways=ways)
    assert set(found.model.times) == set(found.model.speedups) == {"forward", "backward", *ways[1:]}
    assert all(f"\n  {way}    " in str(found) for way in ways[1:]) and found.model.launch_share is None
    assert "forward, AOTInductor" in found.to_html()
    assert not found.model.host_bound and "host-bound" not in str(found)
    waiting = ModelReport(1, {"forward": 7.0}, launch_share=0.97)
    assert waiting.host_bound and not ModelReport(1, launch_share=0.5).host_bound
    text = str(Report([], 1, "gpu", model=waiting))
    assert "host-bound: launching takes 97 % of an eager forward call" in text
    for graph, words in ((1.75, "host-bound: the GPU idles for 75 % of an eager"), (6.0, None)):
        known = ModelReport(1, {"forward": 7.0, "graph": graph}, launch_share=0.97)
        assert known.host_bound == (words is not None)
        assert words is None or words in str(Report([], 1, "gpu", model=known))


def test_a_model_that_cannot_be_compiled_is_noted(monkeypatch):
    def refuse(way, *_):
        raise RuntimeError(f"{way} is not for this model")

    monkeypatch.setattr(whole, "forward_call", refuse)
    net = nn.Sequential(BlockSparseLinear(64, 64, density=0.25, block=16))
    found = sparseloom.report(net, torch.randn(4, 64), seconds=0.01, ways=["compiled"])
    assert found.model.note == "compiled not measured: compiled is not for this model"
    assert set(found.model.times) == {"forward", "backward"}


def test_a_model_that_cannot_be_exported_is_noted():
    class Odd(nn.Module):
        def forward(self, x):
            return x * x.sum().item() if x.sum() > 0 else x

    found = sparseloom.report(Odd(), torch.randn(4, 8), seconds=0.01, ways=["exported"])
    assert "exported not measured: " in found.model.note and "forward" in found.model.times


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        (["fast"], "ways of eager, compiled, exported, graph"),
        (["graph"], "a model on a GPU for the way graph"),
    ],
)
def test_wrong_ways_are_refused(ways, said):
    with pytest.raises(Error, match=said):
        sparseloom.report(model(), x(), ways=ways)


@pytest.mark.parametrize("sizes", [[0], [2.0], [True], [-1]])
def test_wrong_batch_sizes_are_refused(sizes):
    with pytest.raises(Error, match="batch_sizes of ints >= 1"):
        sparseloom.report(model(), x(), batch_sizes=sizes)


def test_a_batch_that_the_model_refuses_is_noted():
    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BlockSparseLinear(64, 64, density=0.5, block=16)

        def forward(self, x):
            return self.layer(x.view(-1, 2, 64))

    found = sparseloom.report(Even(), torch.randn(4, 64), seconds=0.01, batch_sizes=[3, 6])
    assert (
        found.batches[0].times is None
        and "not measured" in found.batches[0].note
        and found.batches[1].times["forward"] > 0
    )


def test_strict_names_every_layer_that_falls_back_and_measures_nothing(monkeypatch):
    net = nn.Sequential(
        BlockSparseLinear(64, 64, density=0.5, block=16),
        BlockSparseLinear(64, 64, density=0.5, block=16, dense_copy=True),
        BlockSparseLinear(64, 64, density=0.5, block=16).double(),
    )
    calls = []
    monkeypatch.setattr(whole, "in_turn", lambda calls_, *a, **k: calls.append(1) or [[1.0]] * len(calls_))
    net[1].requires_grad_(False)

    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net[2](self.net[1](self.net[0](x)).double())

    with torch.no_grad(), pytest.raises(Error) as error:
        sparseloom.report(Casting(), x(), strict=True)
    words = str(error.value)  # fp64 has no sparse kernel
    assert "net.1 (forward dense copy)" in words and re.search(
        r"net\.2 \(forward (dense|reference), dx", words
    )
    assert "net.0" not in words and not calls
    sparseloom.report(nn.Sequential(copy.deepcopy(net[0])), x(), seconds=0.01, strict=True)


def test_break_even_is_where_the_scaled_prediction_meets_the_measured_dense_time(monkeypatch):
    size = break_even.Size((512, 512), 256, torch.float32, torch.device("cpu"), True)
    us = {density: break_even.predicted(size, (32, 32), density, ["forward"])[0] for density in (0.3, 0.5)}
    assert us[0.3] < us[0.5]
    assert break_even.break_even(size, (32, 32), ["forward"], us[0.3]) == pytest.approx(0.3)
    assert break_even.break_even(size, (32, 32), ["forward"], us[0.5]) == pytest.approx(0.5)
    # Kernels twice as slow as predicted: the same dense time is met earlier.
    assert break_even.break_even(size, (32, 32), ["forward"], 2 * us[0.3], scale=2.0) == pytest.approx(0.3)
    assert break_even.break_even(size, (32, 32), ["forward"], us[0.3], scale=2.0) < 0.3
    assert break_even.break_even(size, (32, 32), ["forward"], 0.0) is None


def test_a_layers_break_even_is_scaled_to_its_own_measured_time():
    layer = BlockSparseLinear(512, 512, density=0.25, block=32)
    (weight,) = layer.sparse_weights().values()
    entry = layers.described("a", layer, weight, 256)
    plans = {direction: layer.plan(256, direction) for direction in ("forward", "dx", "dw")}
    own = {direction: break_even.fastest_sparse(plan)["predicted_us"] for direction, plan in plans.items()}
    entry.times = {"forward": 2 * own["forward"], "backward": 3 * (own["dx"] + own["dw"])}
    entry.dense_times = {"forward": 4 * own["forward"], "backward": 6 * (own["dx"] + own["dw"])}
    size = break_even.Size((512, 512), 256, torch.float32, torch.device("cpu"), True)
    assert layers.break_evens(entry, layer) == {
        "forward": pytest.approx(
            break_even.break_even(size, (32, 32), ["forward"], entry.dense_times["forward"], 2.0)
        ),
        "backward": pytest.approx(
            break_even.break_even(size, (32, 32), ["dx", "dw"], entry.dense_times["backward"], 3.0)
        ),
    }


def test_every_layer_gets_the_break_even_of_its_shape():
    net = nn.Sequential(
        *(BlockSparseLinear(256, 256, density=0.25, block=32) for _ in range(2)), nn.Linear(256, 4)
    )
    found = sparseloom.report(net, torch.randn(64, 256), seconds=0.01)
    first, second, dense = found.layers
    assert (
        set(first.break_even) == {"forward", "backward"}
        and first.break_even is second.break_even
        and not dense.break_even
    )
    assert all(even is None or 0 < even <= 1 for even in first.break_even.values())
    assert "Even: the density" in " ".join(str(found).split())
    first.break_even.update(forward=0.375, backward=None)
    text = str(found)
    assert " 0.38\n" in text and " never\n" in text and ">0.38</td>" in found.to_html()


def test_under_autocast_products_and_plans_are_those_of_autocast_and_both_sides_cast():
    net = nn.Sequential(BlockSparseLinear(64, 64, density=0.5, block=16))
    cached = []
    net[0].register_forward_pre_hook(lambda *a: cached.append(torch.is_autocast_cache_enabled()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = sparseloom.report(net, x(), seconds=0.01).layers[0]
        assert torch.is_autocast_cache_enabled() and cached and not any(cached)
    assert (
        layer.dtype == "bfloat16"
        and layer.kernels["forward"] == net[0].plan(12, "forward", torch.bfloat16)["kernel"]
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        with without_cast_cache():
            pass
        assert not torch.is_autocast_cache_enabled()


def test_a_compiled_model_is_reported_by_the_names_inside():
    net = model()
    found = sparseloom.report(torch.compile(net, backend="eager"), x(), seconds=0.01)
    assert "shared" in [layer.name for layer in found.layers] and found.model.dense_times
