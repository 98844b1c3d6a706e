"""The file that save writes: whole or not at all, with its mode, through links, in ordinary places only."""

import os
import resource
import socket
import stat
import subprocess
import sys

import pytest

import sparseloom
from sparseloom.nn import BlockSparseLinear


def test_unwritable_places_are_named_and_an_older_file_survives(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    with pytest.raises(sparseloom.Error, match="No such file or directory"):
        sparseloom.save(layer, tmp_path / "no" / "m")
    (tmp_path / "folder").mkdir()
    with pytest.raises(sparseloom.Error, match="Is a directory"):
        sparseloom.save(layer, tmp_path / "folder")
    sparseloom.save(layer, tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limit[1]))  # the disk is full half-way
    try:
        with pytest.raises(sparseloom.Error, match="File too large"):
            sparseloom.save(BlockSparseLinear(20, 12, density=0.5, block=8), tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (tmp_path / "m").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "m"]


def test_files_get_ordinary_permissions_and_links_stay_links(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    old = os.umask(0o027)
    try:
        sparseloom.save(layer, tmp_path / "m")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640
    (tmp_path / "link").symlink_to(tmp_path / "m")
    sparseloom.save(layer, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    sparseloom.load(tmp_path / "link", layer)


def test_save_keeps_the_mode_of_the_file_that_it_replaces(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    for mode in (0o600, 0o640, 0o664):
        (tmp_path / "m").write_bytes(b"older")
        (tmp_path / "m").chmod(mode)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("m")
        for path in (tmp_path / "m", tmp_path / "link"):
            sparseloom.save(layer, path)
            assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == mode
        assert (tmp_path / "link").is_symlink() and not (tmp_path / "m").is_symlink()
        sparseloom.load(tmp_path / "m", layer)


def test_save_follows_a_link_to_a_file_that_is_not_there_yet(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    (tmp_path / "link").symlink_to("later")
    sparseloom.save(layer, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "later").is_file()


def test_save_refuses_pipes_sockets_and_devices(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        for name, kind in (("pipe", "FIFO"), ("link", "FIFO"), ("socket", "a socket")):
            with pytest.raises(sparseloom.Error, match=f"regular file.*got .*{kind}"):
                sparseloom.save(layer, tmp_path / name)
    with pytest.raises(sparseloom.Error, match="got a character device"):
        sparseloom.save(layer, os.devnull)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "socket"]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    sparseloom.save(layer, tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    program = """
import os, sys
from sparseloom.io.files import write_whole
os.fsync = lambda handle: os._exit(9)  # killed when the bytes are written, before the rename
write_whole(sys.argv[1], b"half")
"""
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "m"]).returncode == 9
    assert (tmp_path / "m").read_bytes() == before


@pytest.mark.parametrize("length", (1, 229, 230, 241, 254, 255))
def test_names_as_long_as_the_file_system_allows_can_be_saved_to(length, tmp_path):
    layer = BlockSparseLinear(20, 12, density=0.5, block=8)
    for letter in ("a", "\u00e9"):  # of one byte and of two
        path = tmp_path / (letter * (length // len(letter.encode())) or "a")
        for _ in range(2):  # a new file, and one that is there
            sparseloom.save(layer, path)
        sparseloom.load(path, layer)
        path.unlink()
    assert not list(tmp_path.iterdir())
