"""dense_copy: calls for inference multiply with a dense copy of the weight, and never with a stale one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import sparseloom
from sparseloom import BlockSparse, Error, ops
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear
from sparseloom.nn.held import dense_copy
from sparseloom.patch.described import described, make_described

X = torch.randn(5, 100, generator=torch.Generator().manual_seed(1))


def make(setting: Any = True, **options: Any) -> BlockSparseLinear:
    generator = torch.Generator().manual_seed(0)
    sizes = {"density": 0.5, "block": 16, "activation": "silu"} | options
    return BlockSparseLinear(100, 70, dense_copy=setting, seed=generator, **sizes)


def blocks(layer: BlockSparseLinear, x: torch.Tensor = X) -> torch.Tensor:
    """What the layer's blocks give, whatever it keeps."""
    return ops.linear(x, layer.values, layer.index, layer.bias, layer.activation).detach()


def copied(layer: BlockSparseLinear, x: torch.Tensor = X) -> bool:
    """Calls the layer for inference, and returns whether it multiplied with a copy. Either way, the result
    must be that of the blocks as they are now."""
    products: list[torch.Tensor] = []

    def seen(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        products.append(weight)
        return nn.functional.linear(x, weight, bias)

    namespace = type("F", (), {"linear": staticmethod(seen)})
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(dense_copy, "F", namespace)
        torch.testing.assert_close(layer(x), blocks(layer, x), atol=1e-5, rtol=1e-5)
    return bool(products)


def used(layer: BlockSparseLinear) -> bool:
    told: dict[str, Any] = layer.plan(5)["dense_copy"]
    assert told["used"] == (not told["reason"])
    return bool(told["used"])


def test_false_is_the_default_and_keeps_none() -> None:
    layer = BlockSparseLinear(100, 70, density=0.5, block=16)
    assert layer.dense_copy is False and "dense_copy" not in repr(layer)
    assert not copied(layer) and not used(layer)


def test_true_multiplies_with_a_copy_that_is_made_once() -> None:
    layer = make()
    assert "dense_copy=True" in repr(layer) and used(layer)
    assert copied(layer) and copied(layer, X[0]) and copied(layer, X.expand(2, 1, 1, 3, 5, 100))
    kept = layer._copy and layer._copy._weight
    assert kept is not None and kept.shape == (70, 100)
    assert copied(layer) and layer._copy is not None and layer._copy._weight is kept
    residual = torch.randn(5, 70)
    with torch.no_grad():
        torch.testing.assert_close(layer(X, residual), blocks(layer) + residual, atol=1e-5, rtol=1e-5)
    assert set(layer.state_dict()) == {"values", "bias", "crow", "col"}
    assert [name for name, _ in layer.named_buffers()] == ["packed_index"]


def test_auto_follows_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make("auto")
    monkeypatch.setattr(dense_copy, "_faster", {})
    plan = layer.plan
    for faster in (False, True):
        us = {"dense_copy_us": 1.0, "predicted_us": 2.0 if faster else 0.5}
        monkeypatch.setattr(layer, "plan", lambda *a, us=us, **k: plan(*a, **k) | us)
        dense_copy._faster.clear()
        assert copied(layer) == faster and dense_copy._faster == {next(iter(dense_copy._faster)): faster}
        assert layer._copy is not None and (layer._copy._weight is not None) == faster


def test_the_copy_is_faster_by_the_plans_own_figures() -> None:
    assert ops.copy_is_faster({"dense_copy_us": 1.0, "predicted_us": 1.1})
    assert not ops.copy_is_faster({"dense_copy_us": 1.1, "predicted_us": 1.1})
    assert not ops.copy_is_faster({"dense_copy_us": None, "predicted_us": 1.1})
    index = sparseloom.nn.held.state.build_index(sparseloom.pattern.full(256, 256, 16))
    forced = ops.plan(index, "forward", torch.float32, 64, kernel="dense")
    assert 0 < forced["dense_copy_us"] < forced["predicted_us"]
    assert ops.plan(index, "forward", torch.float32, 64, strict=True)["dense_copy_us"] is None


def test_a_plan_says_bytes_and_reason() -> None:
    told = make().plan(64)
    assert told["dense_copy"]["bytes"] == 70 * 100 * 4 and told["dense_copy"]["used"]
    assert "dense copy of W, 28000 bytes" in told["text"] and "used for inference" in told["text"]
    assert make().plan(64, dtype=torch.bfloat16)["dense_copy"]["bytes"] == 14000
    assert make(False).plan(64)["dense_copy"]["reason"] == "dense_copy is False"
    assert make().plan(64, "dx")["dense_copy"]["reason"] == "the values train"
    frozen = make().requires_grad_(False)
    frozen.dense_copy = True
    assert frozen.plan(64, "dx")["dense_copy"]["used"] and "dense_copy" not in frozen.plan(64, "dw")
    assert "not used: the values may have changed unseen" in written(make()).plan(64)["text"]


def written(layer: BlockSparseLinear) -> BlockSparseLinear:
    with torch.no_grad():
        layer.values.mul_(2)
    return layer


def trained(layer: BlockSparseLinear, **options: Any) -> BlockSparseLinear:
    """One step; the gradients are gone afterwards. Fused optimizers write without torch's count."""
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, **options)
    layer(X).square().sum().backward()
    before = layer.values.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    assert not torch.equal(before, layer.values)
    return layer


