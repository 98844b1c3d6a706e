"""The gallery of patterns: one command writes it, the same bytes each time."""

import re
import xml.etree.ElementTree as ET

import pytest

from sparseloom import cli, pattern
from sparseloom.pattern import gallery


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery") / "new" / "folder"
    assert cli.main(["patterns", "--out", str(folder)]) == 0
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_one_command_writes_pictures_figures_and_the_animation(written):
    drawn = gallery.pictures()
    assert set(written) == {f"{picture.name}.svg" for picture in drawn} | {"spreading.svg", "index.html"}
    for picture in drawn:
        assert picture.call.split("(")[0] in dir(pattern)
        assert f'src="{picture.name}.svg"' in written["index.html"]
        assert len(written[f"{picture.name}.svg"]) < 8000
        ET.fromstring(written[f"{picture.name}.svg"])
        assert len(gallery.figures(picture.made)) == len(gallery.HEAD)
    assert gallery.figures(drawn[0].made)[-1].endswith("100")


def test_the_animation_shows_every_node_once_and_ends_with_all(written):
    film = written["spreading.svg"]
    assert film == gallery.spreading() != gallery.spreading(seed=2) and len(film) < 30000
    root = ET.fromstring(film)
    space = {"s": "http://www.w3.org/2000/svg"}
    panels = root.findall("s:g/s:g", space)
    assert len(panels) == 2
    steps = []
    for panel in panels:
        nodes = set()
        for path in panel.iterfind(".//s:path", space):
            for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)", path.get("d", "")):
                cells = {(int(x) + i, int(y)) for i in range(int(run))}
                assert not nodes & cells
                nodes |= cells
        assert len(nodes) == gallery.SIDE**2
        *_, last = panel.findall("s:text", space)
        assert "100 % in" in (last.text or "") and last.get("display") is None
        steps.append(len(panel.findall("s:text", space)) - 1)
    assert steps[0] == gallery.SIDE // 2 and steps[1] < steps[0] / 2  # the lattice alone goes side by side
    times = [float(t) for line in re.findall('keyTimes="([^"]*)"', film) for t in line.split(";")]
    assert all(0 <= time < 1 for time in times)


def test_its_small_world_has_paths_of_less_than_five_steps():
    side = gallery.SIDE**2 * 8
    made = pattern.watts_strogatz_2d(side, side, 8, gallery.NEIGHBOURS, gallery.REWIRED, 1)
    assert pattern.small_world(made).path_length < 5


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["patterns", "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "pass --out FOLDER" in said
