"""The page's way to make fused experts sparse does what it says."""

import re
import textwrap
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers

import sparseloom
from sparseloom import BlockSparse, densify_, sparsify_
from sparseloom.nn import BlockSparseLinear

PAGE = Path(__file__).resolve().parents[3] / "docs" / "converting.md"


def snippet() -> str:
    """The indented code below that heading, but for its last part, which needs a folder."""
    section = PAGE.read_text().split("## Experts in one tensor")[1].split("\n## ")[0]
    code = textwrap.dedent(
        "\n".join(line for line in section.splitlines() if line.startswith("    ") or not line)
    )
    return re.split(r"^model = ", code, flags=re.MULTILINE)[0]


@pytest.fixture
def page():
    names = {"torch": torch, "transformers": transformers}
    exec(snippet(), names)
    return names


def test_fused_experts_are_neither_taken_nor_listed():
    model = tiny_models.made("MixtralForCausalLM", "mixtral")
    result = sparsify_(model, {r".*_proj": BlockSparse(16, 0.5)})
    assert len(result.changed) == 8 and "experts" not in str(result)
    assert model.model.layers[0].mlp.experts.gate_up_proj.shape == (4, 144, 32)


def test_the_pages_split_experts_give_what_the_fused_ones_give_and_become_sparse(page, tmp_path):
    model, fused = (tiny_models.made("MixtralForCausalLM", "mixtral") for _ in range(2))
    fused.save_pretrained(tmp_path / "fused")
    model = transformers.MixtralForCausalLM.from_pretrained(tmp_path / "fused")
    page["split_"](model).__class__ = page["SplitMixtral"]
    words = tiny_models.tokens()
    with torch.no_grad():
        torch.testing.assert_close(model(words).logits, fused(words).logits)
    result = sparsify_(model, {r".*experts\.(gate_up|down)\.[0-9]+": BlockSparse(16, 0.5)})
    assert len(result.changed) == 2 * 2 * 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path / "sparse")
    again, found = page["SplitMixtral"].from_pretrained(tmp_path / "sparse", output_loading_info=True)
    assert not any(found.values()), found
    with torch.no_grad():
        expected = model(words).logits
        assert torch.equal(again(words).logits, expected)
        densify_(again)
        torch.testing.assert_close(again(words).logits, expected, atol=1e-5, rtol=1e-4)


def test_a_split_model_in_the_fused_class_is_refused_when_it_is_loaded(page, tmp_path):
    model = page["split_"](tiny_models.made("MixtralForCausalLM", "mixtral"))
    sparsify_(model, {r".*experts\.(gate_up|down)\.[0-9]+": BlockSparse(16, 0.5)})
    model.save_pretrained(tmp_path)
    with pytest.raises(sparseloom.Error, match=r"experts.* load with the saved model's class"):
        transformers.MixtralForCausalLM.from_pretrained(tmp_path)
    assert any(isinstance(module, BlockSparseLinear) for module in model.modules())
