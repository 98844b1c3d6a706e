"""Checkpoints that other packages wrote (make_foreign.py), the dense weights that they hold, and entries as
others save them, by the formats that they document."""

from pathlib import Path

import safetensors.torch
import torch
from torch import nn

FOREIGN = Path(__file__).parent / "foreign"


def dense_of(name):
    return safetensors.torch.load_file(FOREIGN / f"{name}.dense.safetensors")


def net(dtype=torch.float16):
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).to(dtype)


class Inside(nn.Module):
    """The model whose masks nncf keeps in foreign/nncf and foreign/nncf-trained."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.layers = net(dtype)

    def forward(self, x):
        return self.layers(x)


def pytorch_block_sparse_entries(weight, made):
    """Returns what the layer of pytorch_block_sparse saves: blocks in row order, each transposed, one
    below the other."""
    rows, cols = weight.shape
    grid = weight.reshape(rows // 32, 32, cols // 32, 32).transpose(1, 2)[made.mask]  # [blocks, 32, 32]
    nonzero = made.mask.nonzero()
    crow, col = made.index()
    turned = made.mask.t().nonzero()
    position = torch.zeros(made.mask.shape, dtype=torch.int64)
    position[made.mask] = torch.arange(len(nonzero))
    return {
        "weight.data": grid.transpose(1, 2).reshape(-1, 32).clone(),
        "weight.block_mask": made.mask,
        "weight.cols_a": torch.stack([col, torch.arange(len(col), dtype=torch.int32)], 1),
        "weight.row_start_ends_a": crow,
        "weight.rows_b": torch.stack([turned[:, 1], position.t()[made.mask.t()]], 1).int(),
        "weight.col_start_ends_b": made.transposed().index()[0],
        "weight.blocks": nonzero.flip(-1).flatten().int(),
        "bias": torch.arange(float(rows)),
    }
