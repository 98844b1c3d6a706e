"""Programs in processes of their own that find torch and sparseloom imported, and nothing else done: imports
are most of a short program's time, so one process does them and forks for each program."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: Reads [program, folder] a line, and answers with the exit status. The child leaves the loop and ends as any
#: interpreter does, with its traceback and exit handlers. torch imports its _dynamo at the first optimizer.
SERVER = """
import gc, json, os, runpy, sys
import sparseloom, torch._dynamo
del sparseloom, torch
gc.freeze()  # or each child copies the pages of what is imported, to collect it when it ends
for line in sys.stdin:
    program, folder = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, name in enumerate((os.devnull, program + ".out", program + ".err")):
    os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
os.chdir(folder)
sys.argv = [program]
sys.path[0] = os.path.dirname(program)
runpy.run_path(program, run_name="__main__")
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # it ends with its standard input
    return server


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the text of a program in ``folder``."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "program.py"
        path.write_text(program)
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps([str(path), str(folder)]), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        said = [Path(f"{path}.{end}").read_text() for end in ("out", "err")]
    return subprocess.CompletedProcess([str(path)], status, *said)
