"""Ctrl-C in the middle of a call leaves the model as it was; a long call says how far it is on a terminal
alone."""

import copy
import io
import logging
import signal
import threading

import pytest
import torch
from torch import nn

import sparseloom as sl
from sparseloom import _progress
from sparseloom._progress import Bar

BLOCKS = sl.BlockSparse(16, 0.5)
X = torch.randn(8, 64)


def chain(width=64):
    torch.manual_seed(0)
    return nn.Sequential(
        *(part for _ in range(3) for part in (nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)))
    )


def sparse():
    model = chain()
    sl.sparsify_(model, nothing_said(BLOCKS))
    return model


def nothing_said(recipe):
    logging.getLogger("sparseloom").addHandler(logging.NullHandler())
    return recipe


def sparsify(model):
    sl.sparsify_(model, BLOCKS)


def prune(model):
    sl.prune_(model, BLOCKS, data=[torch.randn(128, 64)])


def masked():
    model = sparse()
    sl.unpack_(model)
    return model


def normed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32)).eval()
    sl.sparsify_(model, {"0": nothing_said(BLOCKS)})
    return model


def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=30, **sizes)).eval()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[:, 32:] = 0  # half of the inner features do nothing
    return model


#: A call that changes a model, and the part of the library in whose second run Ctrl-C comes.
CALLS = {
    "sparsify_": (chain, sparsify, "sparseloom.patch.config.BlockSparse.chosen"),
    "sparsify_, layers made": (chain, sparsify, "sparseloom.patch.config.Blocks.made"),
    "sparsify_ at the end": (chain, sparsify, "sparseloom.patch.exchange.apply"),
    "permute_channels_": (
        chain, lambda model: sl.permute_channels_(model, X), "sparseloom.permute.permute._Moves.reorder",
    ),
    "permute_channels_, search": (
        chain, lambda model: sl.permute_channels_(model, X), "sparseloom.permute.permute.channel_order",
    ),
    "quantize_": (sparse, sl.quantize_, "sparseloom.quantize.eight_bit_of"),
    "prune_": (chain, prune, "sparseloom.prune.flow.pruned"),
    "sparsify_, told": (chain, sparsify, "sparseloom.patch.sparsify.announce"),
    "densify_, told": (sparse, sl.densify_, "sparseloom.patch.densify.announce"),
    "pack_, told": (masked, sl.pack_, "sparseloom.patch.pack.announce"),
    "unpack_, told": (sparse, sl.unpack_, "sparseloom.patch.unpack.announce"),
    "quantize_, told": (sparse, sl.quantize_, "sparseloom.quantize.announce"),
    "fold_batchnorm_, told": (normed, sl.fold_batchnorm_, "sparseloom.patch.fold_batchnorm.announce"),
    "permute_channels_, told": (
        chain, lambda model: sl.permute_channels_(model, X), "sparseloom.permute.permute.announce",
    ),
    "prune_, told": (chain, lambda model: prune(model), "sparseloom.prune.api.announce"),
    "prune_, its plan told": (chain, lambda model: prune(model), "sparseloom.prune.api.announce"),
    "shrink_, told": (bert, sl.shrink_, "sparseloom.shrink.shrink.announce"),
    "advise": (chain, lambda model: sl.advise(model, X, seconds=0.01), "sparseloom.advise.in_turn"),
    "report": (sparse, lambda model: sl.report(model, X, seconds=0.01), "sparseloom.report.layers.in_turn"),
}  # fmt: skip


#: Where the part has to run once before: the first run changes nothing yet.
SECOND = (
    "sparsify_", "sparsify_, layers made", "permute_channels_", "permute_channels_, search", "quantize_",
    "prune_", "prune_, told", "report",
)  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_ctrl_c_leaves_the_model_as_it_was(case, monkeypatch):
    make, call, inside = CALLS[case]
    model = make()
    modules = dict(model.named_modules())
    modes = {name: module.training for name, module in modules.items()}
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    target, _, name = inside.rpartition(".")
    owner = _resolved(target)
    real, runs = getattr(owner, name), []

    def interrupted(*arguments, **keywords):
        runs.append(name)
        if len(runs) == (2 if case in SECOND else 1):
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(model)
    monkeypatch.undo()
    assert Bar._open is None
    assert dict(model.named_modules()) == modules  # the very same modules
    assert {name: module.training for name, module in modules.items()} == modes
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(_equal(after[name], before[name]) for name in before)
    assert case not in ("advise", "report") or torch.equal(random, torch.get_rng_state())
    call(model)  # and the call can be made again


def _equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _resolved(path):
    import importlib

    parts = path.split(".")
    for at in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def test_a_long_search_for_channels_hears_ctrl_c(monkeypatch):
    """The search runs in C++ without the GIL: an interrupt that comes while it runs ends it."""
    from sparseloom.permute import permute

    told = []

    def interrupted(*arguments):
        told.append(arguments)
        signal.raise_signal(signal.SIGINT)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 512))
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(permute, "_tell", interrupted)
    # a shell that starts the tests in the background has them ignore SIGINT
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sl.permute_channels_(model, torch.randn(4, 64))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(told) == 1
    assert not any(thread.name == "sparseloom channel order" for thread in threading.enumerate())
    assert all(torch.equal(model.state_dict()[name], entry) for name, entry in before.items())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_terminals_and_for_calls_that_last(terminal, monkeypatch):
    stream, now = Terminal() if terminal else io.StringIO(), [0.0]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with Bar("sparsify_") as bar:
        for _ in bar.over(["a", "b", "c", "d"]):
            with Bar("quantize_", 3) as inner:  # within another call
                inner.at(1, "inner")
            now[0] += 0.9
        assert bar.total == 4
    said = stream.getvalue()
    if not terminal:
        assert said == ""
        return
    assert "sparsify_: 3 of 4, d" in said and "sparsify_: 1 of 4" not in said and "inner" not in said
    assert said.endswith("\r\x1b[K") and Bar._open is None


def test_a_log_that_wants_it_hears_of_long_calls(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.INFO, "sparseloom"), Bar("prune_", 4) as bar:
        for done in range(4):
            bar.at(done, f"block {done}")
            now[0] += 6.0
    assert [record.getMessage() for record in caplog.records] == ["prune_: 2 of 4, block 2, 12 s"]
