import hashlib
import os

import pytest

from jaxtrain import files


def _write_half(path):
    with files.write_whole(path) as file:
        file.write(b"half")
        raise RuntimeError


def test_write_whole_leaves_nothing_when_the_block_raises(tmp_path):
    with pytest.raises(RuntimeError):
        _write_half(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_write_whole_keeps_the_old_content_when_the_block_raises(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        _write_half(path)
    assert path.read_bytes() == b"old"


def test_write_whole_shows_no_name_before_the_end(tmp_path):
    path = tmp_path / "a.json"
    with files.write_whole(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_write_whole_makes_a_file_with_the_users_usual_mode(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with files.write_whole(tmp_path / "whole") as file:
        file.write(b"")
    modes = {os.stat(tmp_path / name).st_mode for name in ("plain", "whole")}
    assert len(modes) == 1


def test_write_whole_makes_missing_folders(tmp_path):
    files.write_json(tmp_path / "a" / "b" / "c.json", {})
    assert (tmp_path / "a" / "b" / "c.json").is_file()


def test_json_round_trips_with_its_characters_readable(tmp_path):
    value = {"text": "naïve 日本", "n": [1, 2.5, None]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value
    assert "naïve 日本" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_read_json_names_the_file_that_is_cut_short(tmp_path):
    (tmp_path / "card.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"card\.json is not JSON"):
        files.read_json(tmp_path / "card.json")


def test_sha256_is_of_the_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"content")
    assert files.sha256(tmp_path / "a") == hashlib.sha256(b"content").hexdigest()
    assert files.sha256(tmp_path / "a") == files.sha256(tmp_path / "b")
