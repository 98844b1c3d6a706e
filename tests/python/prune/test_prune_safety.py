"""prune_ ends with the same bits after a kill, and leaves the model alone on errors."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import forked
import pytest
import tiny_models
import torch
from pruning import EVERY, assert_same, bits, data, llama
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, InLayout, Semi24, prune_
from sparseloom.patch import forms
from sparseloom.patch.forms import LinearForm
from sparseloom.prune import prune_plan
from sparseloom.prune.residence import Residence
from sparseloom.sparsify import Context, ElementSparsifier, PerBlockNM


def stack_of_two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))


class Stop(BaseException):
    pass


OPTIONS: dict[str, dict[str, Any]] = {
    "sparsegpt": {},
    "everything": {"swaps": 3, "refit": 2, "reconstruct": 2},
    "wanda": {"method": "wanda"},
    "8 bits": {"quantize": "int8", "exchange": False},
    "bias": {"method": "wanda", "compensate_bias": True},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_resumes_to_the_same_bits_after_each_stage(options: str, tmp_path: Path) -> None:
    whole = llama()
    expected = prune_(whole, EVERY, data=data(), **OPTIONS[options])
    for stop in (1, 2):

        def until(done: int, total: int, name: str, stop: int = stop) -> None:
            assert total == 3
            if done == stop:
                raise Stop

        folder, model = tmp_path / str(stop), llama()
        before = bits(model)
        with pytest.raises(Stop):
            prune_(model, EVERY, data=data(), checkpoint=folder, progress=until, **OPTIONS[options])
        assert_same(model, before)
        result = prune_(model, EVERY, data=data(), checkpoint=folder, **OPTIONS[options])
        assert_same(model, bits(whole))
        assert result.layers == expected.layers
        assert len(list(folder.iterdir())) == 3


KILLED = """
import os
import torch
from sparseloom import Semi24, prune_

torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU()) for _ in range(3)]
model = torch.nn.Sequential(*blocks)
data = [torch.randn(64, 32) for _ in range(2)]
calls = 0


def kill(module, args):
    global calls
    calls += 1
    if calls == KILL:  # the run that finds the blocks, the capture's, then the second batch of the block
        os._exit(9)


blocks[1].register_forward_pre_hook(kill)
prune_(model, {".*": Semi24()}, data=data, checkpoint=FOLDER, exchange=False, progress=False)
torch.save([block[0].weight for block in blocks], "weights.pt")
"""


def test_resumes_after_a_kill_in_the_middle_of_a_block(tmp_path: Path) -> None:
    weights = []
    for folder, kills in (("whole", (0,)), ("killed", (5, 0))):
        for kill in kills:
            program = KILLED.replace("KILL:", f"{kill}:").replace("FOLDER", repr(folder))
            done = forked.run(program, tmp_path)
            assert done.returncode == (9 if kill else 0), done.stderr
            if kill:
                assert len(list((tmp_path / folder).iterdir())) == 1
        weights.append(torch.load(tmp_path / "weights.pt"))
    assert all(torch.equal(whole, again) for whole, again in zip(*weights, strict=True))


@pytest.mark.parametrize("change", ["data", "weights", "options"])
def test_a_checkpoint_of_another_run_is_refused(change: str, tmp_path: Path) -> None:
    prune_(llama(), EVERY, data=data(), checkpoint=tmp_path)
    model, batches, method = llama(), data(), "sparsegpt"
    if change == "data":
        batches[0][0, 0] += 1
    if change == "weights":
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    if change == "options":
        method = "wanda"
    before = bits(model)
    with pytest.raises(Error, match="another model, other data or other options"):
        prune_(model, EVERY, data=batches, method=method, checkpoint=tmp_path)
    assert_same(model, before)


def patterned(seed: int) -> dict[str, Any]:
    pattern = sparseloom.pattern.balanced(32, 32, 8, 0.5, seed=seed)
    return {"patterns": {".*": BlockSparse(select=pattern)}}


def masked(seed: int) -> dict[str, Any]:
    mask = torch.rand(32, 32, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[0, :3], mask[-1, -3:] = True, True  # all of a tensor that its text shows
    mask[0, -3:], mask[-1, :3] = False, False
    mask[1:3], mask[-3:-1] = True, False
    return {"patterns": {".*": InLayout("csr", mask=mask)}}


def budgeted(seed: int) -> dict[str, Any]:
    recipe = {".*": InLayout("csr", density=0.5)}
    return {"patterns": recipe, "budget": lambda known: dict.fromkeys(known, (seed + 1) / 4)}


def forwarded(seed: int) -> dict[str, Any]:
    return {"forward": (lambda model, x: model(x)) if seed else (lambda model, x: model(x.abs()))}


def biased(seed: int) -> dict[str, Any]:
    model = stack_of_two()
    model[0].bias.data.add_(seed)  # sees to it that the second layer has other inputs
    return {"model": model}


def activated(seed: int) -> dict[str, Any]:
    model = stack_of_two()
    model[1] = nn.Tanh() if seed else nn.ReLU()
    return {"model": model}


class Drawn(ElementSparsifier):
    """Half of each four, at random; its text shows where it lies."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def select(self, context: Context) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return PerBlockNM(2, 4).select_mask(torch.rand(context.weight.shape, generator=generator))

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        raise NotImplementedError


