"""How long a step of each arm of `sparseloom experiment lm` takes, alone on the device, and the widths at
which it takes as long as dense's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import runs
from .corpus import Corpus
from .lm import PLAN, Setting, Training
from .lm_arms import ARMS
from .runs import Run
from .steps import device_name

NAME = "speed"
#: A width fits when its step differs by no more than this share, and turns of looking for it.
NEAR, TURNS = 0.02, 4


def read(folder: Path) -> dict[str, Any]:
    """Returns what was measured: {"device", "setting", "arms": {arm: {"ms", "multiple", "shape"}}}."""
    path = folder / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"arms": {}}
    return found


def multiples(folder: Path) -> dict[str, float]:
    """Returns the widths of arms that were fitted."""
    return {arm: each["multiple"] for arm, each in read(folder)["arms"].items() if each["multiple"]}


def milliseconds(folder: Path) -> dict[str, float]:
    """Returns those of a step of each arm that was measured."""
    return {arm: each["ms"] for arm, each in read(folder)["arms"].items()}


def steps(folder: Path, seconds: float) -> int:
    """Returns the steps that dense takes in that time. Raises Error where it was not measured."""
    times = milliseconds(folder)
    if "dense" not in times:
        raise Error(PLAN.op, "the time of a dense step", f"none in {folder}", "run it with --speed first")
    return max(100, round(1e3 * seconds / times["dense"] / 100) * 100)


def measure(
    folder: Path, chosen: Sequence[str], setting: Setting, texts: Corpus, graphed: bool,
    say: Callable[[str], None], compiled: bool = False,
) -> None:  # fmt: skip
    """Measures dense, and those of the chosen arms that the folder has no time of; nothing else may run. A
    width that was fitted stays: runs have it. An arm that fails is told and left, but not dense. Raises Error
    where the folder's times have another setting."""
    found = read(folder)
    sizes = {name: getattr(setting, name) for name in ("preset", "block", "batch")}
    sizes["compiled"] = compiled
    device = device_name(texts.train.device)
    if found["arms"] and (found["setting"], found["device"]) != (sizes, device):
        got = f"those of {found['setting']} on {found['device']}"
        raise Error(PLAN.op, f"times of {sizes} on {device}", got, "pass another --out")
    found |= {"setting": sizes, "device": device}
    for arm in dict.fromkeys(["dense", *chosen]):
        if arm in found["arms"]:
            continue

        timed = partial(_timed, arm, setting, texts, graphed, compiled)
        try:
            fitted = ARMS[arm].fits is not None
            best = _fitted(arm, found["arms"]["dense"]["ms"], timed) if fitted else timed(None)
        except RuntimeError as error:
            if arm == "dense":
                raise
            say(f"{arm}: {type(error).__name__}: {error}")
            continue
        found["arms"][arm] = best
        write_whole(folder / f"{NAME}.json", (json.dumps(found, indent=1) + "\n").encode())
        say(f"{arm}: {best['ms']:.2f} ms a step, {best['parameters']:,} parameters, {best['shape']}")


def _timed(
    arm: str, setting: Setting, texts: Corpus, graphed: bool, compiled: bool, multiple: float | None
) -> dict[str, Any]:
    training = Training(Run(arm, PLAN.rates[0], 0, False), setting, texts, graphed, multiple, compiled)
    more = {"shape": list(training.shape), "parameters": training.active()}
    found = {"ms": training.milliseconds(), "multiple": multiple, **more}
    del training  # it and its graph refer to each other
    runs.release(texts.train.device)
    return found


def _fitted(arm: str, wanted: float, timed: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
    """Returns the width whose step takes the wanted time: by the line through the two nearest ones."""
    how = ARMS[arm]
    first = how.width if how.fits == "width" else how.hidden
    found = {first: timed(first)}
    seen = {first: found[first]["ms"]}
    for _ in range(TURNS - 1):
        ordered = sorted(seen, key=lambda each: abs(seen[each] - wanted))
        if abs(seen[ordered[0]] / wanted - 1) <= NEAR:
            break
        if len(ordered) == 1:
            guess = first * min(2.0, max(0.5, wanted / seen[first]))
        else:
            a, b = ordered[:2]
            slope = (seen[a] - seen[b]) / (a - b)
            guess = a + (wanted - seen[a]) / slope if slope > 0 else a
        guess = round(min(4 * first, max(0.25 * first, guess)), 3)
        if guess in seen:
            break
        found[guess] = timed(guess)
        seen[guess] = found[guess]["ms"]
    return found[min(seen, key=lambda each: abs(seen[each] - wanted))]
