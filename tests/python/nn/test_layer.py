"""BlockSparseLinear as a module: initial values, shapes of x, dtypes, autocast, optimizers."""

import math
import re

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.ops import autograd, operators


def make(*sizes, **options):
    torch.manual_seed(0)
    return BlockSparseLinear(*(sizes or (100, 70)), **({"density": 0.5, "block": 16} | options))


def twin(layer):
    return layer.to_dense()


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_parameters_and_buffers_are_as_documented():
    layer = make(block=(16, 32))
    assert [(name, tuple(p.shape)) for name, p in layer.named_parameters()] == [
        ("values", (10, 16, 32)),
        ("bias", (70,)),
    ]
    assert set(layer.state_dict()) == {"values", "bias", "crow", "col"}
    assert layer.crow.dtype == layer.col.dtype == torch.int32
    assert layer.crow.tolist()[0] == 0 and layer.crow.tolist()[-1] == len(layer.col) == 10
    assert (layer.pattern.rows, layer.pattern.cols, layer.block, layer.density) == (70, 100, (16, 32), 0.5)
    assert "bias" not in make(bias=False).state_dict()


def test_default_pattern_is_balanced():
    counts = make(1000, 500, density=0.1, block=32).pattern.mask.sum(1)
    assert counts.max() - counts.min() <= 1 and counts.sum() == round(0.1 * 32 * 16)


def test_initial_values_scale_with_the_true_fan_in():
    mask = torch.zeros(3, 40, dtype=torch.bool)
    mask[0, :1], mask[1, :40] = True, True  # fan-in 32, 1280 - 10 = 1270 (ragged), none
    layer = BlockSparseLinear(1270, 90, pattern=sparseloom.Pattern(90, 1270, 32, mask))
    for block_row, fan_in in ((0, 32), (1, 1270)):
        bound = 1 / math.sqrt(fan_in)
        values = layer.values.detach()[layer.crow[block_row] : layer.crow[block_row + 1]]
        assert 0.95 * bound < values.abs().max() <= bound
        assert abs(values[values != 0].std() - bound / math.sqrt(3)) < 0.1 * bound
        assert layer.bias.detach()[32 * block_row : 32 * block_row + 32].abs().max() <= bound
    assert (layer.bias.detach()[64:] == 0).all()  # no inputs, no bias
    dense = layer.to_dense().weight
    assert torch.equal(sparseloom.nn.BlockSparseLinear.from_dense(dense, layer.pattern).values, layer.values)


def test_padding_starts_at_zero_and_stays_there_in_training():
    layer = make(100, 70, density=1.0)
    inside = BlockSparseLinear.from_dense(torch.ones(70, 100), layer.pattern).values.detach() == 1
    optimizer = torch.optim.AdamW(layer.parameters(), weight_decay=0.1)
    for _ in range(3):
        layer(torch.randn(9, 100)).square().sum().backward()
        optimizer.step()
    assert (layer.values.detach()[~inside] == 0).all() and (layer.values.detach()[inside] != 0).all()


