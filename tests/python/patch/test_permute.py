"""permute_channels_: models compute what they did, and 2:4 keeps more of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, permute_channels_, sparsify_
from sparseloom.ops import semi24
from sparseloom.permute import Chain, blocks


def kept(weight: Tensor) -> float:
    return float(weight.abs().mul(semi24.mask(weight.contiguous(), "magnitude")).sum(dtype=torch.float64))


def uneven(model: nn.Module) -> nn.Module:
    """Gives inputs magnitudes of their own, as training does; an order then matters."""
    torch.manual_seed(5)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        with torch.no_grad():
            if isinstance(weight, nn.Parameter) and weight.dim() == 2:
                weight.mul_(torch.rand(weight.shape[1]).square() + 0.05)
            elif isinstance(weight, nn.Parameter):
                weight.uniform_(0.5, 2)
                module.bias.uniform_(-1, 1)
    return model.eval()


def test_the_published_matrix():
    """Pool and Yu's example: apex's README prints what 2:4 keeps before and after swaps of channels."""
    np.random.seed(1)
    weight = torch.from_numpy(np.random.rand(128, 64))
    assert float(weight.sum()) == pytest.approx(4083.169, abs=0.01)
    assert kept(weight) == pytest.approx(2852.377, abs=0.01)
    order = sparseloom.ops.call("semi24_channel_order", weight, 0)
    assert sorted(order.tolist()) == list(range(64))
    assert kept(weight[:, order]) == pytest.approx(2913.351, abs=0.01)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 48, False), nn.Linear(16, 48)
        self.down_proj = nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class GroupedQuery(nn.Module):
    """Four heads of queries share two of keys and values."""

    head_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(16, 32), nn.Linear(16, 16), nn.Linear(16, 16)
        self.o_proj = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def sequence(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 40), norm, nn.GELU(), nn.Dropout(), nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8)
    )


MODELS = {
    "gated": (Gated, (3, 16), ["down_proj"]),
    "grouped query": (GroupedQuery, (2, 5, 16), ["o_proj"]),
    "encoder": (
        encoder,
        (2, 5, 32),
        [f"layers.{i}.{name}" for i in (0, 1) for name in ("linear2", "self_attn.out_proj")],
    ),
    "layer norm": (lambda: sequence(nn.LayerNorm(40)), (3, 16), ["4", "6"]),
    "rms norm": (lambda: sequence(nn.RMSNorm(40)), (3, 16), ["4", "6"]),
    "batch norm": (lambda: sequence(nn.BatchNorm1d(40)), (3, 16), ["4", "6"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay_and_more_is_kept(name: str):
    make, shape, consumers = MODELS[name]
    torch.manual_seed(2)
    model = make()
    if name == "batch norm":
        model(torch.randn(64, 16))  # running statistics of its own for each channel
    if name != "rms norm":
        uneven(model)
    model.eval()
    x = torch.randn(shape)
    want, parameters = model(x), {id(each) for each in model.parameters()}
    pruned = copy.deepcopy(model)
    result = permute_channels_(model, x)
    assert [each.consumer for each in result.changed] == consumers and not result.skipped
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    assert {id(each) for each in model.parameters()} == parameters
    for each in result.changed:
        assert each.before < each.after <= each.most
        if each.consumer != "self_attn.out_proj":
            weight = model.get_submodule(each.consumer).weight.detach()
            assert each.after == pytest.approx(kept(weight) / float(weight.abs().sum(dtype=torch.float64)))
    regex = "|".join(each.replace(".", r"\.") for each in consumers)
    change = sparsify_(pruned, {regex: Semi24("magnitude")})
    assert len(change.changed) == len(consumers)
    sparsify_(model, {regex: Semi24("magnitude")})


def test_the_result_prints_what_is_kept():
    result = permute_channels_(uneven(Gated()), torch.randn(3, 16))
    text = str(result)
    assert "the inputs of 1 layer were reordered" in text and "outputs of gate_proj, up_proj" in text
    assert result.to_dict()["changed"][0]["shape"] == (16, 48)


class Read(nn.Module):
    """Looks like a chain, but something else reads the channels too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.mlp = nn.Linear(8, 16), nn.Linear(16, 8), Gated()
        self.before = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        return self.fc2(h) + h[..., :8] + self.mlp(self.before(x))[..., :8]


