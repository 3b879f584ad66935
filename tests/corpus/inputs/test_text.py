import gzip

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, Skipped, plan, read

_COUNT = ReadingConfig(malformed="count", max_document_bytes=100_000)


def _items(path, reading=_COUNT):
    return [item for unit in plan([str(path)], reading) for item in read(unit, reading)]


def test_one_file_is_one_document_with_its_characters_as_they_are(tmp_path):
    text = "# Title\r\n\r\nline\u2028 one \n\n"
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert _items(tmp_path / "a.md") == [Document("a.md", text, "a", {"origin": "a.md:0"})]


def test_compressed_text_is_one_document_too(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("naïve".encode()))
    [document] = _items(tmp_path / "*.gz")
    assert (document.id, document.text) == ("a.txt.gz", "naïve")


def test_settings_of_records_do_not_matter_to_whole_files(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    reading = ReadingConfig(text_field="body", id_field="uid", source_field="site")
    assert [d.text for d in _items(tmp_path / "a.txt", reading)] == ["text"]


def test_files_that_are_no_text_are_counted(tmp_path):
    (tmp_path / "1.txt").write_bytes(b"a\xffb")
    (tmp_path / "2.txt").write_bytes(b"a" * 100_001)
    (tmp_path / "3.txt.gz").write_bytes(gzip.compress(b"text" * 1000)[:-9])
    (tmp_path / "4.txt").write_text(" \n")
    bad, long, cut, empty = _items(tmp_path / "*")
    assert isinstance(bad, Malformed)
    assert [item.reason for item in (bad, long, cut)] == ["bad UTF-8", "too long", "damaged file"]
    assert empty == Skipped("4.txt", 0, "empty text", 2)
