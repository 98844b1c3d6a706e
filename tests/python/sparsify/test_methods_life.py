"""What happens to methods in a training: accumulation, overflow, NaN, full and empty weights, mistakes."""

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, batches, begin, model, start, train
from torch import nn

import sparseloom
from sparseloom import BlockSparse, Error, pack_, sparsify_
from sparseloom import sparsify as S
from sparseloom.nn import BlockSparseLinear, MaskedLinear
from sparseloom.sparsify import methods as M
from sparseloom.sparsify.grid import expanded


def test_a_change_amid_gradient_accumulation_keeps_what_was_gathered():
    net, optimizer, run = start("set")
    layer = net[0]
    (x, y), (x2, y2) = batches(2)
    train(net, optimizer, run, batches(3))
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    old = layer.pattern.mask
    first = layer.sparse_weights()["values"].unpacked(layer.values.grad).clone()
    run.step()  # the fourth: it moves
    kept = expanded(old & layer.pattern.mask, (8, 8), (96, 64))
    assert not torch.equal(old, layer.pattern.mask)
    weight = layer.sparse_weights()["values"]
    assert torch.equal(weight.unpacked(layer.values.grad), first * kept)
    only_second = copy.deepcopy(net)
    only_second.zero_grad()
    F.cross_entropy(only_second(x2), y2).backward()
    F.cross_entropy(net(x2), y2).backward()
    wanted = first * kept + weight.unpacked(only_second[0].values.grad)
    torch.testing.assert_close(weight.unpacked(layer.values.grad), wanted)


