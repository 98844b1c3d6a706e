"""Provides `sparseloom experiment sentiment`: a linear model on the states of char-lstm's networks says
whether a review praises."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

from .._files import write_whole
from ..errors import Error
from ..nn import SmallWorldLSTM
from . import checkpoints, reviews
from .char_lstm import ARMS, TINY, Size, network
from .reviews import Reviews, Text
from .runs import spread
from .steps import device_name

OP = "experiment sentiment"
#: How many points more of errors than dense's the best small world may have, by the mean over the sets.
BAR = 0.3
#: Inverse strengths of the penalty that validation chooses from, and what of the states is looked at.
STRENGTHS, POOLS = (1e-4, 1e-3, 1e-2, 1e-1), ("mean", "last")
#: A text's bytes that are read, the last ones, and texts side by side.
LONGEST, BATCH, STEPS = 1024, 256, 64


def sentiment(
    models: Annotated[Path | None, typer.Option(help="the folder --out of experiment char-lstm")] = None,
    imdb: Annotated[Path | None, typer.Option(help="the table of IMDB's reviews")] = None,
    products: Annotated[
        list[Path] | None, typer.Option(help="customers' reviews, a zip archive; repeat for more")
    ] = None,
    movies: Annotated[Path | None, typer.Option(help="movie reviews, a zip archive")] = None,
    out: Annotated[Path, typer.Option(help="folder for the record and the table")] = Path(
        "experiment-sentiment"
    ),
    device: Annotated[str, typer.Option(help="cuda, or cpu")] = "cuda",
    smoke: Annotated[
        bool, typer.Option(help="seconds on a CPU: untrained networks, invented reviews")
    ] = False,
) -> None:
    """Fits logistic regressions to what the networks remember of reviews; then writes sentiment.json and the
    table. Finished networks of an earlier call are kept."""
    _regression()  # says so at once where scikit-learn is missing
    sets: dict[str, Reviews] = {}
    if smoke:
        sets["invented"] = reviews.invented()
    if imdb is not None:
        sets["imdb"] = reviews.imdb(imdb)
    if products:
        sets["customers"] = reviews.parted(reviews.products(products))
    if movies is not None:
        sets["movies"] = reviews.parted(reviews.movies(movies))
    if not sets or (models is None and not smoke):
        expected = "--models and one of --imdb, --products and --movies"
        raise Error(
            OP, expected, f"--models {models}, {len(sets)} sets", "or pass --smoke to see that it runs"
        )
    where = torch.device("cpu" if smoke else device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise Error(OP, "a CUDA device", "none", "pass --device cpu, or --smoke")
    out.mkdir(parents=True, exist_ok=True)
    path = out / "sentiment.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    setting = {
        "longest": LONGEST,
        "sets": {name: [len(part) for part in each] for name, each in sets.items()},
    }
    found: dict[str, Any] = kept if kept.get("setting") == setting else {"setting": setting, "runs": {}}
    found |= {"experiment": "sentiment", "device": device_name(where), "torch": torch.__version__}
    for name, arm, weights, net in _tiny() if smoke else trained(models or Path(), where):
        if found["runs"].get(name, {}).get("network") == weights:
            continue
        errors = {each: errors_of(net, texts) for each, texts in sets.items()}
        found["runs"][name] = {"arm": arm, "network": weights, "errors": errors}
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
        typer.echo(f"{name}: " + ", ".join(f"{each} {100 * error:.2f} %" for each, error in errors.items()))
    text = table(found)
    (out / "sentiment.md").write_text(text)
    typer.echo(text)


class Network(NamedTuple):
    """A network by name and arm, with the SHA-256 of its file."""

    name: str
    arm: str
    weights: str
    net: SmallWorldLSTM


def trained(folder: Path, device: torch.device) -> list[Network]:
    """Returns the networks that experiment char-lstm left in a folder. Raises Error where
    there is none."""
    found = []
    for path in sorted(folder.glob("*.model")):
        state = checkpoints.load(OP, path, device)
        net = network(state["arm"], Size(**state["size"]), device)
        net.load_state_dict(state["net"])
        found.append(Network(path.stem, str(state["arm"]), checkpoints.digest(path), net))
    if not found:
        raise Error(
            OP, "networks NAME.model", f"none in {folder}", "run sparseloom experiment char-lstm first"
        )
    return found


def _tiny() -> list[Network]:
    return [Network(f"{arm}.seed0", arm, "", network(arm, TINY)) for arm in ARMS[:2]]


@torch.no_grad()
def states(net: SmallWorldLSTM, texts: list[Text]) -> dict[str, Tensor]:
    """Returns what the network remembers of texts, [texts, units] in float32 on the CPU by pool: the mean of
    h over the bytes, and the last one."""
    device = next(net.parameters()).device
    head, outputs, training = net.head, net.outputs, net.training
    net.head, net.outputs = None, net.hidden_size  # all units are read
    net.eval()
    found = {pool: torch.empty(len(texts), net.hidden_size) for pool in POOLS}
    order = sorted(range(len(texts)), key=lambda each: len(texts[each].content))
    try:
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            cut = [texts[each].content[-LONGEST:] or b"\n" for each in rows]
            sizes = torch.tensor([len(each) for each in cut], device=device)
            wide = max(map(len, cut))
            joined = bytearray(b"".join(each.ljust(wide, b"\n") for each in cut))
            x = torch.frombuffer(joined, dtype=torch.uint8).view(len(cut), wide).t().to(device).long()
            total, state = torch.zeros(len(cut), net.hidden_size, device=device), None
            last = torch.zeros_like(total)
            for first in range(0, wide, STEPS):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    h, state = net(x[first : first + STEPS], state)
                at = torch.arange(first, first + len(h), device=device)[:, None]
                total += (h.float() * (at < sizes)[..., None]).sum(0)
                last += (h.float() * (at == sizes - 1)[..., None]).sum(0)
            found["mean"][rows] = (total / sizes[:, None]).cpu()
            found["last"][rows] = last.cpu()
    finally:
        net.head, net.outputs = head, outputs
        net.train(training)
    return found


def _regression() -> Any:
    """Returns scikit-learn's logistic regression. Raises Error without it."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ModuleNotFoundError as error:
        raise Error(OP, "scikit-learn", "none", "pip install scikit-learn") from error
    return LogisticRegression


