"""Drawings inside a page: their lines take the colour of the page's text, which an image file cannot."""

import html
import re

STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def inline(svg: str, label: str) -> str:
    """Returns the drawing as a part of a Markdown page, without the style that it has where it stands alone.
    Without empty lines: at one of them Markdown takes the HTML to have ended."""
    lines = [line for line in STYLE.sub("", svg).splitlines() if line.strip()]
    lines[0] = lines[0].replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    return "\n".join(['<div class="drawing">', *lines, "</div>"])