CHANGES = {
    "in place": written,
    "optimizer": trained,
    "fused optimizer": lambda layer: trained(layer, fused=True),
    "memory of another": lambda layer: setattr(layer.values, "data", layer.values.detach() * 2),
    "detached": lambda layer: layer.values.detach().zero_(),
    "topology": lambda layer: layer.set_topology_(~layer.pattern.mask),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_values_ends_the_copy_until_it_is_assigned_again(change: str) -> None:
    layer = make(density=0.4)
    assert copied(layer)
    CHANGES[change](layer)
    assert not copied(layer) and not used(layer)
    layer.load_state_dict(layer.state_dict())
    layer.to(torch.float32)
    assert not copied(layer)  # what wrote to them may do so again
    layer.fix_topology_()
    layer.dense_copy = True
    assert copied(layer) and used(layer)


def test_a_change_before_the_first_call_counts_too() -> None:
    assert not copied(written(make())) and not copied(trained(make(), fused=True))


def test_gradients_that_wait_for_an_optimizer_end_it() -> None:
    layer = make().requires_grad_(False)
    assert copied(layer)
    layer.values.grad = torch.ones_like(layer.values)
    assert not copied(layer)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_that_no_hook_sees_ends_it(compiled: bool) -> None:
    layer = make()
    layer.requires_grad_(False)
    layer.dense_copy = True
    assert copied(layer)
    layer.requires_grad_(True)
    run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, fused=True)
    run(X).square().sum().backward()
    optimizer.step()
    layer.zero_grad()
    layer.requires_grad_(False)
    assert not copied(layer)


def test_values_that_began_to_need_gradients_have_none() -> None:
    layer = make().requires_grad_(False)
    layer.dense_copy = True
    assert copied(layer)
    layer.requires_grad_(True)
    assert not copied(layer)


def test_a_dynamic_layer_has_none_whatever_is_assigned() -> None:
    layer = make(density=0.4)
    layer.set_topology_(~layer.pattern.mask)
    layer.dense_copy = True
    assert not copied(layer) and layer.plan(5)["dense_copy"]["reason"] == "the topology is dynamic"


def test_main_grad_ends_it() -> None:
    layer = make(fuse_wgrad_accumulation=True)
    layer.values.main_grad = torch.zeros(layer.values.shape)
    assert copied(layer)
    layer(X).sum().backward()
    assert layer.values.grad is None and not copied(layer)


