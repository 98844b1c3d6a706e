"""`sparseloom bench arms`: an encoder in bf16, 2:4, 8 bits, and both, for inference, on one GPU."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from sparseloom import ops
from sparseloom.errors import Error
from sparseloom.patch import Semi24, sparsify_
from sparseloom.quantize import quantize_

from .gpu.device import Monitor, describe, require_gpu, slug
from .results import default_folder, header, write_results

#: (blocks, width, heads, tokens of an image): ViT-L/16 at 224 x 224, and what a test runs on a CPU.
VIT_L, SMOKE = (24, 1024, 16, 197), (2, 64, 2, 5)
FP8 = torch.float8_e4m3fn
LINEARS = ("qkv", "proj", "fc1", "fc2")
ROUNDS = 15


class Block(nn.Module):
    """A pre-norm transformer block of width [width]: attention, then an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [images, tokens, width] to the same shape."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))  # type: ignore[no-any-return]


class DenseFp8Linear(nn.Module):
    """torch's own dense product of 8 bits: e4m3 weights with a factor for each output, inputs with one that
    was found beforehand, fast accumulation. On a CPU, which lacks it, in fp32."""

    weight: Tensor
    scale: Tensor
    x_scale: Tensor

    def __init__(self, linear: nn.Linear, x_scale: float) -> None:
        super().__init__()
        weight, scale = ops.quantize_rows(linear.weight.detach(), FP8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.flatten().unsqueeze(0).contiguous())
        self.register_buffer("x_scale", torch.full((1, 1), x_scale, device=weight.device))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [.., in] to [.., out] in the dtype of x."""
        quantized, scale = ops.quantize_rows(x.flatten(0, -2), FP8, self.x_scale)
        if x.is_cuda:
            y = torch._scaled_mm(
                quantized,
                self.weight.t(),
                scale.expand(quantized.shape[0], 1).contiguous(),
                self.scale,
                self.bias,
                out_dtype=x.dtype,
                use_fast_accum=True,
            )
        else:
            product = quantized.float() @ self.weight.float().t()
            y = (product * scale * self.scale + self.bias.float()).to(x.dtype)
        return y.unflatten(0, x.shape[:-1])


def _calibrated(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    """Returns {name: factor} of each linear layer's inputs: the largest |x| of a batch over 448."""
    factors: dict[str, float] = {}
    hooks = []
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in LINEARS:

            def look(_: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
                factors[name] = float(inputs[0].abs().max()) / 448

            hooks.append(layer.register_forward_pre_hook(look))
    model(x)
    for hook in hooks:
        hook.remove()
    return factors


def _dense_fp8(model: nn.Sequential, x: Tensor) -> None:
    for name, factor in _calibrated(model, x).items():
        block, _, own = name.rpartition(".")
        setattr(model.get_submodule(block), own, DenseFp8Linear(model.get_submodule(name), factor))  # type: ignore[arg-type]


def _sparse(model: nn.Sequential, _: Tensor) -> None:
    sparsify_(model, {rf"\d+\.({'|'.join(LINEARS)})": Semi24("magnitude")})


def _both(model: nn.Sequential, x: Tensor) -> None:
    _sparse(model, x)
    factors = {re.escape(name): factor for name, factor in _calibrated(model, x).items()}
    quantize_(model, FP8, x_scale=factors, use_fast_accum=True)


#: arm -> (what is done to the model, the arm with the same weights before they were rounded).
ARMS: dict[str, tuple[Callable[[nn.Sequential, Tensor], None], str]] = {
    "bf16": (lambda model, x: None, "bf16"),
    "sparse": (_sparse, "sparse"),
    "quantized": (_dense_fp8, "bf16"),
    "sparse + quantized": (_both, "sparse"),
}


def _model(arm: str, sizes: tuple[int, int, int, int], x: Tensor) -> nn.Sequential:
    torch.manual_seed(0)
    depth, width, heads, _ = sizes
    model = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
    model.to(x.device, torch.bfloat16).eval().requires_grad_(False)
    ARMS[arm][0](model, x)
    return model


def _replay(model: nn.Module, x: Tensor) -> tuple[Callable[[], None], Tensor]:
    """Returns what runs the model once, and the result that it writes: compiled block by block, so that one
    block is compiled, and replayed as one CUDA graph; eager on a CPU."""
    if not x.is_cuda:
        return (lambda: model(x)), model(x)
    for block in model.children():
        block.compile()
    for _ in range(3):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    return graph.replay, y


def _times(runs: dict[str, Callable[[], None]], device: torch.device) -> dict[str, list[float]]:
    """Returns ms of every arm's rounds, taken in turn."""
    times: dict[str, list[float]] = {arm: [] for arm in runs}
    for _ in range(ROUNDS):
        for arm, run in runs.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[arm].append(1e3 * (time.perf_counter() - begin))
    return times


def measure(sizes: tuple[int, int, int, int], images: int, device: torch.device) -> list[dict[str, Any]]:
    """Returns a record for each arm: ms of a batch, images per second, speed-up over bf16 with its spread,
    bytes of weights, and the relative error that rounding to 8 bits makes of the result."""
    torch.manual_seed(1)
    x = torch.randn(images, sizes[3], sizes[1], device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        made = {arm: _model(arm, sizes, x) for arm in ARMS}
        ready = {arm: _replay(model, x) for arm, model in made.items()}
        times = _times({arm: run for arm, (run, _) in ready.items()}, device)
        results = {arm: y.double() for arm, (_, y) in ready.items()}
    records = []
    for arm, (_, reference) in ARMS.items():
        ratios = sorted(dense / own for dense, own in zip(times["bf16"], times[arm], strict=True))
        error = (results[arm] - results[reference]).norm() / results[reference].norm()
        tensors = [*made[arm].parameters(), *made[arm].buffers()]
        records.append(
            {
                "op": "arm",
                "arm": arm,
                "ms": round(statistics.median(times[arm]), 3),
                "images_per_s": round(1e3 * images / statistics.median(times[arm]), 1),
                "speedup": round(statistics.median(ratios), 3),
                "speedup_spread": [round(ratios[0], 3), round(ratios[-1], 3)],
                "weight_bytes": sum(each.numel() * each.element_size() for each in tensors),
                "rounding_error": round(float(error), 5),
            }
        )
    return records


def arms(
    images: Annotated[int, typer.Option(min=1, help="of a batch")] = 64,
    smoke: Annotated[bool, typer.Option(help="a tiny encoder, on a CPU too: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times a ViT-L-like encoder for inference in four arms, bf16, 2:4, e4m3 and both, in turn on one GPU,
    and writes <results>/<device>/arms.json."""
    try:
        device = torch.device("cpu") if smoke else require_gpu("arms")
    except Error as error:
        typer.echo(f"sparseloom bench arms: {error}", err=True)
        raise typer.Exit(1) from None
    sizes = SMOKE if smoke else VIT_L
    records = measure(sizes, 2 if smoke else images, device)
    gpu = describe(device, Monitor(device)) if device.type == "cuda" else None
    head = header("burst", slug(gpu["name"]) if gpu else None)
    head |= {"suite": "arms", "encoder": list(sizes), "images": images, **({"gpu": gpu} if gpu else {})}
    table = Table("arm", "ms", "images/s", "over bf16", "weights MB", "error of 8 bits")
    for each in records:
        low, high = each["speedup_spread"]
        table.add_row(
            each["arm"],
            f"{each['ms']:.2f}",
            f"{each['images_per_s']:.0f}",
            f"{each['speedup']:.2f} ({low:.2f} to {high:.2f})",
            f"{each['weight_bytes'] / 1e6:.1f}",
            f"{each['rounding_error']:.4f}",
        )
    Console(width=100).print(table)
    path = write_results(results or default_folder(Path(".")), "arms", head, records)
    typer.echo(f"results: {path.resolve()}")