def test_a_step_that_grad_scaler_skipped_postpones_the_change():
    net, optimizer, run = start("rigl")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data, masks = batches(7), []
    for step, (x, y) in enumerate(data, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        scaler.scale(loss * (float("inf") if step == 4 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        before = net[0].pattern.mask
        run.step()
        masks.append(torch.equal(before, net[0].pattern.mask))
    assert masks == [True, True, True, True, False, True, True]
    assert net[0].values.isfinite().all()


def test_attached_to_an_optimizer_only_its_own_steps_count():
    net, optimizer, run = start("rigl")
    assert run.attach(optimizer) is run and len(run.optimizers) == 1
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step, (x, y) in enumerate(batches(6), 1):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(net(x), y) * (float("inf") if step == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert run.steps == 5
    with pytest.raises(Error, match="one optimizer"):
        run.attach(optimizer)
    run.detach()
    optimizer.step()
    assert run.steps == 5


@pytest.mark.parametrize("name", ["rigl", "set", "gradual", "supermask"])
def test_nan_scores_are_named_and_change_nothing(name):
    net, optimizer, run = start(name)
    train(net, optimizer, run, batches(3))
    held = run.weights[0]
    parameter = net[0].values if isinstance(net[0], BlockSparseLinear) else net[0].weight
    if name == "supermask":
        parameter = net[0].gate.scores
    before = held.present()
    with torch.no_grad():
        parameter.view(-1)[5] = float("nan")
    with pytest.raises(Error, match="NaN"):
        train(net, optimizer, run, batches(1))
    assert torch.equal(held.present(), before)


def test_a_change_notices_the_nan_that_a_gate_on_a_gpu_does_not():
    net, _, run = start("supermask")
    with torch.no_grad():
        net[0].gate.scores[0, 1] = float("nan")
    with pytest.raises(Error, match="scores of 0 without NaN"):
        for _ in range(100):  # the schedule's own pace
            run.step()


@pytest.mark.parametrize("name", ["rigl", "set", "decreasing", "supermask", "movement", "ac/dc", "spartan"])
def test_with_no_inactive_block_left_all_stay(name):
    net, optimizer, run = begin(BlockSparse(8, 1.0, method=METHODS[name][0]))
    train(net, optimizer, run, batches(9))
    assert run.densities() == {"0": 1.0, "2": 1.0}


def test_a_weight_may_lose_all_its_blocks():
    method = S.Method(
        select=S.select.Threshold(least=0.0),
        schedule=S.schedules.Rising(1e3, 1, 2, 3, 1),
        gradient=S.gradients.Masked(),
    )
    net, optimizer, run = begin(BlockSparse(8, method=method), "0")
    train(net, optimizer, run, batches(5))
    assert run.densities() == {"0": 0.0}
    x = batches(1)[0][0]
    expected = net(x)
    pack_(net, optimizer=optimizer)
    torch.testing.assert_close(net(x), expected)
    assert net[0].pattern.blocks == 0


@pytest.mark.parametrize("name", ["rigl", "set"])
def test_new_blocks_may_be_drawn_and_are_no_constant(name):
    """A trap of others' code: an integer draw from [0, 1) made every new block the same constant."""
    growing = S.regrow.Gradient(init="uniform") if name == "rigl" else S.regrow.Random(init="uniform")
    method = S.Method(schedule=S.schedules.Constant(1), regrow=growing)
    net, optimizer, run = begin(BlockSparse(8, 0.25, method=method), "0", torch.optim.SGD)
    old = net[0].pattern.mask
    train(net, optimizer, run, batches(1))
    new = net[0].pattern.mask
    slots = (new & ~old)[new]
    fresh = net[0].values[slots]
    per_row = new.sum(1)[new.nonzero()[:, 0][slots]]
    assert len(fresh) and all(block.unique().numel() > 32 for block in fresh)
    for block, count in zip(fresh, per_row, strict=True):
        assert float(block.detach().abs().max()) <= 1 / math.sqrt(int(count) * 8)


def test_from_dense_positions_stay_where_they_were():
    """A trap of others' code: values packed in the order of a list of blocks, and not at their places."""
    net, _, _ = start("rigl")
    dense, sparse = model()[0], net[0]
    kept = expanded(sparse.pattern.mask, (8, 8), (96, 64))
    assert torch.equal(sparse.to_dense().weight, dense.weight * kept)


@pytest.mark.parametrize("name", ["gradual", "supermask", "rigl"])
def test_a_compiled_model_trains_as_an_eager_one(name):
    ends = []
    for wrap in (lambda net: net, lambda net: torch.compile(net, backend="aot_eager")):
        net, optimizer, run = start(name)
        compiled = wrap(net)
        for x, y in batches(6):
            optimizer.zero_grad()
            F.cross_entropy(compiled(x), y).backward()
            optimizer.step()
            run.step()
        ends.append((run.densities(), net[0].pattern.mask))
    assert ends[0][0] == ends[1][0] and torch.equal(ends[0][1], ends[1][1])


def test_a_method_of_your_own_fits_into_thirty_lines():
    """The page's example is run by test_house.py; its class and its Method, without the model that they
    train, are counted here."""
    page = (Path(__file__).parents[3] / "docs" / "methods.md").read_text()
    own = page.split("## A method of your own")[1].split("```python\n")[1].split("```")[0]
    lines = [line for line in own.splitlines() if line.strip()]
    model = next(number for number, line in enumerate(lines) if line.startswith("model = "))
    assert lines[0].startswith("class ") and any(
        line.startswith("mine = S.Method(") for line in lines[:model]
    )
    assert model < 30


def test_a_layer_that_took_no_part_keeps_its_blocks_and_holds_nobody_back():
    net, optimizer, run = start("rigl")
    used, unused = net[0].pattern.mask, net[2].pattern.mask
    for x, _ in batches(4):
        optimizer.zero_grad()
        net[0](x).square().mean().backward()
        optimizer.step()
        run.step()
    assert not torch.equal(net[0].pattern.mask, used) and torch.equal(net[2].pattern.mask, unused)


def test_the_signal_of_mixed_precision_is_that_of_float32():
    masks = []
    for dtype in (torch.float32, torch.bfloat16):
        net, _, run = start("rigl")
        run.steps = 3
        run.load_state_dict(run.state_dict())
        x, y = batches(1)[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            F.cross_entropy(net(x), y).backward()
        masks.append(run.weights[0].gradient_scores("l2"))
    torch.testing.assert_close(*masks, atol=1e-3, rtol=0.05)


def test_a_weight_that_torch_masks_is_refused_by_methods_with_a_master():
    from torch.ao.pruning import WeightNormSparsifier

    net = nn.Sequential(nn.Linear(64, 64))
    pruner = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 4), zeros_per_block=2)
    pruner.prepare(net, [{"tensor_fqn": "0.weight"}])
    with pytest.raises(Error, match="squash_mask"):
        sparsify_(net, {"0": BlockSparse(8, 0.5, method=M.supermask())})


@pytest.mark.parametrize("name", ["rigl", "gradual"])
def test_a_weight_that_fully_shard_cut_up_is_refused(name):
    net, optimizer, run = start(name)
    parameter = net[0].values if name == "rigl" else net[0].weight
    parameter.placements = ("S(0)",)  # as a DTensor has them
    with pytest.raises(Error, match="fully_shard"):
        train(net, optimizer, run, batches(4))


def test_micro_batches_grow_what_their_batch_grows():
    ends = []
    for parts in (1, 4):
        net, optimizer, run = start("rigl")
        for x, y in batches(4):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(net(xs), ys) / parts).backward()
            optimizer.step()
            run.step()
        ends.append(net[0].pattern.mask)
    assert torch.equal(*ends)


def test_a_user_module_with_sparse_weights_is_driven_too():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = BlockSparseLinear(32, 32, block=8, density=0.5)

        def forward(self, x):
            return self.inner(self.inner(x))

        def sparse_weights(self):
            return sparseloom.nn.held.sparse_weight.held(self, {"inner": ("inner.weight", "")})

        def to_dense(self):
            raise NotImplementedError

        def describe(self):
            return sparseloom.nn.held.sparse_weight.held_descriptions(self, ["inner"])

    net = nn.Sequential(Twice())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    run = sparseloom.patch.drive(net, M.rigl(100, 1), optimizer=optimizer)
    x = torch.randn(5, 32)
    old = net[0].inner.pattern.mask
    net(x).square().sum().backward()
    optimizer.step()
    run.step()
    assert not torch.equal(net[0].inner.pattern.mask, old) and run.densities() == {"0.inner": 0.5}


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: BlockSparse(8, 0.5, method=3), "method to be a Method or its name, got 3"),
        (lambda: BlockSparse(8, 0.5, method="rigel"), "a method of ac_dc, .*rigl, .*got 'rigel'"),
        (lambda: BlockSparse(8, 0.5, method=S.Method(schedule=S.schedules.Cubic())), "one density"),
        (lambda: BlockSparse(8, method=M.rigl(100)), "expected a density"),
        (lambda: BlockSparse(8, method=M.supermask()), "expected a density"),
        (lambda: BlockSparse(8, 0.5, method=M.l0(0.1)), "no density"),
        (lambda: BlockSparse(8, 0.5, method=M.soft_movement(1, 9)), "no density"),
        (lambda: sparsify_(model(), {"0": BlockSparse(8, 0.5)}).method, "a pattern with a method"),
        (lambda: pack_(model()), "layers that a method trains"),
        (
            lambda: sparsify_(
                nn.Sequential(nn.Conv2d(16, 16, 1)), {"0": BlockSparse(8, 0.5, method=M.supermask())}
            ),
            "masked layer",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(Error, match=words):
        make()


def test_a_run_that_knows_no_optimizer_says_so_at_its_first_step():
    net = model()
    run = sparsify_(net, {"0": BlockSparse(8, 0.25, method=M.rigl(100))}).method
    with pytest.raises(Error, match="an optimizer whose state moves"):
        run.step()
    run.optimizers = []
    run.step()
    assert run.steps == 1
    supermask = sparsify_(net, {"2": BlockSparse(8, 0.25, method=M.supermask())}).method
    supermask.step()  # moves no state


@pytest.mark.parametrize("name", ["rigl", "set", "movement", "l0", "spartan", "gradual"])
def test_the_default_device_and_dtype_do_not_matter(name):
    net, optimizer, run = start(name)
    data = batches(6)
    for tensor in [*net.parameters(), *net.buffers()]:
        assert not tensor.is_meta
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        train(net, optimizer, run, data)
        pack_(net)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert all(parameter.isfinite().all() for parameter in net.parameters())


MASKED = [name for name in METHODS if name not in ("set", "rigl")]


def halfway(name):
    """A model under masks after half of its training, in evaluation, with what it gives for ``x``."""
    net, optimizer, run = start(name)
    train(net, optimizer, run, batches(9))
    x = torch.randn(8, 64)
    return net.eval(), optimizer, x, net(x).detach()


@pytest.mark.parametrize("name", MASKED)
def test_a_file_saved_before_pack_is_loaded(name, tmp_path):
    """Into a model of the same method, and into a dense one where no gate is needed."""
    net, _, x, wanted = halfway(name)
    sparseloom.save(net, tmp_path / "masked")
    again = start(name)[0].eval()
    sparseloom.load(tmp_path / "masked", again)
    assert torch.equal(again(x), wanted)
    dense = model(1).eval()
    before = dense(x)
    if net[0].gate is None:
        sparseloom.load(tmp_path / "masked", dense, sparsify=True)
        assert isinstance(dense[0], MaskedLinear) and torch.equal(dense(x), wanted)
        pack_(dense), pack_(net)
        assert torch.equal(dense(x), net(x))
    else:
        with pytest.raises(Error, match="sparsify_ the model with the method that it had"):
            sparseloom.load(tmp_path / "masked", dense, sparsify=True)
        assert torch.equal(dense(x), before) and type(dense[0]) is nn.Linear
    with pytest.raises(Error, match="pack_ it first"):
        sparseloom.save(model(), tmp_path / "dense")
        sparseloom.load(tmp_path / "dense", again)


def test_a_file_of_masked_elements_keeps_what_pack_stores_them_in(tmp_path):
    method = S.Method(S.scores.Norm("l1"), S.select.NM(8), S.schedules.Cubic(1, 1), S.gradients.Masked())
    recipe = sparseloom.InLayout("nm", n=2, m=8, method=method)
    net, _, run = begin(recipe)
    run.step()
    sparseloom.save(net, tmp_path / "masked")
    dense = model(1)
    sparseloom.load(tmp_path / "masked", dense, sparsify=True)
    assert "n:m" in str(pack_(dense)).splitlines()[0]
    pack_(net)
    x = torch.randn(8, 64)
    assert torch.equal(dense(x), net(x))


@pytest.mark.parametrize("name", MASKED)
def test_densify_makes_masked_layers_what_they_compute(name):
    net, optimizer, x, wanted = halfway(name)
    bias, kept = net[0].bias, net[0].pack().to_dense().weight != 0
    result = sparseloom.densify_(net, optimizer=optimizer)
    assert type(net[0]) is nn.Linear and net[0].bias is bias and len(result.changed) == 2
    torch.testing.assert_close(net(x), wanted, rtol=1e-5, atol=1e-5)
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in net.parameters()}
    if name != "group lasso":  # which shrinks kept weights to zero
        moments = optimizer.state[net[0].weight]
        assert not moments or not moments["exp_avg"][~kept].any()


@pytest.mark.parametrize("name", ["gradual", "movement"])
def test_report_and_quantize_know_masked_layers(name):
    net, _, x, _ = halfway(name)
    report = sparseloom.report(net, x, seconds=0.01)
    totals, weights = report.totals, 64 * 96 + 96 * 40
    pruned = [int((~expanded(net[i].mask, (8, 8), net[i].weight.shape)).sum()) for i in (0, 2)]
    assert totals.dense_parameters == sum(each.numel() for each in model().parameters())
    assert (totals.sparse_share, totals.masked) == (weights / totals.dense_parameters, sum(pruned))
    assert "% masked until pack_" in " ".join(str(report).split()) and report.model.dense_times is not None
    masked = {layer.name: layer.density for layer in report.layers if layer.layout == "masked"}
    assert masked == {name: net.get_submodule(name).mask.float().mean().item() for name in "02"}
    with pytest.raises(Error, match=r"0, 2, 4, which have no 8-bit layer: it trains .* call pack_ first"):
        sparseloom.quantize_(net)


def test_the_fused_path_of_torchs_encoder_does_not_read_a_master():
    """It hands the weights of its layers to one operator, which knows of no mask."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    net = nn.TransformerEncoder(layer, 1).eval()
    recipe = BlockSparse(16, 0.25, method=M.gradual(0, 1, 1))
    sparsify_(net, {r".*linear1": recipe}, optimizer=[]).method.step()
    for hooks in (net.layers[0].linear1._forward_hooks, net.layers[0].linear1._forward_pre_hooks):
        hooks.clear()  # which would keep torch off it
    x = torch.randn(2, 8, 64)
    wanted = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net(x), wanted, rtol=1e-4, atol=1e-5)


def test_pack_says_what_layers_became_and_which_blocks_moved():
    net, optimizer, run = begin(sparseloom.InLayout("csr", density=0.25, method=M.gradual(0, 1, 1)))
    run.step()
    share = float(net[0].effective().abs().sum() / net[0].weight.abs().sum())
    result = pack_(net, optimizer)
    assert str(result).startswith("2 layers became CSR; ") and 0.25 < share < 0.9
    assert result.changed[0].kept == pytest.approx(share) and "of sum |w|" in str(result)
    net, optimizer, run = start("rigl")
    assert str(pack_(net, optimizer)).startswith(
        "2 layers keep the blocks that they have moved to: 0 (density"
    )