def test_a_chain_that_changes_the_outputs_is_put_back_bit_by_bit():
    model, x = uneven(Read()), torch.randn(3, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = permute_channels_(model, x)
    assert [skip.name for skip in result.skipped] == ["fc2"]
    assert [each.consumer for each in result.changed] == ["mlp.down_proj"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) or name.startswith("mlp.")


def test_chains_may_be_given():
    model, x = uneven(Read()), torch.randn(3, 8)
    chain = Chain("mlp.down_proj", ("mlp.gate_proj", "mlp.up_proj"))
    assert len(permute_channels_(model, x, chains=[chain], rounds=1).changed) == 1
    for wrong, says in (
        (Chain("fc2", ("nothing",)), "nothing is no dense linear layer"),
        (Chain("fc2", ("fc1",), heads=3), "in 3 heads"),
        (Chain("fc2", ("fc1",), through=("mlp",)), "norms over the channels"),
        (Chain("fc2", ("fc1",), heads=8), "a group of four would reach over heads of 2"),
    ):
        with pytest.raises(Error, match=says):
            permute_channels_(model, x, chains=[wrong])
    with pytest.raises(Error, match="a chain of layers that ends in 'fc3'"):
        permute_channels_(model, x, "fc3")


def test_shared_and_tied_layers_stay():
    model = Gated()
    model.other = nn.Linear(48, 16)
    model.other.weight = model.down_proj.weight
    with pytest.raises(Error, match="tied to"):
        permute_channels_(model, torch.randn(3, 16))


def test_outputs_that_cannot_be_compared_are_an_error():
    model = Gated()
    with torch.no_grad():
        model.down_proj.bias[0] = float("nan")
    with pytest.raises(Error, match="finite outputs"):
        permute_channels_(model, torch.randn(3, 16))
    with pytest.raises(Error, match="the same outputs for the same input"):
        permute_channels_(nn.Sequential(Gated(), nn.Dropout(0.5), _Noise()), torch.randn(3, 16))


class _Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.package("transformers")
def test_models_of_transformers_keep_their_outputs():
    from tiny_models import made, tokens

    for cls, name, endings in (
        ("LlamaForCausalLM", "llama", {"down_proj", "o_proj"}),
        ("BertForMaskedLM", "bert", {"dense"}),
        ("GPT2LMHeadModel", "gpt2", {"c_proj"}),
    ):
        model = made(cls, name).eval()
        want = model(tokens()).logits
        result = permute_channels_(model, tokens())
        assert {each.consumer.rpartition(".")[2] for each in result.changed} == endings and not result.skipped
        torch.testing.assert_close(model(tokens()).logits, want, rtol=1e-3, atol=1e-4)


def kept_blocks(weight: Tensor, block: tuple[int, int], density: float) -> float:
    """The sum of |w| of the best blocks, by sparsify_'s own choice."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], False)
    layer.weight.data.copy_(weight.detach())
    net = nn.Sequential(layer)
    sparsify_(net, {"0": BlockSparse(block, density)})
    return float(net[0].values.detach().abs().sum(dtype=torch.float64))


@pytest.mark.parametrize("block", [8, (8, 16), (16, 8)])
@pytest.mark.parametrize("make", [Gated, GroupedQuery], ids=["gated", "grouped"])
def test_more_is_kept_of_blocks_and_outputs_stay(make: type[nn.Module], block: int | tuple[int, int]) -> None:
    model, x = uneven(make()), torch.randn(3, 6, 16)
    if make is GroupedQuery and block != 8:  # a head has 8 channels
        with pytest.raises(Error, match="a block would reach over heads of 8 channels"):
            permute_channels_(model, x, block=block, density=0.25)
        return
    sides = (block, block) if isinstance(block, int) else block
    names = ["gate_proj", "up_proj", "down_proj"] if make is Gated else ["v_proj", "o_proj"]
    weights = [model.get_submodule(name).weight for name in names]
    total = sum(float(weight.detach().abs().sum(dtype=torch.float64)) for weight in weights)
    before, wanted = sum(kept_blocks(weight, sides, 0.25) for weight in weights), model(x)
    result = permute_channels_(model, x, block=block, density=0.25)
    torch.testing.assert_close(model(x), wanted, atol=1e-5, rtol=1e-4)
    after = sum(kept_blocks(weight, sides, 0.25) for weight in weights)
    (change,) = result.changed
    assert change.before == pytest.approx(before / total, rel=1e-5)
    assert change.after == pytest.approx(after / total, rel=1e-5)
    assert change.after >= change.before and change.after <= change.most
    if make is Gated:
        assert change.after > change.before
    assert f"0.25 of the blocks of {sides[0]} x {sides[1]} keeps of sum |w|" in str(result)


def test_channels_of_one_block_find_each_other() -> None:
    """A block-diagonal pair of layers whose channels were shuffled: in its order a quarter keeps all."""
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(4).repeat_interleave(16, 0).repeat_interleave(16, 1)
    shuffled = torch.randperm(64, generator=generator)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with torch.no_grad():
        for layer, weight in ((net[0], eye[shuffled]), (net[2], eye[:, shuffled])):
            layer.weight.copy_(weight * (0.5 + torch.rand(64, 64, generator=generator)))
    result = permute_channels_(net.eval(), torch.randn(2, 64), block=16, density=0.25)
    (change,) = result.changed
    assert change.before < 0.6 and change.after == pytest.approx(1.0)


def test_of_a_few_channels_no_swap_is_left_that_gains() -> None:
    """Beside all swaps of an order by the definition; the search may end where only several at once gain."""
    generator = torch.Generator().manual_seed(3)
    weights = [torch.rand(16, 24, generator=generator), torch.rand(24, 16, generator=generator)]
    parts = [
        blocks.Part.of(weights[0][None], (8, 8), 0.34),
        blocks.Part.of(weights[1].t()[None], (8, 8), 0.34),
    ]
    order = blocks.block_order(parts, 1, 0, lambda text: None).flatten()

    def kept_of(order: Tensor) -> float:
        found = kept_blocks(weights[0][:, order], (8, 8), 0.34)
        return found + kept_blocks(weights[1][order], (8, 8), 0.34)

    assert sorted(order.tolist()) == list(range(24))
    best = kept_of(order)
    assert best == pytest.approx(sum(part.kept(order) for part in parts), rel=1e-5)
    assert best > kept_of(torch.arange(24))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"block": 8}, "block and density together"),
        ({"density": 0.5}, "block and density together"),
        ({"block": 8, "density": 2.0}, r"density in \[0, 1\]"),
        ({"block": 7, "density": 0.5}, "7"),
    ],
)
def test_wrong_blocks_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(Error, match=words):
        permute_channels_(uneven(Gated()), torch.randn(2, 16), **options)
