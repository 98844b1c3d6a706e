"""Builds the site in build/site/html from docs/ and bench/results, strictly: a warning is an error.

Usage: python tools/make_site.py [--serve [PORT]], with tools/docsite/requirements.txt installed.
tools/check_site.py then checks what was built. --serve shows it on http://localhost:8000 and builds nothing.
"""

import functools
import http.server
import os
import shutil
import subprocess
import sys

from docsite.stage import staged
from generated import ROOT

SITE = ROOT / "build" / "site"


def main() -> int:
    if "--serve" in sys.argv[1:]:
        port = int(next((word for word in sys.argv[1:] if word.isdigit()), "8000"))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE / "html"))
        print(f"http://localhost:{port}")
        http.server.ThreadingHTTPServer(("localhost", port), handler).serve_forever()
    shutil.rmtree(SITE / "html", ignore_errors=True)
    staged(SITE / "pages")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", "-E"]
    command += ["-j", "2", "-c", str(ROOT / "tools" / "docsite"), "-d", str(SITE / "doctrees")]
    done = subprocess.run(
        [*command, str(SITE / "pages"), str(SITE / "html")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tools")},
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
