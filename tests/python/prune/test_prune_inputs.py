"""What prune_ observes of each layer's inputs: the sums are those of what a run of the model gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
from pruning import Cheapest
from torch import Tensor, nn

from sparseloom import Distillation, Error, Semi24, prune_


def observed(
    model: nn.Module, data: list[Any], patterns: dict[str, Any] | None = None, **options: Any
) -> Any:
    """The contexts of all layers by name, of a dense model in whose blocks nothing was pruned before."""
    own = Cheapest()
    result = prune_(model, patterns or {".*": Semi24()}, method=own, data=data, exchange=False, **options)
    return {layer.name: (own.contexts[i], layer.tokens) for i, layer in enumerate(result.layers)}


class Readers(nn.Module):
    """Layers that are called with the tensors that a plan of theirs says, in this order."""

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.plan = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), plan

    def forward(self, x: Tensor, plan: str | None = None) -> Tensor:
        tensors, out = {"x": x, "y": torch.tanh(x), "z": x * 2}, x * 0
        for call in (plan or self.plan).split():
            out = out + getattr(self, call[0])(tensors[call[1]])
        return out


@pytest.mark.parametrize(
    "plan", ["qx kx vx", "qx kx vx ky", "qx ky kx vx", "qx qy kx vx", "qx qx kx vy vx", "qz kx vy"]
)
def test_a_layer_called_several_times_counts_each_tensor_that_it_reads(plan: str) -> None:
    torch.manual_seed(0)
    model, data = Readers(plan), [torch.randn(64, 16) for _ in range(3)]
    seen: dict[str, list[Tensor]] = {"q": [], "k": [], "v": []}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda m, args, to=inputs: to.append(args[0]))
        for name, inputs in seen.items()
    ]
    with torch.no_grad():
        model(torch.cat(data))
    for handle in handles:
        handle.remove()
    for name, (context, tokens) in observed(model, data).items():
        x = torch.cat(seen[name])
        assert tokens == len(x)
        torch.testing.assert_close(context.hessian, x.t() @ x / len(x))


def test_layers_that_read_one_tensor_in_the_first_batch_alone_are_named() -> None:
    data = [{"x": torch.randn(64, 16), "plan": plan} for plan in ("qx kx vx", "qx ky vx")]
    with pytest.raises(Error, match="q and k, which did so in the first batch alone"):
        observed(Readers(""), data)


def blocks(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(count)))


def autocast(model: nn.Module, batch: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(batch)


@pytest.mark.parametrize("reconstruct", [0, 4])
@pytest.mark.parametrize("around", [False, True])
def test_blocks_compute_in_the_autocast_of_the_models_own_run(around: bool, reconstruct: int) -> None:
    seen: list[torch.dtype] = []
    model, data = blocks(), [torch.randn(64, 16)]
    for block in model:
        block.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    options: dict[str, Any] = {"method": "sparsegpt", "data": data, "exchange": False}
    plain = blocks()
    prune_(plain, {".*": Semi24()}, forward=autocast, reconstruct=reconstruct, **options)
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        forward = None if around else autocast
        prune_(model, {".*": Semi24()}, forward=forward, reconstruct=reconstruct, **options)
        stale = model(data[0])
    assert set(seen[:-3]) == {torch.bfloat16}
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, two)  # the algebra is that of float32
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        assert torch.equal(stale, model(data[0]))


def by_layer(model: nn.Module) -> nn.Module:
    for block in model:
        block.compile(backend="eager")
    return model


COMPILED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "layers": by_layer,
    "the model": lambda model: torch.compile(model, backend="eager"),
    "modules": lambda model: nn.Sequential(*(torch.compile(block, backend="eager") for block in model)),
    "the model itself": lambda model: (model.compile(backend="eager"), model)[1],
}


@pytest.mark.parametrize("compiled", COMPILED)
def test_compiled_blocks_are_observed(compiled: str) -> None:
    plain, model, data = blocks(), COMPILED[compiled](blocks()), [torch.randn(64, 16)]
    model(data[0])  # compiles
    for each in (plain, model):
        prune_(each, {".*": Semi24()}, data=data, fuse=False)  # nothing is fused into what is compiled
    with torch.no_grad():
        assert torch.equal(model(data[0]), plain(data[0]))


SIDES = {
    "both": {"attention_mask": 5, "decoder_attention_mask": 7},
    "encoder": {"attention_mask": 5},
    "decoder": {"decoder_attention_mask": 7},
}


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("labels", [False, True])
def test_the_masks_of_encoder_and_decoder_count_on_their_own_side(sides: str, labels: bool) -> None:
    """Their inputs have one shape; layers of the decoder that read the encoder's output have its tokens."""
    model, batch, width = tiny_models.made("T5ForConditionalGeneration", "t5"), 16, 9
    ids, least = tiny_models.tokens(batch, width), {"": width, "decoder_": width}
    data: dict[str, Tensor] = {"input_ids": ids, "labels" if labels else "decoder_input_ids": ids}
    for name, kept in SIDES[sides].items():
        data[name] = (torch.arange(width) < kept).long().expand(batch, width)
        least[name.removesuffix("attention_mask")] = kept
    found = observed(model, [data], {r".*(block|lm_head).*": Semi24()})
    assert len(found) > 20
    for name, (_, tokens) in found.items():
        reads = name.startswith("encoder") or ("EncDecAttention" in name and name[-1] in "kv")
        assert tokens == batch * least["" if reads else "decoder_"], name


def test_distillation_leaves_out_the_padding_of_the_decoder() -> None:
    student, teacher = (tiny_models.made("T5ForConditionalGeneration", "t5") for _ in range(2))
    with torch.no_grad():
        teacher.lm_head.weight.mul_(1.5)
    ids, mask = tiny_models.tokens(4, 9), (torch.arange(9) < 5).long().expand(4, 9)
    loss = Distillation(teacher, logits=1.0, hidden=1.0, at=r"(en|de)coder\.block\.1")
    batch = {"input_ids": ids, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    whole, changed = loss(student, batch), ids.clone()
    changed[:, 5:] = 7  # what the mask leaves out; the decoder's tokens before do not see it
    torch.testing.assert_close(loss(student, batch | {"decoder_input_ids": changed}), whole)
