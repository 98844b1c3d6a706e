"""prune_ on the trees of models that it knows: which layers are blocks, and what each layer is chosen by."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
from pruning import Cheapest, stack
from torch import Tensor, nn

from sparseloom import Error, Semi24, prune_
from sparseloom.patch.choose import match
from sparseloom.prune import prune_plan
from sparseloom.prune.chains import parts_of
from sparseloom.prune.targets import Pending, target_of


def timm_vit() -> nn.Module:
    import timm  # with torchvision it takes seconds to import

    sizes = {"depth": 2, "embed_dim": 32, "num_heads": 2, "img_size": 16, "patch_size": 4}
    return timm.create_model("vit_tiny_patch16_224", **sizes).eval()


TREES: dict[str, tuple[Callable[[], nn.Module], str, str, Callable[[], Any], int]] = {
    "llama": (
        lambda: tiny_models.made("LlamaForCausalLM", "llama"),
        r".*(self_attn|mlp).*",
        r".*q_proj",
        lambda: tiny_models.tokens(12, 9),
        14,
    ),
    "bert": (
        lambda: tiny_models.made("BertModel", "bert"),
        r"encoder.*",
        r".*query",
        lambda: tiny_models.tokens(12, 9),
        12,
    ),
    "gpt2": (
        lambda: tiny_models.made("GPT2LMHeadModel", "gpt2"),
        r".*h\.\d.*",
        r".*c_attn",
        lambda: tiny_models.tokens(16, 9),
        8,
    ),
    "vit": (
        lambda: tiny_models.made("ViTModel", "vit"),
        r"(encoder|layers).*",
        r".*(query|q_proj)",
        lambda: torch.randn(8, 3, 16, 16),
        12,
    ),
    "timm": (
        timm_vit,
        r"blocks.*",
        r".*qkv",
        lambda: torch.randn(8, 3, 16, 16),
        8,
    ),
    "t5": (
        lambda: tiny_models.made("T5ForConditionalGeneration", "t5"),
        r".*block.*",
        r".*0.SelfAttention.q",
        lambda: {"input_ids": tiny_models.tokens(12, 9), "decoder_input_ids": tiny_models.tokens(12, 9)},
        32,
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 3).eval(),
        ".*",
        ".*in_proj",
        lambda: {"src": torch.randn(8, 10, 32), "src_key_padding_mask": torch.arange(10).expand(8, 10) > 7},
        12,
    ),
    "Sequential": (stack, ".*", ".*", lambda: torch.randn(80, 24), 2),
}


@pytest.mark.parametrize("tree", TREES)
def test_blocks_are_pruned_in_order(tree: str) -> None:
    """The first layer of each block is chosen by what the finished model gives it, which a second run over
    that model, in which nothing changes any more, sees."""
    make, regex, firsts, batch, layers = TREES[tree]
    torch.manual_seed(0)
    model, data = make(), [batch(), batch()]
    plan = prune_plan(model, {regex: Semi24()}, data=data, method="wanda")
    assert (plan.layers, plan.outside) == (layers, 0)
    runs = [Cheapest(), Cheapest()]
    for own in runs:
        result = prune_(model, {regex: Semi24()}, method=own, data=data, exchange=False)
    at = [i for i, layer in enumerate(result.layers) if re.fullmatch(firsts, layer.name)]
    assert len(at) > 1
    for i in at:
        before, after = (own.contexts[i].input_statistics for own in runs)
        torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-6)


class Shared(nn.Module):
    """Blocks that share a layer, and get the first input beside their own."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.own, self.shared = nn.Linear(16, 16), shared

    def forward(self, x: Tensor, first: Tensor) -> tuple[Tensor, int]:
        return x + self.own(first) + self.shared(torch.tanh(x)), 1