RUNS: dict[str, Callable[[int], dict[str, Any]]] = {
    "patterns": patterned,
    "masks": masked,
    "called budgets": budgeted,
    "forward": forwarded,
    "biases": biased,
    "activations": activated,
    "sparsifiers": lambda seed: {"method": Drawn(seed)},
}


@pytest.mark.parametrize("run", RUNS)
def test_a_checkpoint_serves_the_same_run_and_no_other(run: str, tmp_path: Path) -> None:
    alive, weights = [], []
    for seed, refused in ((0, False), (0, False), (1, True)):
        torch.manual_seed(0)
        model, data = stack_of_two(), [torch.randn(64, 32)]
        torch.manual_seed(0)
        options = {"model": model, "patterns": {".*": Semi24()}, "data": data} | RUNS[run](seed)
        alive.append(options)  # no two objects at one address
        with pytest.raises(Error, match="a checkpoint of this run") if refused else contextlib.nullcontext():
            prune_(**options, checkpoint=tmp_path, exchange=False)
        weights.append(options["model"][2].weight)
    assert torch.equal(weights[0], weights[1])


DAMAGED = {
    "cut": lambda whole: whole[:100],
    "bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "facts": lambda whole: whole.replace(b"tokens", b"token5", 1),
    "of an older version": lambda whole: whole.replace(b"sha256", b"sha-of", 1),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    prune_(llama(), EVERY, data=data(), checkpoint=tmp_path)
    file = sorted(tmp_path.iterdir())[1]
    file.write_bytes(DAMAGED[damage](file.read_bytes()))
    model = llama()
    before = bits(model)
    with pytest.raises(Error, match=r"stage-00001.*delete it"):
        prune_(model, EVERY, data=data(), checkpoint=tmp_path)
    assert_same(model, before)


def with_nan(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    batch["inputs_embeds"][0, 0, 0] = float("nan")
    return batch


def embeds() -> dict[str, Tensor]:
    return {"inputs_embeds": torch.randn(12, 9, 32, generator=torch.Generator().manual_seed(0))}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no data": ({}, "data to run the model on"),
    "empty": ({"data": []}, "at least one batch"),
    "used up": ({"data": iter(())}, "at least one batch"),
    "one tensor": ({"data": tiny_models.tokens(12, 9)}, "iterable of batches"),
    "no tensors": ({"data": ["text"]}, "batches with tensors"),
    "empty batch": ({"data": [tiny_models.tokens(12, 9)[:0]]}, "batches with elements"),
    "NaN": ({"data": [embeds(), with_nan(embeds())]}, "NaN or Inf in batch 1"),
    "too few tokens": ({"data": [tiny_models.tokens(3, 9)]}, "at least 32 tokens"),
    "too few for wanda": ({"data": [tiny_models.tokens(3, 9)], "method": "wanda"}, "at least 64 tokens"),
    "method": ({"data": data(), "method": "obs"}, "'magnitude', 'wanda', 'sparsegpt'"),
    "damping": ({"data": data(), "damping": 0.0}, "damping > 0"),
    "swaps": ({"data": data(), "swaps": -1}, "swaps to be an int >= 0"),
    "evaluate": ({"data": data(), "max_loss": 1.0}, "without evaluate"),
    "progress": ({"data": data(), "progress": 3}, "a bool or a function"),
    "data that the model refuses": ({"data": [torch.zeros(2, 2, 2, 2)]}, "Int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_leave_the_model_alone(case: str) -> None:
    options, told = REFUSED[case]
    model = llama().train()
    before = bits(model)
    with pytest.raises(RuntimeError, match=told):  # what the model raises is one too
        prune_(model, EVERY, **options)
    assert_same(model, before)
    assert all(module.training for module in model.modules())
    assert model.config.use_cache


TARGETS: dict[str, tuple[Any, str]] = {
    "transposable": (Semi24("transposable_exact"), "pass Semi24()"),
    "nmg": (InLayout("nmg", n=2, m=4, g=4), "elements that a method can choose"),
    "csr without density": (InLayout("csr"), "elements that a method can choose"),
    "no recipe": (0.5, "a BlockSparse, Semi24 or InLayout"),
}


@pytest.mark.parametrize("target", TARGETS)
def test_targets_that_no_method_can_choose_are_refused(target: str) -> None:
    recipe, told = TARGETS[target]
    with pytest.raises(Error, match=f"prune_.*{told}"):
        prune_(llama(), {".*mlp.*": recipe}, data=data())


@pytest.mark.parametrize("made", [False, True])
def test_inference_mode_is_refused_before_anything_changes(made: bool) -> None:
    model, x = nn.Sequential(nn.Linear(32, 16)), torch.randn(64, 32)
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(32, 16)) if made else model
    before = bits(model)
    with torch.inference_mode(not made), pytest.raises(Error, match=r"prune_.*inference_mode.*outside"):
        prune_(model, {"0": Semi24()}, data=[x], compensate_bias=True)
    assert_same(model, before)


def test_a_layer_that_the_data_never_reaches_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(8, 8), "unused": nn.Linear(8, 8)})
    model.forward = lambda x: model["used"](x)
    with pytest.raises(Error, match="inputs of unused"):
        prune_(model, {".*": Semi24()}, data=[torch.randn(64, 8)])