def test_a_call_in_grad_mode_that_trains_nothing_leaves_it() -> None:
    layer = make()
    x = X.clone().requires_grad_()
    torch.testing.assert_close(layer(x).detach(), blocks(layer))
    assert torch.autograd.grad(layer(x).sum(), x)[0].shape == X.shape
    assert copied(layer)
    layer.requires_grad_(False)
    layer.dense_copy = True
    torch.func.vmap(layer)(X)
    assert layer._copy is not None and layer._copy._weight is None  # transforms: the blocks
    torch.testing.assert_close(layer(X), blocks(layer))
    assert layer._copy._weight is not None and copied(layer)


def test_frozen_values_have_dx_from_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make().requires_grad_(False), X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    layer.dense_copy = True
    with monkeypatch.context() as patch:
        patch.setattr(ops, "linear_dx", None)
        (dx,) = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(dx, expected, atol=1e-5, rtol=1e-5)
    assert copied(layer)
    y = layer(x)
    layer.dense_copy = False
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], expected, atol=1e-5, rtol=1e-5)


def test_what_the_layer_does_itself_makes_a_new_copy() -> None:
    layer, other = make(), BlockSparseLinear(100, 70, density=0.3, block=16)
    assert copied(layer)
    layer.load_state_dict(other.state_dict())
    assert copied(layer) and layer.pattern == other.pattern
    layer.load_state_dict(make(density=0.7).state_dict(), assign=True)
    assert copied(layer)
    nn.init.normal_(layer.weight)  # type: ignore[arg-type]
    assert copied(layer)
    layer.reset_parameters()
    assert copied(layer)
    assert copied(layer.double(), X.double()) and copied(layer.float())
    layer.values = nn.Parameter(torch.zeros_like(layer.values))
    assert copied(layer)
    assert copied(layer.eval()) and copied(layer.train())


def test_a_layer_from_meta_has_one_once_it_has_values() -> None:
    layer = make(device="meta")
    assert layer.plan(5)["dense_copy"]["bytes"] == 28000
    layer.to_empty(device="cpu").load_state_dict(make().state_dict())
    assert copied(layer)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_of_the_layer_has_the_setting_and_no_copy(way: Any) -> None:
    layer = make("auto")
    layer.dense_copy = True
    assert copied(layer)
    again = way(layer)
    assert again.dense_copy is True and again._copy._weight is None
    assert copied(again) and copied(layer)
    written(again)
    assert not copied(again) and copied(layer)


def test_autocast_keeps_the_copy_in_the_dtype_of_the_product() -> None:
    layer = make()
    assert copied(layer)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = layer(X)
        assert layer._copy is not None and layer._copy._weight is not None
        assert y.dtype == layer._copy._weight.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), blocks(layer), atol=0.03, rtol=0.03)
    assert copied(layer)


def test_other_values_for_a_call_neither_use_nor_end_it() -> None:
    layer = make()
    assert copied(layer)
    zeros = {name: torch.zeros_like(each) for name, each in layer.named_parameters()}
    with torch.no_grad():
        assert not functional_call(layer, zeros, (X,)).any()
        assert not functional_call(layer, {n: nn.Parameter(z) for n, z in zeros.items()}, (X,)).any()
    assert copied(layer)


def test_inference_tensors_whose_writes_nobody_counts_have_none() -> None:
    with torch.inference_mode():
        layer = make()
        torch.testing.assert_close(layer(X), blocks(layer))
        assert layer.plan(5)["dense_copy"]["reason"].startswith("the values may have changed unseen")
        assert not copied(layer)
        layer.values.zero_()
        torch.testing.assert_close(layer(X), blocks(layer))


def test_memory_that_other_processes_may_write_has_none() -> None:
    layer = make()
    layer.share_memory()
    assert not copied(layer)
    layer.dense_copy = True
    assert not copied(layer)


