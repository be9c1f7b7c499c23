"""Files are whole or absent."""

import contextlib

import pytest

from npulift.errors import NpuliftError
from npulift.files import atomic_file, atomic_folder


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    with contextlib.suppress(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert ([p.name for p in tmp_path.iterdir()], path.read_text()) == (["f"], "old")


def test_a_block_that_raises_leaves_the_old_folder(tmp_path):
    with atomic_folder(tmp_path / "d") as folder:
        (folder / "a").write_text("old")
    with contextlib.suppress(RuntimeError), atomic_folder(tmp_path / "d") as folder:
        (folder / "a").write_text("half")
        raise RuntimeError
    assert ([p.name for p in tmp_path.iterdir()], (tmp_path / "d" / "a").read_text()) == (["d"], "old")


def test_a_folder_in_the_place_of_a_file_is_an_error_in_words(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(NpuliftError, match="is a file"), atomic_folder(tmp_path / "f"):
        pass