def test_generator_decides_pattern_and_values():
    a, b, c = (make(seed=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert a.pattern == b.pattern and torch.equal(a.values, b.values) and torch.equal(a.bias, b.bias)
    assert a.pattern != c.pattern


@pytest.mark.parametrize(
    "shape",
    [(100,), (5, 100), (2, 3, 100), (2, 3, 4, 100), (2, 1, 3, 1, 100), (0, 100), (1, 100), (3, 0, 100)],
)
def test_x_of_any_dimensions(shape):
    layer, x = make(), torch.randn(shape)
    y = layer(x)
    assert y.shape == (*shape[:-1], 70)
    close(y, twin(layer)(x))


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_activations_agree_with_torch_fused_and_not(activation, bias):
    layer, x = make(activation=activation, bias=bias), torch.randn(7, 100)
    expected = twin(layer)(x)
    close(layer(x), expected)
    with torch.no_grad():
        close(layer(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    layer = make(dtype=dtype)
    x = torch.randn(7, 100, dtype=dtype, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == layer.values.grad.dtype == layer.bias.grad.dtype == dtype
    moved = make().to(dtype)
    assert moved.values.dtype == dtype and moved.crow.dtype == torch.int32 and moved(x).dtype == dtype
    assert make().half().values.dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_for_nn_linear(dtype):
    layer, x = make(), torch.randn(7, 100, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        y, expected = layer(x), twin(layer)(x)
        assert layer(x.double().to(dtype)).dtype == dtype
    assert y.dtype == expected.dtype == dtype
    torch.testing.assert_close(y, expected, atol=2e-2, rtol=2e-2)
    y.sum().backward()
    assert x.grad.dtype == layer.values.grad.dtype == layer.bias.grad.dtype == torch.float32
    double = make(dtype=torch.float64)
    with torch.autocast("cpu", dtype=dtype):
        assert double(x.double()).dtype == torch.float64


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_trains_it(name):
    layer = make(activation="relu")
    head = nn.Linear(70, 3)
    x, target = torch.randn(32, 100), torch.randn(32, 3)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = OPTIMIZERS[name](parameters)

    def step():
        optimizer.zero_grad()
        loss = (head(layer(x)) - target).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        return loss

    first = step().item()
    for _ in range(20):
        optimizer.step(step)
    assert step().item() < 0.7 * first
    assert layer.to_dense()[0].weight.count_nonzero() <= layer.pattern.stats().elements


def test_strict_forbids_dense_by_name():
    layer, x = make(), torch.randn(3, 100)
    layer.strict = True
    refusals = {candidate["kernel"]: candidate["refusal"] for candidate in layer.plan(64)["candidates"]}
    assert "strict" in refusals["dense"] and "strict" in refusals["reference"]
    with pytest.raises(sparseloom.Error, match="strict"):
        sparseloom.ops.linear(x, layer.values, layer.index, strict=True, kernel="dense")
    assert "strict=True" in repr(layer)


def test_strict_says_that_only_the_reference_kernel_takes_float64():
    layer = make().double()
    layer.strict = True
    with pytest.raises(sparseloom.Error, match="reference: strict forbids"):
        layer(torch.randn(3, 100, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["dense", "reference"])
def test_strict_names_the_fallback_that_it_forbids(kernel):
    layer, x, dy = make(), torch.randn(3, 100), torch.randn(3, 70)
    for call in (
        lambda: sparseloom.ops.linear(x, layer.values, layer.index, strict=True, kernel=kernel),
        lambda: sparseloom.ops.linear_dx(dy, layer.values, layer.index, strict=True, kernel=kernel),
        lambda: sparseloom.ops.linear_dw(dy, x, layer.index, strict=True, kernel=kernel),
        lambda: sparseloom.ops.plan(layer.index, "forward", x.dtype, 3, strict=True, kernel=kernel),
    ):
        with pytest.raises(sparseloom.Error, match=f"{kernel}: .*strict forbids"):
            call()


@pytest.mark.parametrize("strict", [False, True])
def test_a_layers_strictness_reaches_every_product(strict, monkeypatch):
    layer, seen = make(), {}
    layer.strict = strict
    monkeypatch.setattr(autograd, "CPU_FUSES", (None, "gelu"))  # as on CUDA
    names = {"linear_eagerly": 8, "linear_train": 8, "linear_backward": 12}
    for name, position in names.items():
        real = getattr(operators, name)

        def spy(*arguments, name=name, real=real, position=position):
            seen.setdefault(name, set()).add(arguments[position])
            return real(*arguments)

        monkeypatch.setattr(operators, name, spy)
    for layer.activation in (None, "gelu"):
        layer(torch.randn(3, 100, requires_grad=True)).sum().backward()
    with torch.no_grad():
        layer(torch.randn(3, 100))
    assert seen == {name: {strict} for name in names}


def test_plan_tells_what_would_run_and_why():
    layer = make(activation="gelu")
    for direction in ("forward", "dx", "dw"):
        plan = layer.plan(64, direction)
        assert plan["kernel"] in sparseloom.info()["kernels"]
        candidates = {candidate["kernel"] for candidate in plan["candidates"]}
        assert candidates == set(sparseloom.info()["kernels"]) - {"amx_int8_tile", "avx512vnni_panel"}
        assert direction in plan["text"] and plan["kernel"] in plan["text"]
    assert make(device="meta").plan(64)["kernel"] in sparseloom.info()["kernels"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_plan_measures_its_candidates_beside_their_predictions(direction, dtype):
    layer = make(256, 192, activation="gelu")
    told = layer.plan(64, direction, dtype)
    plan = layer.plan(64, direction, dtype, measure=True)
    assert plan["kernel"] == told["kernel"] and plan["measured_us"] > 0
    for candidate in plan["candidates"]:
        us = candidate["measured_us"]
        assert us is None or (us > 0 and not candidate["refusal"])
        lines = [
            line
            for line in plan["text"].split("\n")
            if re.search(rf" {candidate['kernel']}[,:]", line) and "predicted" in line
        ]
        assert [("measured" in line) for line in lines] == [us is not None] * len(lines)
    assert sum(c["measured_us"] is not None for c in plan["candidates"]) >= 1
    assert ", measured " not in told["text"] and "measured_us" not in told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plan_tells_of_a_call_with_a_residual(dtype):
    layer = make(256, 192, activation="gelu")
    plan = layer.plan(64, dtype=dtype, residual=True)
    assert (
        " gelu_erf residual threads" in plan["text"].split("\n")[0]
        and "residual" not in layer.plan(64)["text"]
    )
    called = layer.to(dtype)
    with torch.no_grad():  # what the plan says could run takes such a call
        x, residual = torch.randn(64, 256).to(dtype), torch.randn(64, 192).to(dtype)
        for candidate in plan["candidates"]:
            if not candidate["refusal"]:
                sparseloom.ops.linear(
                    x,
                    called.values,
                    called.index,
                    called.bias,
                    "gelu",
                    kernel=candidate["kernel"],
                    residual=residual,
                )
    assert layer.plan(64, residual=True, measure=True)["measured_us"] > 0


def test_plan_tells_of_a_dw_that_is_added_to_main_grad():
    layer = make(256, 192)
    assert " accumulate" not in layer.plan(64, "dw")["text"]
    asked = layer.plan(64, "dw", torch.bfloat16, accumulate=True)
    layer.fuse_wgrad_accumulation = True
    assert (
        layer.plan(64, "dw", torch.bfloat16) == asked
        and " accumulate threads" in asked["text"].split("\n")[0]
    )
    others = layer.plan(64, "dw", accumulate=False), layer.plan(64, "dx"), layer.plan(64)
    assert not any(" accumulate" in plan["text"] for plan in others)
    assert layer.plan(64, "dw", torch.bfloat16, measure=True)["measured_us"] > 0


def test_plan_refuses_to_measure_where_there_is_nothing_to_run():
    with pytest.raises(sparseloom.Error, match=r"\[plan\].*a layer with values.*meta"):
        make(device="meta").plan(64, measure=True)
    with pytest.raises(sparseloom.Error, match=r"\[plan\].*the layer's own device"):
        make().plan(64, device="cuda", measure=True)


def test_repr_names_what_matters():
    text = repr(make(activation="gelu", bias=False))
    for part in (
        "in_features=100",
        "out_features=70",
        "bias=False",
        "block=16x16",
        "density=0.5",
        "activation=gelu",
    ):
        assert part in text


def test_works_inside_sequential_and_functional_call():
    model = nn.Sequential(make(), nn.ReLU(), make(70, 20))
    x = torch.randn(4, 100)
    doubled = {name: 2 * p.detach() for name, p in model[0].named_parameters()}
    close(torch.func.functional_call(model[0], doubled, x), 2 * model[0](x))
    assert model(x).shape == (4, 20)


def test_full_pattern_is_nn_linear():
    layer = BlockSparseLinear(65, 33, pattern=pattern.full(33, 65, 32))
    x = torch.randn(6, 65)
    close(layer(x), layer.to_dense()(x))
    assert torch.count_nonzero(layer.to_dense().weight) == 65 * 33


def test_a_call_never_takes_the_slow_way_of_attribute_look_up(monkeypatch):
    layer, asked = BlockSparseLinear(16, 16, density=0.5, block=8), []
    monkeypatch.setattr(BlockSparseLinear, "__getattr__", lambda self, name: asked.append(name))
    layer(torch.randn(2, 16))
    assert asked == []


@pytest.mark.parametrize("block", [8, (16, 32)])
def test_the_packed_index_holds_both_directions(block):
    index = BlockSparseLinear(100, 70, density=0.4, block=block).index
    crow, col, ccol, row, slot = index.lists()
    places = [(r, int(col[i])) for r in range(len(crow) - 1) for i in range(crow[r], crow[r + 1])]
    by_column = sorted(range(len(places)), key=lambda i: places[i][::-1])
    assert slot.tolist() == by_column and row.tolist() == [places[i][0] for i in by_column]
    assert ccol.diff().tolist() == [sum(c == j for _, c in places) for j in range(len(ccol) - 1)]
    assert all(each.data_ptr() % 64 == index.packed.data_ptr() % 64 for each in (crow, col, ccol, row, slot))
    for name, each in zip(("crow", "col", "ccol", "row", "slot"), index.lists(), strict=True):
        assert torch.equal(getattr(index, name), each)


@pytest.mark.parametrize("more", [-1, 1])
def test_values_of_another_number_of_blocks_are_refused(more):
    index, x = BlockSparseLinear(100, 70, density=0.4, block=8).index, torch.randn(3, 100)
    with pytest.raises(sparseloom.Error, match=f"packed index of {index.blocks + more} blocks"):
        ops.linear(x, torch.randn(index.blocks + more, 8, 8), index)