def errors_of(net: SmallWorldLSTM, texts: Reviews) -> float:
    """Returns the share of the test's reviews that the linear model takes for the other kind; validation
    chooses its penalty, and what of the states it sees."""
    regression = _regression()
    seen = [states(net, part) for part in texts]
    labels = [[text.label for text in part] for part in texts]
    best: tuple[float, float] | None = None
    for pool in POOLS:
        train, val, test = (each[pool] for each in seen)
        mean, deviation = train.mean(0), train.std(0).clamp_min(1e-6)
        train, val, test = ((each - mean) / deviation for each in (train, val, test))
        for strength in STRENGTHS:
            fitted = regression(C=strength, max_iter=300).fit(train.numpy(), labels[0])
            wrong, tested = (1 - fitted.score(x.numpy(), y) for x, y in ((val, labels[1]), (test, labels[2])))
            if best is None or wrong < best[0]:
                best = wrong, tested
    assert best is not None
    return float(best[1])


def means(found: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns percent of errors by arm and set: mean and deviation of the seeds."""
    arms = [arm for arm in ARMS if any(run["arm"] == arm for run in found["runs"].values())]
    return {
        arm: {
            name: spread([100 * run["errors"][name] for run in found["runs"].values() if run["arm"] == arm])
            for name in found["setting"]["sets"]
        }
        for arm in arms
    }


def bar(found: dict[str, Any]) -> str:
    """Returns whether the best small world keeps the bar."""
    all_sets = {arm: statistics.mean(mean for mean, _ in sets.values()) for arm, sets in means(found).items()}
    worlds = [mean for arm, mean in all_sets.items() if arm != "dense"]
    if "dense" not in all_sets or not worlds:
        return "not run"
    over = min(worlds) - all_sets["dense"]
    return f"{over:+.2f} points, {'met' if over <= BAR else 'missed'}"


def table(found: dict[str, Any]) -> str:
    """Returns the record as a table in Markdown, with its bar."""
    names = list(found["setting"]["sets"])
    lines = [
        "# sparseloom experiment sentiment",
        "",
        "Percent of the test's reviews that a logistic regression on the states takes for the other kind.",
        "",
        f"| arm | seeds | {' | '.join(names)} |",
        "|---" * (2 + len(names)) + "|",
    ]
    for arm, sets in means(found).items():
        seeds = sum(run["arm"] == arm for run in found["runs"].values())
        cells = " | ".join(f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in sets.values())
        lines.append(f"| {arm} | {seeds} | {cells} |")
    lines += ["", f"- the best small world at most {BAR} points above dense, mean of the sets: {bar(found)}"]
    return "\n".join([*lines, ""])