class Doubled(LinearForm):
    """A form of a user's own, for layers that multiply something else than their input."""

    def matches(self, module: nn.Module) -> bool:
        return getattr(module, "doubles", False)

    def kind(self, module: nn.Module) -> str:
        return "Doubled"


def test_layers_without_observed_inputs_are_skipped_or_pruned_by_magnitude(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "FORMS", [Doubled(), *forms.FORMS])
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 16)).eval()
    net[0].doubles = True
    batches = [torch.randn(64, 32)]
    result = prune_(copy.deepcopy(net), {".*": BlockSparse(block=8, density=0.5)}, data=batches)
    assert [change.names[0] for change in result.changed] == ["1"]
    assert "inputs of a Doubled are not observed" in str(result)
    result = prune_(net, {".*": BlockSparse(block=8, density=1.0)}, method="magnitude")
    assert [change.names[0] for change in result.changed] == ["0", "1"]


def test_grouped_convolutions_are_refused_in_words() -> None:
    net = nn.Sequential(nn.Conv2d(16, 16, 3, groups=2), nn.Conv2d(16, 16, 3))
    result = prune_(net, {".*": BlockSparse(block=8, density=0.5)}, data=[torch.randn(20, 16, 8, 8)])
    assert [change.names[0] for change in result.changed] == ["1"]
    assert "its 2 groups are block-diagonal already" in str(result)


def test_the_plan_is_told_and_changes_nothing() -> None:
    model = llama()
    before = bits(model)
    plan = prune_plan(model, EVERY, data=data(), device="cpu")
    assert_same(model, before)
    assert (plan.layers, plan.blocks, plan.outside, plan.batches) == (15, 2, 1, 2)
    block = sum(p.numel() * 4 for p in model.model.layers[0].parameters())
    gram = 4 * 72 * 72
    assert plan.on_device > block + gram
    assert plan.on_host > 2 * 12 * 9 * 32 * 4
    assert "15 layers by sparsegpt over 2 batches: 2 blocks" in str(plan)


def test_one_block_at_a_time_lies_on_the_device() -> None:
    """With a device, the model's own memory is written, never replaced."""
    plain, model = llama(), llama()
    homes = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    prune_(plain, EVERY, data=data(), exchange=False)
    prune_(model, EVERY, data=data(), exchange=False, device="cpu")
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == homes
    assert_same(model, bits(plain))


def test_sparse_models_compute_what_the_zeros_do() -> None:
    zeros, sparse, x = llama(), llama(), tiny_models.tokens(3, 9)
    prune_(zeros, EVERY, data=data(), exchange=False)
    prune_(sparse, EVERY, data=data())
    with torch.no_grad():
        torch.testing.assert_close(sparse(x).logits, zeros(x).logits, rtol=1e-4, atol=1e-5)


def test_optimizers_get_the_new_parameters_and_results_are_plain_data() -> None:
    model = stack_of_two()
    optimizer = torch.optim.Adam(model.parameters())
    batches = [torch.randn(64, 32)]
    result = prune_(model, {".*": BlockSparse(block=8, density=0.5)}, data=batches, optimizer=optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    plain = json.loads(json.dumps(result.to_dict()))
    assert [layer["name"] for layer in plain["layers"]] == ["0", "2"]
    assert plain["plan"]["layers"] == 2


@pytest.mark.parametrize("fails", [False, True])
def test_torchs_switches_are_as_before(fails: bool) -> None:
    def forward(model: nn.Module, batch: Tensor) -> None:
        assert not torch.backends.mha.get_fastpath_enabled()
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert not torch.is_grad_enabled()
        assert not model.training
        if fails:
            raise Stop
        model(batch)

    model, matmul = stack_of_two().train(), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(Stop) if fails else contextlib.nullcontext():
            prune_(model, {".*": Semi24()}, data=[torch.randn(64, 32)], forward=forward)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.is_grad_enabled()
    assert model.training


def test_a_block_moves_where_it_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the run that finds the blocks, once to be pruned; the first also while inputs are captured."""
    model, moved = llama(), list[set[int]]()
    own = Residence.of

    def of(residence: Residence, modules: Iterable[nn.Module]) -> Any:
        found = list(modules)
        if residence.device is not None:
            moved.append({id(module) for module in found})
        return own(residence, found)

    monkeypatch.setattr(Residence, "of", of)
    prune_(model, {r".*(self_attn|mlp).*": Semi24()}, data=data(), device="cpu")
    layers = [layer.input_layernorm for layer in model.model.layers]
    counts = [sum(id(layer) in each for each in moved) for layer in layers]
    assert counts == [3, 2]
    assert sum(id(model.lm_head) in each for each in moved) == 2  # runs of the whole model
