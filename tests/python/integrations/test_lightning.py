"""Lightning's Trainer on a block-sparse model: trained, checkpointed, and resumed to the same bits."""

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparseloom
from sparseloom import BlockSparse
from sparseloom.nn import BlockSparseLinear


class Module(lightning.LightningModule):
    """A classifier that is made sparse where Lightning wants models changed: before the optimizer exists."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
        self.losses = []

    def configure_model(self):
        if not isinstance(self.net[0], BlockSparseLinear):  # called again by every fit
            sparseloom.sparsify_(self.net, {"0": BlockSparse(block=8, density=0.5)})

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data():
    """One batch, the same in every step: where a resumed loader goes on is Lightning's affair."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 32, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :8].argmax(1)), batch_size=24)


def fitted(module, steps, *, resume=None, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"accelerator": "cpu", "enable_checkpointing": False}
    trainer = lightning.Trainer(max_steps=steps, **(quiet | options))
    trainer.fit(module, data(), ckpt_path=resume)
    return trainer


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few workers, and of steps between checkpoints
def test_training_resumed_from_a_checkpoint_goes_on_in_the_same_bits(tmp_path):
    whole, first, second = Module(), Module(), Module(seed=1)  # the last one with other blocks
    fitted(whole, 12)
    file = tmp_path / "half.ckpt"
    fitted(first, 6).save_checkpoint(file)
    fitted(second, 12, resume=file)
    layer = second.net[0]
    assert isinstance(layer, BlockSparseLinear) and layer.pattern == whole.net[0].pattern
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert first.losses + second.losses == whole.losses and whole.losses[-1] < whole.losses[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_autocast_accumulation_and_clipping_reach_the_stored_blocks():
    module = Module()
    module.configure_model()
    before = module.net[0].values.detach().clone()
    fitted(module, 3, precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=0.5)
    after = module.net[0].values
    assert after.dtype == torch.float32 and torch.isfinite(after).all()
    assert (before != after).any(dim=(1, 2)).all()  # every block was trained
