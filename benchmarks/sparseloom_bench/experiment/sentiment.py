"""Provides `sparseloom experiment sentiment`: a linear model on the states of char-lstm's networks says
whether a review praises."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from sparseloom.errors import Error
from sparseloom.io.files import write_whole
from sparseloom.nn import SmallWorldLSTM

from . import checkpoints, reviews
from .char_lstm import ARMS, TINY, Size, network
from .curves import page
from .reviews import Reviews, Text
from .runs import spread
from .steps import device_name

OP = "experiment sentiment"
#: How many points more of errors than dense's the best small world may have, by the mean over the sets.
BAR = 0.3
#: Inverse strengths of the penalty that validation chooses from, and what of the states is looked at.
STRENGTHS, POOLS = (1e-4, 1e-3, 1e-2, 1e-1), ("mean", "last")
#: A text's bytes that are read, the last ones, texts side by side, and bytes in a call. A step of time takes
#: some forty kernels, whatever the texts side by side: with few of them a GPU waits for the host.
LONGEST, BATCH, STEPS = 1024, 1024, 32


def sentiment(
    models: Annotated[Path | None, typer.Option(help="the folder --out of experiment char-lstm")] = None,
    imdb: Annotated[Path | None, typer.Option(help="the table of IMDB's reviews")] = None,
    products: Annotated[
        list[Path] | None, typer.Option(help="customers' reviews, a zip archive; repeat for more")
    ] = None,
    movies: Annotated[Path | None, typer.Option(help="movie reviews, a zip archive")] = None,
    out: Annotated[Path, typer.Option(help="folder for fits, the record and the table")] = Path(
        "experiment-sentiment"
    ),
    only: Annotated[str, typer.Option(help="regex of the networks to look at now, as 'dense.*'")] = ".*",
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 4.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu")] = "cuda",
    smoke: Annotated[
        bool, typer.Option(help="seconds on a CPU: untrained networks, invented reviews")
    ] = False,
) -> None:
    """Fits logistic regressions to what the networks remember of reviews; then writes sentiment.json, and the
    table and page of the networks that have all fits. Commands for several networks may run side by side."""
    begin = time.monotonic()
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
    for each in _tiny(only) if smoke else trained(models or Path(), where, only):
        if not _fitted(each, sets, out, lambda: time.monotonic() - begin >= 60 * minutes):
            typer.echo(f"{each.name}: not all fits; run the same command again")
            return
        typer.echo(f"{each.name}: all fits, {time.monotonic() - begin:.0f} s")
    weights = (
        None
        if smoke
        else {path.stem: checkpoints.digest(path) for path in (models or Path()).glob("*.model")}
    )
    found = record(out, sets, weights) | {"device": device_name(where), "torch": torch.__version__}
    text = table(found)
    write_whole(out / "sentiment.json", (json.dumps(found, indent=1) + "\n").encode())
    write_whole(out / "sentiment.md", text.encode())
    bars = {
        "percent of errors, test": means(found),
        "percent of errors, validation": means(found, "validation"),
    }
    write_whole(out / "sentiment.html", page(f"sparseloom {OP}", text, {}, bars=bars).encode())
    typer.echo(text)


def _fitted(network: Network, sets: Mapping[str, Reviews], out: Path, stop: Callable[[], bool]) -> bool:
    """Makes the fits that a network lacks, one file for all of them, and returns True, or until ``stop`` says
    so after one."""
    path = out / f"{network.name}.fits"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("network") != network.weights:
        kept = {"name": network.name, "arm": network.arm, "network": network.weights, "sets": {}}
    for name, texts in sets.items():
        mine = kept["sets"].get(name, {})
        if mine.get("setting") != _setting(texts):
            mine = kept["sets"][name] = {"setting": _setting(texts), "fits": {}}
        for fit, wrong in fits(network.net, texts, set(mine["fits"])):
            mine["fits"][fit] = wrong
            write_whole(path, (json.dumps(kept) + "\n").encode())
            if stop():
                return all(_whole(kept, each, some) for each, some in sets.items())
    return True


def _setting(texts: Reviews) -> dict[str, Any]:
    return {"longest": LONGEST, "texts": [len(part) for part in texts]}


def _whole(kept: dict[str, Any], name: str, texts: Reviews) -> bool:
    """Returns whether a network has all fits of a set."""
    mine = kept["sets"].get(name, {})
    return mine.get("setting") == _setting(texts) and len(mine["fits"]) == len(POOLS) * len(STRENGTHS)


def record(out: Path, sets: Mapping[str, Reviews], weights: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns what the networks reached that have all fits of these sets: {"experiment", "setting", "runs"}.
    Of the fits of a set, the one with the fewest errors of validation counts; of networks, those with the
    SHA-256 of ``weights``, by name."""
    runs = {}
    every = [json.loads(path.read_text()) for path in sorted(out.glob("*.fits"))]
    for kept in sorted(every, key=lambda each: ARMS.index(each["arm"])):
        current = weights is None or weights.get(kept["name"]) == kept["network"]
        if not current or not all(_whole(kept, name, texts) for name, texts in sets.items()):
            continue
        best = {name: min(kept["sets"][name]["fits"].values(), key=lambda wrong: wrong[0]) for name in sets}
        runs[kept["name"]] = {
            "arm": kept["arm"], "network": kept["network"],
            "validation": {name: wrong[0] for name, wrong in best.items()},
            "errors": {name: wrong[1] for name, wrong in best.items()},
        }  # fmt: skip
    counts = {name: [len(part) for part in texts] for name, texts in sets.items()}
    return {"experiment": "sentiment", "setting": {"longest": LONGEST, "sets": counts}, "runs": runs}


