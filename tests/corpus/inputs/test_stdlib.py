import sys
import sysconfig

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import ReadingConfig, read, stdlib

_LONG = "A sentence that says something. " * 10


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes a library of the given files (name with __ for /, without .py) in place of Python's."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))

    def make(**contents):
        for name, content in contents.items():
            path = tmp_path.joinpath(*name.split("__"))
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            path.with_name(path.name + ".py").write_bytes(data)
        return tmp_path

    return make


def _read(source=None):
    items = list(read(stdlib.unit(source), ReadingConfig()))
    documents = [item for item in items if isinstance(item, Document)]
    return documents, [item for item in items if not isinstance(item, Document)]


def test_ids_are_relative_paths_in_order_without_tests_and_packages(library):
    root = library(
        **{"b": "x", "a__z": "y", "test__t": "no", "a__tests__t": "no", "site-packages__s": "no"},
        encodings__cp037="no",
        _sysconfigdata_x="no",
    )
    (root / "notes.txt").write_text("no source")
    documents, _ = _read()
    assert [(d.id, d.text) for d in documents] == [("a/z.py", "y"), ("b.py", "x")]


def test_long_docstrings_are_documents_of_their_own_after_their_file(library):
    library(
        m=f'''"""{_LONG}module"""
class C:
    """Short."""
    def f(self):
        """{_LONG}first"""
    if True:
        def f(self):
            """{_LONG}second"""
'''
    )
    documents, _ = _read()
    assert [d.id for d in documents] == ["m.py", "m.py#L1:module", "m.py#L4:C.f", "m.py#L7:C.f"]
    assert [d.text for d in documents[1:]] == [_LONG + w for w in ("module", "first", "second")]
    assert [d.source for d in documents] == ["stdlib-source"] + 3 * ["stdlib-docstring"]
    assert [d.metadata["origin"] for d in documents] == ["m.py:0", "m.py:L1", "m.py:L4", "m.py:L7"]


def test_name_of_the_input_is_the_source_of_all(library):
    library(m=f'"""{_LONG}"""')
    assert [d.source for d in _read("python")[0]] == ["python", "python"]


def test_declared_encoding_is_read_and_line_ends_stay(library):
    latin = "# -*- coding: latin-1 -*-\r\nname = 'café'\r\n"
    library(m=latin.encode("latin-1"))
    assert _read()[0][0].text == latin


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = '\xff'\n", "undecodable"),
        (b"# coding: no-such-encoding\n", "undecodable"),
        (b"\n  \n", "empty text"),
    ],
)
def test_file_that_yields_no_text_is_told_with_its_bytes(library, content, reason):
    library(bad=content, good="x = 1\n")
    documents, (skipped,) = _read()
    assert [d.id for d in documents] == ["good.py"]
    assert (skipped.file, skipped.reason, skipped.num_bytes) == ("bad.py", reason, len(content))


def test_unreadable_file_is_told(library):
    root = library(good="x = 1\n")
    (root / "gone.py").symlink_to(root / "nowhere")
    documents, (skipped,) = _read()
    assert [d.id for d in documents] == ["good.py"]
    assert (skipped.file, skipped.reason, skipped.num_bytes) == ("gone.py", "unreadable", 0)


def test_docstring_with_a_lone_surrogate_is_passed_by_and_its_file_kept(library):
    library(m=f'"""{_LONG}\\ud800"""\n')
    documents, (skipped,) = _read()
    assert [d.id for d in documents] == ["m.py"]
    assert skipped.reason == "undecodable"


def test_file_of_another_language_version_is_a_document_without_docstrings(library):
    library(old="print 'hello'\n")
    assert [d.id for d in _read()[0]] == ["old.py"]


def test_library_without_sources_is_an_error(library):
    library()
    with pytest.raises(ValueError, match="holds no Python sources; install Python with"):
        _read()


def test_hash_changes_with_one_byte_and_with_one_name(library):
    root = library(a="x = 1\n", b="y = 1\n")
    first = stdlib.sha256()
    (root / "b.py").write_text("y = 2\n")
    second = stdlib.sha256()
    (root / "b.py").rename(root / "c.py")
    assert len({first, second, stdlib.sha256()}) == 3


def test_this_interpreters_library_gives_megabytes_of_unique_documents():
    documents, _ = _read()
    ids = [document.id for document in documents]
    assert len(set(ids)) == len(ids)
    assert {"argparse.py", "json/decoder.py"} <= set(ids)
    assert any(i.startswith("json/decoder.py#") for i in ids)
    # 9 to 12 MB in CPython 3.11 to 3.13 as shipped by python.org and by Debian.
    assert 6e6 < sum(document.num_bytes for document in documents) < 2e7, sys.version
