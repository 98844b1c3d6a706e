"""Runs the Python examples of a Markdown file as printed, each fenced block in a process of its own.

Usage: python tools/readme_example.py README.md, with the interpreter that has Sparseloom installed.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    text = Path(sys.argv[1]).read_text()
    blocks = FENCE.findall(text)
    if not blocks:
        print(f"{sys.argv[1]} has no Python example")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:  # examples save files
        for block in blocks:
            print("".join(f">>> {line}\n" for line in block.splitlines()), flush=True)
            failed += subprocess.run([sys.executable, "-c", block], cwd=scratch).returncode != 0
    print(f"examples: {len(blocks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
