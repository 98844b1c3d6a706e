"""The commands that this package adds to `sparseloom`: entry points of the group sparseloom.commands.

Each takes the arguments behind its name and returns the exit status.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from sparseloom.errors import Error

#: command -> (module, function, one line of help); a module is imported only when its command is used.
COMMANDS = {
    "demo": (
        "sparseloom_bench.demo.cli",
        "demo",
        "train a block-sparse transformer beside its dense twin, on real text",
    ),
    "bench": (
        "sparseloom_bench.bench.cli",
        "bench",
        "measure kernels against dense products; one JSON file per run",
    ),
    "experiment digits": (
        "sparseloom_bench.experiment.cli",
        "digits",
        "train an MLP on scikit-learn's digits by every method; minutes on two cores",
    ),
    "experiment vit": (
        "sparseloom_bench.experiment.vit_cli",
        "vit_command",
        "train ViT-tiny on CIFAR-10 by one method; minutes on a GPU",
    ),
    "experiment char-lstm": (
        "sparseloom_bench.experiment.char_lstm_cli",
        "char_lstm_command",
        "a dense LSTM and small worlds of as many parameters, on text; some runs of minutes on a GPU",
    ),
    "experiment sentiment": (
        "sparseloom_bench.experiment.sentiment",
        "sentiment",
        "a linear model on the states of char-lstm's networks: praise or not",
    ),
    "experiment pixelcnn": (
        "sparseloom_bench.experiment.pixelcnn_cli",
        "pixelcnn_command",
        "train a PixelCNN on CIFAR-10, dense or block-diagonal and deeper; minutes on a GPU",
    ),
    "experiment lm-prune": (
        "sparseloom_bench.experiment.lm_prune_cli",
        "lm_prune_command",
        "train a byte-level GPT, prune it by every method and let it recover; minutes on a GPU",
    ),
    "experiment lm": (
        "sparseloom_bench.experiment.lm_cli",
        "lm_command",
        "train a byte-level decoder, dense, or wider and sparse at equal time; minutes on a GPU",
    ),
    "experiment semi24": (
        "sparseloom_bench.experiment.semi24_cli",
        "semi24_command",
        "train a byte-level GPT dense, in 2:4 weights and with 2:4 activations; minutes on a GPU",
    ),
    "experiment encoder": (
        "sparseloom_bench.experiment.encoder",
        "encoder_command",
        "prune a trained sentence encoder, let it recover, and time it beside other runtimes",
    ),
    "bench arms": (
        "sparseloom_bench.bench.arms",
        "arms",
        "an encoder in bf16, 2:4, 8 bits and both, on a GPU",
    ),
    "bench attention": (
        "sparseloom_bench.bench.attention",
        "attention",
        "attention over kept blocks beside dense attention, on the CPU or a GPU",
    ),
    "bench conv": (
        "sparseloom_bench.bench.conv",
        "conv",
        "block-sparse convolutions beside torch's, on the CPU",
    ),
    "bench csr": (
        "sparseloom_bench.bench.csr",
        "csr",
        "CSR products beside dense ones and torch.sparse, on the CPU or a GPU",
    ),
    "bench host": (
        "sparseloom_bench.bench.host",
        "host",
        "what a call of each kind of layer costs the host, beside torch's",
    ),
    "bench nmg": (
        "sparseloom_bench.bench.nmg",
        "nmg",
        "n:m:g products beside dense ones and CSR, on the CPU",
    ),
    "bench ranks": (
        "sparseloom_bench.bench.ranks.cli",
        "ranks",
        "sparse layers on several GPUs beside dense ones, a process for each",
    ),
    "bench lstm": (
        "sparseloom_bench.bench.lstm",
        "lstm",
        "recurrent layers beside torch's dense ones, on the CPU or a GPU",
    ),
    "bench semi24": (
        "sparseloom_bench.bench.semi24_cpu",
        "semi24_command",
        "2:4 products of few tokens beside dense ones, on the CPU",
    ),
    "bench sweep": (
        "sparseloom_bench.bench.sweep.cli",
        "sweep",
        "random problems beside dense ones, and what changed since a record",
    ),
}


def bench(arguments: Sequence[str]) -> int:
    """measure kernels, layers and models against dense ones; one JSON file per run"""
    return _run("bench", arguments)


def demo(arguments: Sequence[str]) -> int:
    """train a block-sparse transformer beside its dense twin, on real text"""
    return _run("demo", arguments)


def experiment(arguments: Sequence[str]) -> int:
    """train small models, dense and sparse: digits, vit, char-lstm, sentiment, pixelcnn, lm"""
    return _run("experiment", arguments)


def _run(word: str, arguments: Sequence[str]) -> int:
    """Runs the command of two words if there is one, else that of ``word`` alone; where that is none either,
    lists those of two words."""
    name, rest = " ".join([word, *arguments[:1]]), arguments[1:]
    if name not in COMMANDS:
        name, rest = word, arguments
    if name not in COMMANDS:
        print(
            "\n".join(f"sparseloom {n:24} {text}" for n, (*_, text) in COMMANDS.items() if n.startswith(word))
        )
        return 0 if rest in ([], ["--help"], ["-h"]) else 2
    module, function, _ = COMMANDS[name]
    try:
        import typer

        command = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sparseloom"):
            raise
        remedy = f"pip install {error.name}"
        raise Error(name, f"the package {error.name}", "an environment without it", remedy) from error
    app = typer.Typer(add_completion=False)
    app.command(name)(command)
    result = typer.main.get_command(app)(list(rest), prog_name=f"sparseloom {name}", standalone_mode=True)
    return int(result or 0)
