"""Writes foreign/: small checkpoints by the packages that define the formats, and in X.dense.safetensors the
weights that they mean. Run each part where its package is installed, and commit the files:
python tests/python/make_foreign.py PART, with torch 2.13.0 and

    bitmask     compressed-tensors 0.9.4, transformers 5.23.0
    heads       nn_pruning 0.1.2, transformers 4.46.3
    supermask   torchao 0.11.0
    sten        sten 0.0.4
    matrix      scipy 1.17.1
    nncf        nncf 3.4.0, torchao 0.18.0, which its strip imports
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

FOREIGN = Path(__file__).parent / "foreign"


def folder(name: str) -> Path:
    made = FOREIGN / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def weight(rows: int, cols: int, *, two_of_four: bool = False) -> torch.Tensor:
    made = torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows * cols)).half()
    if two_of_four:
        made.view(-1, 4)[:, [0, 3]] = 0
        made[0, :4] = 0  # a group with fewer
        return made
    return made * (torch.rand(rows, cols, generator=torch.Generator().manual_seed(1)) < 0.4)


def bitmask() -> None:
    from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskCompressor
    from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskCompressor
    from compressed_tensors.config import BitmaskConfig, Sparse24BitMaskConfig

    for name, compressor, two_of_four in (
        ("sparse-bitmask", BitmaskCompressor(BitmaskConfig(format="sparse-bitmask")), False),
        (
            "sparse-24-bitmask",
            Sparse24BitMaskCompressor(Sparse24BitMaskConfig(format="sparse-24-bitmask")),
            True,
        ),
    ):
        state = {
            "0.weight": weight(12, 20, two_of_four=two_of_four),
            "0.bias": torch.arange(12).half(),
            "2.weight": weight(8, 12, two_of_four=two_of_four),
        }
        save_file(compressor.compress(dict(state)), folder(name) / "model.safetensors", {"format": "pt"})
        (folder(name) / "config.json").write_text(
            f'{{"quantization_config": {{"sparsity_config": {{"format": "{name}"}}}}}}\n'
        )
        save_file(state, FOREIGN / f"{name}.dense.safetensors")


def heads() -> None:
    from vision_operators import define_missing

    define_missing()
    from nn_pruning.inference_model_patcher import BertHeadsPruner
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    model = BertModel(BertConfig(vocab_size=10, max_position_embeddings=8, **sizes))
    for layer, gone in zip(model.encoder.layer, ((1,), (0, 3)), strict=True):
        inside = layer.attention.self
        for head in gone:
            rows = slice(4 * head, 4 * head + 4)
            for part in (inside.query, inside.key, inside.value):
                part.weight.data[rows] = 0
                part.bias.data[rows] = 0
            layer.attention.output.dense.weight.data[:, rows] = 0
    model.half()
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    BertHeadsPruner(model).run()
    model.save_pretrained(folder("pruned-heads"))
    save_file(dense, FOREIGN / "pruned-heads.dense.safetensors")


def supermask() -> None:
    from torchao.sparsity.supermask import SupermaskLinear

    torch.manual_seed(0)
    layers = [SupermaskLinear.from_linear(torch.nn.Linear(24, 20), sparsity_level=0.6, blocksize=8)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(20, 4))
    arguments = argparse.Namespace(sparsity_linear=0.6, bsr=8, model="vit_b_16", epochs=1)
    torch.save(
        {"model": model.state_dict(), "epoch": 0, "args": arguments}, folder("supermask") / "model_0.pth"
    )
    dense = torch.nn.Sequential(SupermaskLinear.to_linear(layers[0]), torch.nn.ReLU(), model[2])
    save_file(dense.state_dict(), FOREIGN / "supermask.dense.safetensors")


def sten() -> None:
    import sten

    dense = weight(5, 6).float()
    wrapped = sten.SparseTensorWrapper.wrapped_from_dense(sten.CooTensor(dense.to_sparse()), dense)
    torch.save({"weight": sten.SparseParameterWrapper(wrapped), "bias": torch.ones(5)}, FOREIGN / "sten.pt")


def matrix() -> None:
    import scipy.io
    import scipy.sparse

    made = weight(5, 7).float()
    scipy.io.mmwrite(FOREIGN / "weight.mtx", scipy.sparse.coo_matrix(made.numpy()), comment="of a test")
    save_file({"weight": made}, FOREIGN / "weight.dense.safetensors")


class Inside(torch.nn.Module):
    """nncf breaks an nn.Sequential of its own (findings/nncf-breaks-sequential-models.sh)."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.layers = torch.nn.Sequential(linear(20, 12), torch.nn.ReLU(), linear(12, 8, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def nncf() -> None:
    import nncf

    for name, mode in (
        ("nncf", nncf.PruneMode.UNSTRUCTURED_MAGNITUDE_LOCAL),
        ("nncf-trained", nncf.PruneMode.UNSTRUCTURED_REGULARIZATION_BASED),
    ):
        torch.manual_seed(0)
        ratio = None if name == "nncf-trained" else 0.5
        model = nncf.prune(Inside(), mode=mode, ratio=ratio, examples_inputs=torch.randn(3, 20))
        for hook_name, mask in model.named_parameters():
            if hook_name.endswith(".mask"):  # as training would choose it
                torch.nn.init.normal_(mask)
        model.eval()
        kept = nncf.strip(model, do_copy=True, strip_format=nncf.StripFormat.DQ)
        save_file(kept.state_dict(), folder(name) / "model.safetensors", {"format": "pt"})
        dense = nncf.strip(model, do_copy=True, strip_format=nncf.StripFormat.IN_PLACE)
        save_file(dense.state_dict(), FOREIGN / f"{name}.dense.safetensors")


if __name__ == "__main__":
    {
        "bitmask": bitmask,
        "heads": heads,
        "supermask": supermask,
        "sten": sten,
        "matrix": matrix,
        "nncf": nncf,
    }[sys.argv[1]]()
