"""What prune_ observes of each layer's inputs: the sums are those of what a run of the model gives it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from pruning import Cheapest
from torch import Tensor, nn

from sparseloom import BlockSparse, Distillation, Error, Semi24, prune_
from sparseloom.patch.survey import survey
from sparseloom.prune.recurrences import inputs_of
from sparseloom.prune.statistics import Observer, matrix_of
from sparseloom.recover.padding import Padding


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


CONVS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(6, 8, 3, padding=1), (5, 6, 40)),
    "2d": (lambda: nn.Conv2d(6, 8, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (5, 6, 12, 13)),
    "same": (lambda: nn.Conv2d(6, 8, 4, padding="same", padding_mode="reflect"), (5, 6, 9, 9)),
    "3d": (lambda: nn.Conv3d(4, 8, 2, padding_mode="circular", padding=1), (3, 4, 5, 6, 5)),
    "channels last": (lambda: nn.Conv2d(6, 8, 3).to(memory_format=torch.channels_last), (5, 6, 12, 12)),
    "1x1": (lambda: nn.Conv2d(16, 8, 1, stride=2), (5, 16, 13, 13)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 8, 3, 2, 1, output_padding=1, dilation=2), (5, 6, 7, 9)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(6, 8, 2, 2, padding=3), (5, 6, 40)),
}


@pytest.mark.parametrize("conv", CONVS)
@torch.no_grad()
def test_the_hessian_of_a_convolution_says_what_a_change_of_its_weight_does(conv: str) -> None:
    torch.manual_seed(0)
    make, shape = CONVS[conv]
    model, x = nn.Sequential(make()), torch.randn(shape, dtype=torch.float64)
    model.double()
    observer = Observer(sites := survey(model).sites, True)
    with observer.watching():
        for part in x.split(2):
            observer.next_batch(Padding())
            model(part)
    known, layer = observer.statistics(sites[0]), model[0]
    layer.weight.copy_(torch.randn_like(layer.weight))
    layer.bias.zero_()
    out, change = model(x), matrix_of(sites[0])
    assert known.tokens == out.numel() // out.shape[1]
    assert known.hessian is not None and known.squares is not None
    expected = (change @ known.hessian * change).sum(1)
    torch.testing.assert_close(out.square().movedim(1, 0).flatten(1).mean(1), expected)
    torch.testing.assert_close(known.squares, known.hessian.diagonal())


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
@pytest.mark.parametrize("conv", ["2d", "transposed"])
def test_blocks_of_a_convolution_are_chosen_over_their_taps(conv: str, method: str, tmp_path: Path) -> None:
    """SparseGPT leaves the least error, and goes on from a checkpoint."""
    torch.manual_seed(0)
    made = nn.Conv2d if conv == "2d" else nn.ConvTranspose2d
    mix, options = torch.randn(16, 16), {"method": method, "checkpoint": tmp_path}
    data = [torch.einsum("ncij,cd->ndij", torch.randn(4, 16, 9, 8), mix) for _ in range(3)]
    dense, models = nn.Sequential(made(16, 24, (3, 2), 2, 1)).eval(), list[nn.Module]()
    for _ in range(2):
        models.append(copy.deepcopy(dense))
        result = prune_(models[-1], {".*": BlockSparse(8, 0.5)}, data=data, **options)
    with torch.no_grad():
        assert torch.equal(models[0](data[0]), models[1](data[0]))
        error = (models[0](data[0]) - dense(data[0])).square().mean() / dense(data[0]).square().mean()
    assert result.layers[0].density == 0.5
    assert float(error) < {"magnitude": 1, "wanda": 1, "sparsegpt": 0.5}[method], error


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True),
    "steps first": lambda: nn.LSTM(6, 8, bias=False),
    "projected": lambda: nn.LSTM(6, 8, 2, proj_size=5, batch_first=True),
    "GRU": lambda: nn.GRU(6, 8, 2, bidirectional=True, batch_first=True),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", RECURRENT)
@torch.no_grad()
def test_what_recurrent_weights_multiply_is_what_gives_their_gradient(kind: str, packed: bool) -> None:
    """A row of the weight's gradient is a sum of these inputs: it is the only combination that fits."""
    torch.manual_seed(0)
    module, x = RECURRENT[kind]().double(), torch.randn(2, 2, 6, dtype=torch.float64)
    lengths = torch.tensor([1, 2])  # fewer inputs than features
    given: Any = x if module.batch_first else x.transpose(0, 1)
    if packed:
        given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    ends, projected = 2 if module.bidirectional else 1, module.proj_size or 8
    first = torch.randn(module.num_layers * ends, 2, projected, dtype=torch.float64)
    cells = torch.randn(module.num_layers * ends, 2, 8, dtype=torch.float64)
    state = (first, cells) if isinstance(module, nn.LSTM) else first
    found = dict(inputs_of(module, given, state))
    assert set(found) == {name for name, _ in module.named_parameters() if name.startswith("weight")}
    with torch.enable_grad():
        out = module(given, state)[0]
        (out.data if packed else out).pow(3).sum().backward()
    for name, inputs in found.items():
        tokens = inputs.reshape(-1, inputs.shape[-1])
        assert len(tokens) == (int(lengths.sum()) if packed else 4)
        weight = module.get_parameter(name)
        assert weight.grad is not None
        left = torch.linalg.lstsq(tokens.t(), weight.grad.t()).solution
        torch.testing.assert_close(tokens.t() @ left, weight.grad.t())
    torch.testing.assert_close(found["weight_ih_l0"].sum(), (given.data if packed else x).sum())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "projected"])
def test_recurrent_layers_are_pruned_by_what_they_read(kind: str) -> None:
    torch.manual_seed(0)
    sizes = {"proj_size": 8} if kind == "projected" else {}
    made = nn.GRU if kind == "GRU" else nn.LSTM
    dense = nn.ModuleDict({"rnn": made(16, 16, 2, batch_first=True, **sizes)}).eval()
    dense.forward = lambda x: dense["rnn"](x)[0]  # type: ignore[method-assign]
    data = [torch.randn(8, 20, 16) @ torch.randn(16, 16) * 0.3 for _ in range(2)]
    errors = {}
    for method in ("magnitude", "sparsegpt"):
        model = copy.deepcopy(dense)
        result = prune_(model, {".*": BlockSparse(8, 0.5)}, method=method, data=data, device="cpu",
                        forward=lambda model, x: model["rnn"](x))  # fmt: skip
        with torch.no_grad():
            change = model["rnn"](data[0])[0] - dense["rnn"](data[0])[0]
        errors[method] = float(change.square().mean())
        assert len(result.changed) == (6 if kind == "projected" else 4)
    assert errors["sparsegpt"] < errors["magnitude"]


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
