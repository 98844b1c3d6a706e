"""`sparseloom experiment encoder`: a trained sentence encoder pruned, recovered and put into 8 bits, beside
its dense self and the runtimes that people use."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse
from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from .encoder_peers import peers
from .reviews import sentences
from .steps import device_name

_OP = "experiment encoder"
ATTENTION = r"encoder\.layer\.\d+\.attention\.(self\.(query|key|value)|output\.dense)"
MLP = r"encoder\.layer\.\d+\.(intermediate|output)\.dense"
#: Sentences to judge by, to calibrate with, and the inputs (batch, tokens) that are timed.
TESTED, CALIBRATED, TIMED = 2000, 1024, ((32, 64), (1, 20))
#: Of the tested sentences, the first so many are queries that rank the others.
QUERIES = 200
LONGEST = 64  # tokens

Batch = dict[str, Tensor]


class Encoder:
    """A folder of transformers with a tokenizer, and sentences as its batches."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.dense: nn.Module = AutoModel.from_pretrained(folder).float().eval().to(device)

    def batch(self, texts: list[str], **options: Any) -> Batch:
        """Returns token ids and masks [texts, tokens]."""
        given = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"} | options
        return {key: value.to(self.device) for key, value in self.tokenizer(texts, **given).items()}

    def batches(self, texts: list[str], size: int = 32) -> list[Batch]:
        """Returns the sentences in batches, in their order."""
        return [self.batch(texts[at : at + size]) for at in range(0, len(texts), size)]

    @torch.no_grad()
    def embeddings(self, model: nn.Module, texts: list[str]) -> Tensor:
        """Returns embeddings [texts, features] of norm 1: means over tokens, as sentence-transformers has
        them."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        found = torch.empty(0)
        for at in range(0, len(order), 64):
            batch = self.batch([texts[each] for each in order[at : at + 64]])
            state = model.eval()(**batch).last_hidden_state
            keep = batch["attention_mask"][..., None].to(state.dtype)
            part = F.normalize((state * keep).sum(1) / keep.sum(1), dim=-1).float().cpu()
            found = torch.cat([found, part]) if found.numel() else part
        return found[torch.tensor(order).argsort()]


def agreement(embeddings: Tensor, dense: Tensor) -> dict[str, float]:
    """Returns the mean cosine with the dense embeddings, and the mean rank correlation (Spearman) of the
    similarities by which queries rank all other sentences."""
    ranks = []
    for each in (embeddings, dense):
        rank = (each[:QUERIES] @ each[QUERIES:].T).argsort(-1).argsort(-1).double()
        ranks.append(F.normalize(rank - rank.mean(-1, keepdim=True), dim=-1))
    cosine = F.cosine_similarity(embeddings, dense, dim=-1).mean()
    return {"cosine": float(cosine), "ranks": float((ranks[0] * ranks[1]).sum(-1).mean())}


def timed(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Returns milliseconds of each call, in rounds taken in turn; the first round is left out."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if number:
                found[name].append((time.perf_counter() - begin) * 1e3)
    return found


def encoder_command(
    model: Annotated[Path, typer.Option(help="folder of the trained encoder, such as all-MiniLM-L6-v2")],
    data: Annotated[list[Path], typer.Option(help="archives of sentences, sentence_polarity.zip; repeat")],
    out: Annotated[Path, typer.Option(help="folder of the record and the pruned model")] = Path(
        "experiment-encoder"
    ),
    density: Annotated[float, typer.Option(min=0.0, max=1.0, help="of the layers of MLPs")] = 0.75,
    attention: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="density of attention's; 1: all, for 8 bits")
    ] = 1.0,
    block: Annotated[int, typer.Option(help="side of a block")] = 32,
    reconstruct: Annotated[int, typer.Option(min=0, help="steps for each block, while pruning")] = 200,
    minutes: Annotated[float, typer.Option(min=0.0, help="of the recovery; 0: none")] = 10.0,
    lr: Annotated[float, typer.Option(min=0.0, help="of the recovery")] = 3e-4,
    rounds: Annotated[int, typer.Option(min=1, help="of the timing")] = 15,
    device: Annotated[str, typer.Option(help="where it recovers and is timed")] = "cpu",
    recovered: Annotated[
        Path | None, typer.Option(help="pruned.safetensors of another run, judged and timed here")
    ] = None,
) -> None:
    """Prunes a trained encoder, lets it learn from its dense self, and draws quality beside latency."""
    encoder = Encoder(model, torch.device(device))
    texts = sentences(data)
    if len(texts) < TESTED + CALIBRATED:
        got = f"{len(texts)} in {', '.join(map(str, data))}"
        raise Error(_OP, f"{TESTED + CALIBRATED} sentences or more", got, "pass more archives with --data")
    random.Random(0).shuffle(texts)
    test, train = texts[:TESTED], texts[TESTED:]
    reference = encoder.embeddings(encoder.dense, test)
    record: dict[str, Any] = {
        "model": model.name, "device": device_name(device), "threads": torch.get_num_threads(),
        "block": block, "density": {"mlp": density, "attention": attention}, "stages": {}, "latency": {},
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)

    def judged(stage: str, pruned: nn.Module, **more: Any) -> None:
        record["stages"][stage] = agreement(encoder.embeddings(pruned, test), reference) | more
        found = record["stages"][stage]
        typer.echo(f"{stage}: cosine {found['cosine']:.4f}, ranks {found['ranks']:.4f}")

    pruned = copy.deepcopy(encoder.dense)
    if recovered is not None:
        sparseloom.load(recovered, pruned, sparsify=True)
        judged("recovered", pruned)
    else:
        begin = time.monotonic()
        recipes = {
            MLP: BlockSparse(block, density=density),
            ATTENTION: BlockSparse(block, density=attention),
        }
        batches = encoder.batches(train[:CALIBRATED])
        sparseloom.prune_(pruned, recipes, data=batches, reconstruct=reconstruct, progress=False)
        judged("pruned", pruned, seconds=round(time.monotonic() - begin, 1))
        if minutes:
            loss = sparseloom.Distillation(
                encoder.dense, embeddings=1.0, hidden=0.5, at=r"encoder\.layer\.\d+"
            )
            done = sparseloom.recover(
                pruned, loss, _Shuffled(encoder, train), minutes=minutes, lr=lr,
                checkpoint=out / "recovery.pt",
            )  # fmt: skip
            judged("recovered", pruned, steps=done.steps, minutes=minutes)
        sparseloom.save(pruned, out / "pruned.safetensors")
    calls = {"dense": encoder.dense, "sparse": pruned}
    if device == "cpu":
        calls |= {f"{name}, bf16": copy.deepcopy(each).bfloat16() for name, each in calls.items()}
        for name in ("sparse", "sparse, bf16"):  # of what is not in 8 bits
            calls[f"{name}, 8 bits"] = copy.deepcopy(calls[name])
            sparseloom.quantize_(calls[f"{name}, 8 bits"])
        for name in list(calls)[2:]:
            judged(name, calls[name])
    others = peers(encoder.dense, encoder.batch(test[:32]), out) if device == "cpu" else {}
    for name, peer in others.items():
        judged(name, _Peer(peer))
    for batch, tokens in TIMED:
        x = encoder.batch(["word " * LONGEST] * batch, padding="max_length", max_length=tokens)
        with torch.no_grad():
            runs = {name: _run(call, x) for name, call in calls.items()}
            runs |= {name: partial(call, x) for name, call in others.items()}
            record["latency"][f"{batch}x{tokens}"] = timed(runs, rounds)
    write_whole(out / "encoder.json", (json.dumps(record, indent=1) + "\n").encode())
    text = table(record)
    (out / "encoder.md").write_text(text)
    typer.echo(text)


class _Peer(nn.Module):
    """A runtime's call as a model of this module's."""

    def __init__(self, call: Callable[[Batch], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, **batch: Tensor) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(last_hidden_state=self.call(batch))


class _Shuffled:
    """Batches of sentences in an order that is new in each pass, and the same in each process."""

    def __init__(self, encoder: Encoder, texts: list[str]) -> None:
        self.encoder, self.texts, self.passes = encoder, texts, 0

    def __iter__(self) -> Any:
        texts = list(self.texts)
        random.Random(self.passes).shuffle(texts)
        self.passes += 1
        return iter(self.encoder.batch(texts[at : at + 32]) for at in range(0, len(texts), 32))


def _run(model: nn.Module, batch: Batch) -> Callable[[], object]:
    def call() -> None:
        if model(**batch).last_hidden_state.is_cuda:
            torch.cuda.synchronize()

    return call


def table(record: Mapping[str, Any]) -> str:
    """Returns quality and latency as tables in Markdown; ratios are medians over rounds of dense's time to
    that of the same round."""
    lines = [
        "# sparseloom experiment encoder",
        "",
        f"{record['model']}, blocks of {record['block']}, density {record['density']['mlp']} in MLPs and "
        f"{record['density']['attention']} in attention, on {record['device']} with {record['threads']} "
        "threads.",
        "",
        "| stage | cosine | rank correlation |",
        "|---|---|---|",
    ]
    lines += [
        f"| {stage} | {each['cosine']:.4f} | {each['ranks']:.4f} |"
        for stage, each in record["stages"].items()
    ]
    for shape, times in record["latency"].items():
        lines += ["", f"| {shape} | ms | of dense's speed (20 to 80 %) |", "|---|---|---|"]
        for name, each in times.items():
            ratios = sorted(dense / ours for dense, ours in zip(times["dense"], each, strict=True))
            low, middle, high = (ratios[int(len(ratios) * part)] for part in (0.2, 0.5, 0.8))
            median = sorted(each)[len(each) // 2]
            lines.append(f"| {name} | {median:.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join([*lines, ""])
