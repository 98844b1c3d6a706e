"""The command line. info, plan and patterns need nothing but torch; demo and bench need the cli extra, and
are imported when they are used."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import Error

#: command -> (module, typer function, one line of help); the modules are imported only when the command is
#: used.
TYPER_COMMANDS = {
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
    "bench arms": (
        "sparseloom_bench.bench.arms",
        "arms",
        "an encoder in bf16, 2:4, 8 bits and both, on a GPU",
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
#: extra -> the packages that it installs.
EXTRAS = {"cli": ("typer", "rich", "tqdm"), "viz": ("matplotlib", "jinja2")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status. An Error of the library becomes one line on stderr and
    status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        for words in (2, 1):
            if (name := " ".join(arguments[:words])) in TYPER_COMMANDS:
                return _typer_command(name, arguments[words:])
        parsed = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except Error as error:
        print(f"sparseloom: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = argparse.ArgumentParser(prog="sparseloom", description="Block-sparse layers for PyTorch.")
    parser.add_argument("--version", action="version", version=f"sparseloom {__version__}")
    parser.add_argument(
        "--cmake-dir", action=_CmakeDir, nargs=0, help="print where CMake's find_package(sparseloom) finds it"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info", help="versions, machine, kernels compiled in, and why a part is missing"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    plan = commands.add_parser("plan", help="which kernel a layer would run, and why")
    plan.add_argument("--tokens", type=int, default=1024, help="rows of x (default 1024)")
    plan.add_argument("--in-features", type=int, default=4096, help="default 4096")
    plan.add_argument("--out-features", type=int, default=4096, help="default 4096")
    plan.add_argument("--density", type=float, default=0.1, help="share of blocks kept (default 0.1)")
    plan.add_argument("--block", type=_block, default=(32, 32), help="32 or 32x64 (default 32)")
    plan.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16", "float64"))
    plan.add_argument("--direction", default="forward", choices=("forward", "dx", "dw"))
    plan.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1: where it would run (default cpu)")
    plan.add_argument("--residual", action="store_true", help="forward adds a residual")
    plan.add_argument("--accumulate", action="store_true", help="dw is added to a float32 main_grad")
    plan.add_argument("--measure", action="store_true", help="also run the candidates, for about a second")
    plan.add_argument("--strict", action="store_true", help="forbid the dense and reference kernels")
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.set_defaults(run=_plan)
    patterns = commands.add_parser(
        "patterns", help="a gallery of patterns, and a signal that spreads through a small world"
    )
    patterns.add_argument("--out", type=Path, default=Path("patterns-out"), help="folder (patterns-out)")
    patterns.add_argument("--seed", type=int, default=1, help="of the patterns that are drawn (default 1)")
    patterns.set_defaults(run=_patterns)
    for name, (_, _, text) in TYPER_COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


class _CmakeDir(argparse.Action):
    """Prints the folder of the package's CMake files and exits, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        folder = Path(__file__).parent / "cmake"
        if not (folder / "sparseloom-config.cmake").exists():
            remedy = "pip install the package, or cmake --install the build"
            raise Error("--cmake-dir", "an installed package", f"none in {folder}, of a source tree", remedy)
        print(folder)
        parser.exit()


def _block(text: str) -> tuple[int, int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2:
        raise ValueError(text)
    return sides[0], sides[-1]


def gathered_info() -> dict[str, Any]:
    """Returns what ``sparseloom info`` prints: the core's own report, Python, torch, and the optional
    packages, each with the reason if it is missing."""
    import torch

    from . import ops

    extras = {}
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        extras[extra] = (
            f'missing {", ".join(missing)}: pip install "sparseloom[{extra}]"' if missing else "installed"
        )
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "sparseloom": ops.info(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch threads": torch.get_num_threads(),
        "torch cuda": torch.version.cuda or "none: a CPU build of torch",
        "gpus": gpus or "none found",
        "extras": extras,
    }


def _info(parsed: argparse.Namespace) -> int:
    found = gathered_info()
    print(json.dumps(found, indent=2) if parsed.json else "\n".join(_lines(found)))
    return 0


def _lines(entries: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in entries.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            lines += [f"{indent}{key}", *(line for item in value for line in _lines(item, indent + "  "))]
        else:
            text = ", ".join(str(item) for item in value) if isinstance(value, list) else value
            lines.append(f"{indent}{key + ':':<{max(1, 22 - len(indent))}} {text}")
    return lines


def _plan(parsed: argparse.Namespace) -> int:
    import torch

    from . import nn

    own = parsed.device if parsed.measure else "meta"
    layer = nn.BlockSparseLinear(
        parsed.in_features, parsed.out_features, density=parsed.density, block=parsed.block, device=own
    )
    layer.strict = parsed.strict
    asked = {name: getattr(parsed, name) for name in ("device", "measure", "residual", "accumulate")}
    plan = layer.plan(parsed.tokens, parsed.direction, getattr(torch, parsed.dtype), **asked)
    print(json.dumps(plan, indent=2) if parsed.json else plan["text"].rstrip())
    return 0


def _patterns(parsed: argparse.Namespace) -> int:
    from .pattern import gallery

    try:
        written = gallery.write(parsed.out, parsed.seed)
    except OSError as error:
        raise Error("patterns", "a folder that can be written", str(error), "pass --out FOLDER") from error
    print("\n".join(str(path) for path in written))
    return 0


def _typer_command(name: str, arguments: list[str]) -> int:
    module, function, _ = TYPER_COMMANDS[name]
    try:
        import typer

        command = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sparseloom"):
            raise
        remedy = 'pip install "sparseloom[cli,viz]"'
        raise Error(
            name, f"the optional package {error.name}", "an environment without it", remedy
        ) from error
    app = typer.Typer(add_completion=False)
    app.command(name)(command)
    result = typer.main.get_command(app)(arguments, prog_name=f"sparseloom {name}", standalone_mode=True)
    return int(result or 0)
