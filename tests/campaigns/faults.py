"""Faults in the middle of a step: a killed writer, a full disk, Ctrl-C, too little memory, forks beside
threads, many threads. File and model have to be whole afterwards, as before or as after. A case is one
fault."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import logging
import mmap
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, sparsify_

from .child import address_space, require_none, trials
from .files import entries, same

#: Faults of one seed.
FAULTS = 10


def _dense(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 8))


_RECIPES = {"0": BlockSparse(16, 0.4), "2": Semi24(prune="magnitude")}


@functools.cache
def _sparse(seed: int) -> nn.Module:
    model = _dense(seed)
    sparsify_(model, _RECIPES)
    return model


def _whole(path: Path, of: list[nn.Module]) -> str:
    """Returns "" where the file holds one of the models."""
    model = copy.deepcopy(of[0])
    sparseloom.load(path, model)
    return "" if any(not same(entries(each), model) for each in of) else "a file of neither model"


def killed(rng: random.Random, room: Path) -> str:
    """A process that saves two models in turn is killed at any moment."""
    path, models = room / "model.safetensors", [_sparse(0), _sparse(1)]
    sparseloom.save(models[0], path)
    writer = os.fork()
    if writer == 0:
        with contextlib.suppress(BaseException):
            while True:
                for model in models:
                    sparseloom.save(model, path)
        os._exit(1)
    time.sleep(rng.random() * 0.05)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    return _whole(path, models)


def full_disk(rng: random.Random, room: Path) -> str:
    """The disk is full anywhere in the file: a small tmpfs where it can be mounted, else a limit of a file's
    size."""
    path, models = room / "model.safetensors", [_sparse(0), _sparse(1)]
    sparseloom.save(models[0], path)
    size = path.stat().st_size
    if _mount(room, size + rng.randrange(mmap.PAGESIZE, size)):
        try:
            sparseloom.save(models[0], path)
            with contextlib.suppress(Error):
                sparseloom.save(models[1], path)
            left = sorted(each.name for each in room.iterdir())
            return _whole(path, models) or ("" if left == [path.name] else f"left {left}")
        finally:
            _LIBC.umount2(os.fsencode(room), 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(size), resource.RLIM_INFINITY))
    try:
        sparseloom.save(models[1], path)
        return "a save beyond the limit"
    except Error:
        return _whole(path, models[:1])


_LIBC = ctypes.CDLL(None, use_errno=True)


def _mount(room: Path, size: int) -> bool:
    """Mounts a file system in memory of that size over ``room``; False where this process may not."""
    pages = f"size={size}".encode()
    return _LIBC.mount(b"tmpfs", os.fsencode(room), b"tmpfs", 0, pages) == 0


def interrupted(rng: random.Random, room: Path) -> str:
    """Ctrl-C at any moment of save, load and sparsify_."""
    path = room / "model.safetensors"
    models = [_sparse(0), _sparse(1)]
    sparseloom.save(models[1], path)
    step = rng.randrange(3)
    model: nn.Module = copy.deepcopy(models[0]) if step < 2 else _dense(0)
    before, kinds = entries(model), [type(each) for each in model.modules()]
    parent = os.getpid()
    arrived = threading.Event()

    def interrupt(*_: object) -> None:
        arrived.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    wait = rng.random() * 0.02
    alarm = threading.Thread(target=lambda: (time.sleep(wait), os.kill(parent, signal.SIGINT)))
    interrupted_there = False
    try:
        alarm.start()
        if step == 0:
            sparseloom.save(model, path)
        elif step == 1:
            sparseloom.load(path, model)
        else:
            sparsify_(model, _RECIPES)
        while not arrived.is_set():  # the step was done before
            time.sleep(0.001)
    except KeyboardInterrupt:
        interrupted_there = True
    alarm.join()
    if step == 0:
        return _whole(path, models)
    if step == 1:
        now = same(before, model)
        return "" if not now or not same(entries(models[1]), model) else f"half loaded: {now}"
    unchanged = [type(each) for each in model.modules()] == kinds
    if unchanged or not interrupted_there:
        return same(before, model) if unchanged and interrupted_there else ""
    model(torch.randn(2, 96))  # done, or half: then it has to say so in no way at all
    wanted = [type(each) for each in models[0].modules()]
    return "" if [type(each) for each in model.modules()] == wanted else "half sparsified"


def starved(rng: random.Random, room: Path) -> str:
    """Memory ends in the middle of load, save, sparsify_ or a product."""
    path, models = room / "model.safetensors", [_sparse(0), _sparse(1)]
    sparseloom.save(models[1], path)
    model: nn.Module = copy.deepcopy(models[0])
    dense = _dense(0)
    step = rng.randrange(4)
    x = torch.randn(rng.choice((1, 100, 20000)), 96)
    before, kinds = entries(model), [type(each) for each in dense.modules()]
    used = address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + rng.randrange(1 << 22), resource.RLIM_INFINITY))
    try:
        with contextlib.suppress(MemoryError, RuntimeError):
            if step == 0:
                sparseloom.load(path, model)
            elif step == 1:
                sparseloom.save(model, path)
            elif step == 2:
                sparsify_(dense, _RECIPES)
            else:
                model(x)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if step == 0:
        now = same(before, model)
        return "" if not now or not same(entries(models[1]), model) else f"half loaded: {now}"
    if step == 1:
        return _whole(path, models)
    if step == 2:
        wanted = [type(each) for each in models[0].modules()]
        return "" if [type(each) for each in dense.modules()] in (kinds, wanted) else "half sparsified"
    return same(before, model)


def forked(rng: random.Random, room: Path) -> str:
    """A fork while threads compute: the child computes the same bits."""
    model, x = _sparse(0), torch.randn(7, 96)
    with torch.no_grad():
        expected = model(x)
        stop = threading.Event()

        def compute() -> None:
            with torch.no_grad():
                while not stop.is_set():
                    model(x)

        workers = [threading.Thread(target=compute) for _ in range(3)]
        for worker in workers:
            worker.start()
        try:
            time.sleep(rng.random() * 0.01)
            child = os.fork()
            if child == 0:
                signal.alarm(120)
                right = torch.equal(model(x), expected)
                sparseloom.save(model, room / "child")
                os._exit(0 if right else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    return "" if status == 0 else f"the child ended with {status}"


def threaded(rng: random.Random, room: Path) -> str:
    """Threads that compute, save and load at once get the same bits and whole files."""
    models, x = [_sparse(0), _sparse(1)], torch.randn(rng.choice((1, 7, 60)), 96)
    with torch.no_grad():
        expected = [model(x) for model in models]
    wrong: list[str] = []

    def work(number: int) -> None:
        own = copy.deepcopy(models[number % 2])
        try:
            for _ in range(4):
                with torch.no_grad():
                    if not torch.equal(models[number % 2](x), expected[number % 2]):
                        wrong.append("other bits")
                sparseloom.save(models[number % 2], room / "shared")
                sparseloom.load(room / "shared", own)
                if all(same(entries(model), own) for model in models):
                    wrong.append("neither model")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return "; ".join(wrong[:3])


KINDS: dict[str, Callable[[random.Random, Path], str]] = {
    each.__name__: each for each in (killed, full_disk, interrupted, starved, forked, threaded)
}


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def case(seed: int) -> dict[str, int]:
    """Causes FAULTS faults of one kind."""
    logging.getLogger("sparseloom").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for number in (0, 1):
        _sparse(number)
    name = sorted(KINDS)[seed % len(KINDS)]

    def one(at: int) -> str:
        with _room() as room:
            return KINDS[name](random.Random(seed * FAULTS + at), room)

    require_none(name, trials(FAULTS, one, limited=False))
    return {name: FAULTS}
