"""Prints the build seconds and binary bytes of one build directory.

CI prints them so that their growth is seen. Seconds are summed over compile steps as ninja logged them, so
they are those of one core; a ccache hit counts as the time it took.
"""

import sys
from pathlib import Path


def compile_seconds(log: Path) -> dict[str, float]:
    """Returns output -> seconds of its last build. A line of .ninja_log has: start ms, end ms, mtime, output,
    hash."""
    steps = {}
    for line in log.read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            steps[output] = (int(end) - int(start)) / 1000
    return steps


def main() -> int:
    build = Path(sys.argv[1])
    steps = compile_seconds(build / ".ninja_log")
    print(f"compile: {sum(steps.values()):.1f} s of one core in {len(steps)} files; slowest:")
    for output in sorted(steps, key=lambda name: -steps[name])[:5]:
        print(f"  {steps[output]:6.1f} s  {output.replace('.dir/', ': ', 1).removeprefix('CMakeFiles/')}")
    for path in (*sorted(build.glob("libsparseloom*.so")), *sorted(Path("dist").glob("*.whl"))):
        print(f"size: {path.stat().st_size:>10,} bytes  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