class Stack(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        shared = nn.Linear(16, 16)
        self.blocks, self.twice = nn.ModuleList(Shared(shared) for _ in range(3)), twice

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x, _ = block(x, x if self.twice else first)
        return x


@pytest.mark.parametrize("twice", [False, True])
def test_what_does_not_follow_from_the_block_before_is_observed_in_whole_runs(twice: bool) -> None:
    torch.manual_seed(0)
    model, data, own = Stack(twice), [torch.randn(64, 16) for _ in range(2)], Cheapest()
    dense = copy.deepcopy(model)
    plan = prune_plan(model, {".*": Semi24()}, data=data, method="wanda")
    assert (plan.layers, plan.blocks, plan.outside) == ((4, 0, 4) if twice else (4, 3, 1))
    result = prune_(model, {".*": Semi24()}, method=own, data=data, exchange=False)
    at = {layer.name: i for i, layer in enumerate(result.layers)}
    shared = own.contexts[at["blocks.0.shared"]]
    assert result.layers[at["blocks.0.shared"]].tokens == 3 * 128  # each block's inputs
    seen: list[Tensor] = []
    observed = dense if twice else model  # the blocks are pruned before the layer that they share
    if not twice:
        observed.blocks[0].shared.weight.data.copy_(dense.blocks[0].shared.weight)
    handle = observed.blocks[0].shared.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        observed(torch.cat(data))
    handle.remove()
    torch.testing.assert_close(shared.input_statistics, torch.cat(seen).square().mean(0))


class Pair(nn.Module):
    """Hands on a second tensor: c of its own each time, the first block's, or what came from outside."""

    def __init__(self, second: str) -> None:
        super().__init__()
        self.own, self.second = nn.Linear(16, 16), second

    def forward(self, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        h = h + self.own(h)
        if self.second == "each":
            c = h if c is None else h + c
        elif c is None:
            c = torch.tanh(h) if self.second == "first" else torch.arange(16.0)
        return h + c, c


class Pairs(nn.Module):
    def __init__(self, second: str) -> None:
        super().__init__()
        self.blocks, self.second = nn.ModuleList(Pair(second) for _ in range(3)), second

    def forward(self, h: Tensor, run: int | Tensor = 3) -> Tensor:
        c = h * 2 if self.second == "outside" else None
        for at, block in enumerate(self.blocks[: int(run)]):
            h, c = block(-h if at == 1 and run == 4 else h, c)
        return h


@pytest.mark.parametrize(("second", "blocks"), [("each", 0), ("first", 0), ("constant", 3), ("outside", 3)])
def test_a_second_tensor_that_depends_on_a_block_makes_no_chain(second: str, blocks: int) -> None:
    torch.manual_seed(0)
    model, data, own = Pairs(second), [torch.randn(64, 16) for _ in range(2)], Cheapest()
    plan = prune_plan(model, {".*": Semi24()}, data=data, method="wanda")
    assert (plan.blocks, plan.outside) == (blocks, 3 - blocks)
    dense, seen = copy.deepcopy(model), list[Tensor]()
    prune_(model, {".*": Semi24()}, method=own, data=data, exchange=False)
    observed = model if blocks else dense
    observed.blocks[2].own.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        observed(torch.cat(data))
    torch.testing.assert_close(own.contexts[2].input_statistics, seen[0].square().mean(0))


@pytest.mark.parametrize("run", [2, 4])  # blocks, or a change between two of them
def test_a_batch_that_goes_another_way_through_the_blocks_is_refused(run: int) -> None:
    data = [{"h": torch.randn(64, 16), "run": torch.tensor(each)} for each in (3, run)]
    with pytest.raises(Error, match=r"another input of blocks\.[12], or none, in batch 1"):
        prune_(Pairs("outside"), {".*": Semi24()}, data=data)


def test_what_is_lent_to_a_device_at_once_is_one_block() -> None:
    """Also where the chain lies in a container that has layers of its own: its blocks are the longer list."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(5)))
    model = nn.Sequential(blocks, nn.Linear(8, 8))
    choices, _ = match(model, {".*": Pending(target_of(".*", Semi24()), True)}, False)
    parts = parts_of(model, [choice.site for choice in choices])
    assert [id(part) for part in parts] == [id(part) for part in (*blocks, model[1])]
