"""Writes and reads the checkpoint that an interrupted demo leaves: both models, their optimizers and curves,
in one file that is whole or absent."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sparseloom.io.files import write_whole

from .data import DemoError, Text
from .presets import device_name
from .train import Settings, Trainer, sparse_layers

NAME = "checkpoint.safetensors"
FORMAT = "sparseloom-demo-checkpoint-1"
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


def circumstances(settings: Settings, text: Text, trainers: list[Trainer]) -> dict[str, Any]:
    """Returns all that must be the same for a resumed run to go on bit for bit; JSON types only."""
    kernels = {
        f"{trainer.kind}.{name} {direction}": layer.plan(settings.tokens_per_step, direction, settings.dtype)[
            "kernel"
        ]
        for trainer in trainers
        for name, layer in sparse_layers(trainer.model).items()
        for direction in ("forward", "dx", "dw")
    }
    options = {f"--{key}": value for key, value in asdict(settings).items()}
    return options | {
        "the text's sha256": text.sha256,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "the GPU": device_name(settings.device),
        "kernels": kernels,
    }


def write(folder: Path, settings: Settings, text: Text, trainers: list[Trainer]) -> Path:
    """Writes folder/checkpoint.safetensors.

    Raises sparseloom.Error when that fails; an older checkpoint is then still whole.
    """
    tensors: dict[str, Tensor] = {}
    for trainer in trainers:
        for name, value in trainer.model.state_dict().items():
            tensors[f"{trainer.kind}/model/{name}"] = value
        for name, parameter in trainer.model.named_parameters():
            for key, value in trainer.optimizer.state[parameter].items():
                tensors[f"{trainer.kind}/{key}/{name}"] = value
        for name in ("losses", "seconds", "validation"):
            tensors[f"{trainer.kind}/course/{name}"] = torch.tensor(
                getattr(trainer, name), dtype=torch.float64
            )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    same = json.dumps(circumstances(settings, text, trainers), sort_keys=True)
    metadata = {"format": FORMAT, "circumstances": same, "sha256": _checksum(tensors, same)}
    path = folder / NAME
    write_whole(path, safetensors.torch.save(tensors, metadata))
    return path


def read(folder: Path, settings: Settings, text: Text, trainers: list[Trainer]) -> None:
    """Restores freshly made trainers from the checkpoint.

    Raises DemoError when there is none, when it is foreign or damaged, or when it was made under other
    circumstances (the first difference is named).
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DemoError(f"--resume: no checkpoint in {folder}; start without --resume", 2) from None
    except OSError as error:
        raise DemoError(f"--resume: cannot read {path}: {error.strerror}") from error
    remedy = "remove it and start without --resume"
    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        tensors = safetensors.torch.load(data)
        foreign = metadata.get("format") != FORMAT
    except (ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise DemoError(f"--resume: {path} is damaged or no checkpoint ({error}); {remedy}") from error
    if foreign:
        raise DemoError(f"--resume: {path} is not a checkpoint of this demo; {remedy}")
    if metadata.get("sha256") != _checksum(tensors, metadata.get("circumstances", "")):
        raise DemoError(f"--resume: {path} is damaged: its checksum differs; {remedy}")
    _require_same(json.loads(metadata["circumstances"]), circumstances(settings, text, trainers), path)
    for trainer in trainers:
        _fill(trainer, tensors)


def _fill(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    prefix = f"{trainer.kind}/model/"
    trainer.model.load_state_dict(
        {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    )
    for name, parameter in trainer.model.named_parameters():
        found = {
            key: tensors[f"{trainer.kind}/{key}/{name}"]
            for key in ADAM_STATE
            if f"{trainer.kind}/{key}/{name}" in tensors
        }
        if found:  # there is no state before the first step
            trainer.optimizer.state[parameter] = {
                key: tensor.to(parameter.device) for key, tensor in found.items()
            }
    course = {
        name: tensors[f"{trainer.kind}/course/{name}"].tolist()
        for name in ("losses", "seconds", "validation")
    }
    trainer.losses, trainer.seconds = course["losses"], course["seconds"]
    trainer.validation = [(int(step), bits) for step, bits in course["validation"]]


def _require_same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    now = json.loads(json.dumps(now))
    for key in now:
        if saved.get(key) != now[key]:
            was, is_ = saved.get(key), now[key]
            if isinstance(was, dict) and isinstance(is_, dict):
                key, was, is_ = next(
                    (f"{key} of {k}", was.get(k), v) for k, v in is_.items() if was.get(k) != v
                )
            raise DemoError(
                f"--resume: {path} was made with {key} {was}, here it is {is_}; "
                "give the same arguments or start without --resume",
                2,
            )


def _checksum(tensors: dict[str, Tensor], circumstances: str) -> str:
    digest = hashlib.sha256(circumstances.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