def test_inference_mode_makes_a_copy_that_others_may_use() -> None:
    layer = make()
    with torch.inference_mode():
        assert copied(layer)
    assert copied(layer)


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_code_follows_the_values(grad: bool) -> None:
    layer = make().requires_grad_(grad)
    layer.dense_copy = True
    assert copied(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            torch.testing.assert_close(compiled(X).detach(), blocks(layer))
            written(layer)


def test_exported_and_traced_programs_hold_no_copy() -> None:
    layer = make().requires_grad_(False)
    assert copied(layer)
    traced = torch.jit.trace(layer, X, check_trace=False)
    exported = torch.export.export(layer, (X,)).module()
    made = torch.fx.experimental.proxy_tensor.make_fx(lambda x: layer(x))(X)
    written(layer)
    for program in (traced, made):
        torch.testing.assert_close(program(X), blocks(layer))
    held = [t.shape for t in [*exported.state_dict().values(), *exported.buffers()]]
    assert torch.Size([70, 100]) not in held and copied(layer) is False


def test_strict_forbids_it() -> None:
    layer = make()
    layer.strict = True
    with pytest.raises(Error, match="strict forbids dense products"):
        layer(X)
    layer.dense_copy = False
    with pytest.raises(Error, match=r"expected dense_copy=False with strict=True, got dense_copy='auto'"):
        layer.dense_copy = "auto"
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(Error, match="strict forbids dense products"):
        sparseloom.sparsify_(model, {"0": BlockSparse(16, 0.5)}, strict=True, dense_copy=True)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("wrong", [1, 0, None, "Auto", "yes"])
def test_another_setting_is_refused(wrong: Any) -> None:
    for use in (lambda: make(wrong), lambda: setattr(make(), "dense_copy", wrong)):
        with pytest.raises(Error, match="dense_copy to be False, True or 'auto'"):
            use()


def test_quantized_layers_refuse_it() -> None:
    eight = QuantizedBlockSparseLinear.from_sparse(make(False))
    assert eight.dense_copy is False
    eight.dense_copy = False
    with pytest.raises(Error, match="copies are of layers that are not quantized"):
        eight.dense_copy = "auto"  # type: ignore[assignment]


def test_sparsify_sets_it_and_a_description_keeps_it() -> None:
    model = nn.ModuleDict({"up": nn.Linear(64, 64), "conv": nn.Conv2d(64, 64, 1), "head": nn.Linear(64, 64)})
    dense = copy.deepcopy(model)
    sparseloom.sparsify_(model, {"up|conv": BlockSparse(16, 0.5)}, dense_copy="auto")
    assert model["up"].dense_copy == "auto" and model["conv"].linear.dense_copy == "auto"  # type: ignore[union-attr]
    layers = described(model)
    assert layers["up"]["dense_copy"] == "auto"
    make_described(dense, layers, "")
    assert dense["up"].dense_copy == "auto" and dense["conv"].linear.dense_copy == "auto"  # type: ignore[union-attr]
    model["up"].dense_copy = False  # type: ignore[assignment]
    assert "dense_copy" not in described(model)["up"]


def test_a_saved_file_fills_a_layer_that_has_one(tmp_path: Any) -> None:
    source, target = nn.Sequential(make(False)), nn.Sequential(make(density=0.3))
    sparseloom.save(source, tmp_path / "m.safetensors")
    assert copied(target[0])  # type: ignore[arg-type]
    sparseloom.load(tmp_path / "m.safetensors", target)
    assert copied(target[0])  # type: ignore[arg-type]
    torch.testing.assert_close(blocks(target[0]), blocks(source[0]))  # type: ignore[arg-type]


def test_a_report_tells_the_bytes() -> None:
    model = nn.Sequential(make(), nn.ReLU())
    found = sparseloom.report(model, X, seconds=0.01)
    (layer,) = (each for each in found.layers if each.sparse)
    assert layer.kernels["forward"] == "dense copy" and layer.copy_bytes == 28000
    assert layer.times is not None and set(layer.times) == {"forward", "backward"}
    assert found.totals is not None and found.totals.copy_bytes == 28000
    assert "dense copies 28 kB" in str(found)
    assert copied(model[0])  # type: ignore[arg-type]
