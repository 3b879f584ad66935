import pytest

from jaxtrain.corpus.bad_words import BadWords


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# a comment\nAss\n\nbad thing\n坏话\nc++\n", encoding="utf-8")
    return BadWords.read(str(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an ass.", "ass"), ("a class", None), ("this bad thing!", "bad thing"),
        ("a bad\nthing", None), ("a bad things", None), ("他说坏话了", "坏话"),
        ("i know c++", "c++"),
        ("a bad thing, an ass", "ass"), ("a comment", None), ("", None),
    ],
)  # fmt: skip
def test_entry_is_found_as_whole_words_or_anywhere_in_scripts_without_spaces(
    listed, text, expected
):
    assert listed.find(text) == expected


def test_list_without_entries_or_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"list.txt: no word in it; write one a line"):
        BadWords.read(str(path))
    path.write_bytes(b"gro\xdf")
    with pytest.raises(ValueError, match=r"list.txt: not UTF-8 at byte 3; convert it"):
        BadWords.read(str(path))