class Network(NamedTuple):
    """A network by name and arm, with the SHA-256 of its file."""

    name: str
    arm: str
    weights: str
    net: SmallWorldLSTM


def trained(folder: Path, device: torch.device, only: str = ".*") -> Iterator[Network]:
    """Yields the networks that experiment char-lstm left in a folder and whose names match ``only``. Raises
    Error where there is none."""
    paths = [path for path in sorted(folder.glob("*.model")) if re.fullmatch(only, path.stem)]
    if not paths:
        got = f"none in {folder} that match {only!r}"
        raise Error(OP, "networks NAME.model", got, "run sparseloom experiment char-lstm first")
    for path in paths:
        state = checkpoints.load(OP, path, device)
        net = network(state["arm"], Size(**state["size"]), device)
        net.load_state_dict(state["net"])
        yield Network(path.stem, str(state["arm"]), checkpoints.digest(path), net)


def _tiny(only: str) -> Iterator[Network]:
    for arm in ARMS[:2]:
        if re.fullmatch(only, f"{arm}.seed0"):
            yield Network(f"{arm}.seed0", arm, "", network(arm, TINY))


@torch.no_grad()
def states(net: SmallWorldLSTM, texts: list[Text]) -> dict[str, Tensor]:
    """Returns what the network remembers of texts, [texts, units] in float32 where it lies, by pool: the mean
    of h over the bytes, and the last one."""
    device = next(net.parameters()).device
    head, outputs, training = net.head, net.outputs, net.training
    net.head, net.outputs = None, net.hidden_size  # all units are read
    net.eval()
    found = {pool: torch.empty(len(texts), net.hidden_size, device=device) for pool in POOLS}
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
            found["mean"][rows] = total / sizes[:, None]
            found["last"][rows] = last
    finally:
        net.head, net.outputs = head, outputs
        net.train(training)
    return found


def logistic(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Returns weights [features] and bias [1] of the logistic regression of labels y [texts], 0 or 1, on x
    [texts, features], both float64 where x is: the least of |w|^2 / 2 + strength * the sum of losses, by
    L-BFGS. scikit-learn's has the same least, and no GPU: with 20,000 texts it takes minutes."""
    found = torch.zeros(x.shape[1] + 1, dtype=x.dtype, device=x.device, requires_grad=True)
    y, scale = y.to(x.dtype), 1 / (strength * len(x))
    steps = torch.optim.LBFGS(
        [found], max_iter=300, tolerance_grad=1e-6, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        steps.zero_grad()
        logits = x @ found[:-1] + found[-1]
        value = F.binary_cross_entropy_with_logits(logits, y) + found[:-1].square().sum() * (scale / 2)
        value.backward()
        return value

    steps.step(loss)  # type: ignore[no-untyped-call]
    whole = found.detach()
    return whole[:-1], whole[-1:]


def fits(
    net: SmallWorldLSTM, texts: Reviews, done: Collection[str] = ()
) -> Iterator[tuple[str, list[float]]]:
    """Yields the fits that are not ``done``, by name: the shares of the reviews of validation and test that
    the linear model takes for the other kind. They differ in what of the states it sees, and in the inverse
    strength of its penalty."""
    missing = [(pool, each) for pool in POOLS for each in STRENGTHS if f"{pool} {each:g}" not in done]
    if not missing:
        return
    seen = [states(net, part) for part in texts]
    device = seen[0][POOLS[0]].device
    labels = [torch.tensor([text.label for text in part], device=device) for part in texts]
    for pool in dict.fromkeys(pool for pool, _ in missing):
        train, val, test = (each[pool].double() for each in seen)
        mean, deviation = train.mean(0), train.std(0).clamp_min(1e-6)
        train, val, test = ((each - mean) / deviation for each in (train, val, test))
        for strength in (each for name, each in missing if name == pool):
            weight, bias = logistic(train, labels[0], strength)
            wrong = [
                float(((x @ weight + bias > 0) != y.bool()).double().mean())
                for x, y in ((val, labels[1]), (test, labels[2]))
            ]
            yield f"{pool} {strength:g}", wrong


def means(found: dict[str, Any], part: str = "errors") -> dict[str, dict[str, tuple[float, float]]]:
    """Returns percent of errors by arm and set, of the test or of ``validation``: mean and deviation of the
    seeds."""
    arms = [arm for arm in ARMS if any(run["arm"] == arm for run in found["runs"].values())]
    return {
        arm: {
            name: spread([100 * run[part][name] for run in found["runs"].values() if run["arm"] == arm])
            for name in found["setting"]["sets"]
        }
        for arm in arms
    }


def bar(found: dict[str, Any]) -> str:
    """Returns whether the small world that is best by validation keeps the bar."""
    tested, validated = (
        {arm: statistics.mean(mean for mean, _ in sets.values()) for arm, sets in means(found, part).items()}
        for part in ("errors", "validation")
    )
    worlds = [arm for arm in tested if arm != "dense"]
    if "dense" not in tested or not worlds:
        return "not run"
    over = tested[min(worlds, key=lambda arm: validated[arm])] - tested["dense"]
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
    lines += [
        "",
        f"- the best small world by validation at most {BAR} points above dense, mean of the sets: "
        f"{bar(found)}",
    ]
    return "\n".join([*lines, ""])
