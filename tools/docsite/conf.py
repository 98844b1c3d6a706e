"""Sphinx reads this file: furo and MyST, and a search that knows words such as 2:4 and torch.compile."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).resolve().parents[2]

project = "Sparseloom"
author = "the Sparseloom authors"
version = release = re.findall(
    r'#define SPARSELOOM_VERSION "([^"]+)"', (ROOT / "include/sparseloom/version.h").read_text()
)[0]
html_title = f"Sparseloom {release}"
extensions = ["myst_parser"]
nitpicky = True
source_suffix = {".md": "markdown"}
highlight_language = "none"  # of indented lines: commands, figures, parts of files
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}

#: A word may hold points, colons and hyphens: torch.compile, 2:4, break-even. Its parts are words too.
WORD = r"[\w]+(?:[.:\-][\w]+)*"
PART = r"\w+"


class Words(SearchEnglish):  # type: ignore[misc]
    """English, with such words whole beside their parts; the browser splits what is searched for likewise."""

    js_splitter_code = (
        "var splitQuery = (query) => query.match(/[\\p{L}\\p{N}_]+(?:[.:\\-][\\p{L}\\p{N}_]+)*/gu) || [];"
    )

    def split(self, input: str) -> list[str]:
        words = re.findall(WORD, input)
        return words + [
            part for word in words if word not in (parts := re.findall(PART, word)) for part in parts
        ]


def setup(app: Sphinx) -> None:
    app.add_search_language(Words)
