import sys

import pytest

from jaxtrain.corpus.ledger import Ledger
from jaxtrain.corpus.stdlib import StdlibConfig, read_stdlib

_LONG = "A sentence that says something. " * 10


def _tree(tmp_path, **contents):
    for name, content in contents.items():
        path = tmp_path.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.with_name(path.name + ".py").write_bytes(data)
    return tmp_path


def _read(root, **config):
    ledger = Ledger()
    documents = list(read_stdlib(StdlibConfig(**config), ledger, root))
    return documents, ledger.to_plain()


def test_ids_are_relative_paths_in_order_without_tests_and_packages(tmp_path):
    root = _tree(
        tmp_path,
        **{"b": "x", "a__z": "y", "test__t": "no", "a__tests__t": "no", "site-packages__s": "no"},
        encodings__cp037="no",
        _sysconfigdata_x="no",
    )
    (root / "notes.txt").write_text("no source")
    documents, _ = _read(root)
    assert [(d.id, d.text) for d in documents] == [("a/z.py", "y"), ("b.py", "x")]


def test_long_docstrings_are_documents_of_their_own_after_their_file(tmp_path):
    source = f'''"""{_LONG}module"""
class C:
    """Short."""
    def f(self):
        """{_LONG}first"""
    if True:
        def f(self):
            """{_LONG}second"""
'''
    documents, ledger = _read(_tree(tmp_path, m=source))
    assert [d.id for d in documents] == ["m.py", "m.py#L1:module", "m.py#L4:C.f", "m.py#L7:C.f"]
    assert [d.text for d in documents[1:]] == [_LONG + w for w in ("module", "first", "second")]
    assert ledger["in"]["documents"] == 4


def test_declared_encoding_is_read_and_line_ends_stay(tmp_path):
    latin = "# -*- coding: latin-1 -*-\r\nname = 'café'\r\n"
    documents, _ = _read(_tree(tmp_path, m=latin.encode("latin-1")))
    assert documents[0].text == latin


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = '\xff'\n", "undecodable"),
        (b"# coding: no-such-encoding\n", "undecodable"),
        (b"\n  \n", "empty"),
    ],
)
def test_file_that_yields_no_text_is_counted_with_its_bytes(tmp_path, content, reason):
    documents, ledger = _read(_tree(tmp_path, bad=content, good="x = 1\n"))
    assert [d.id for d in documents] == ["good.py"]
    assert ledger["dropped"] == {reason: {"documents": 1, "bytes": len(content)}}


def test_unreadable_file_is_counted(tmp_path):
    root = _tree(tmp_path, good="x = 1\n")
    (root / "gone.py").symlink_to(root / "nowhere")
    documents, ledger = _read(root)
    assert [d.id for d in documents] == ["good.py"]
    assert ledger["dropped"] == {"unreadable": {"documents": 1, "bytes": 0}}


def test_docstring_with_a_lone_surrogate_is_dropped_and_its_file_kept(tmp_path):
    documents, ledger = _read(_tree(tmp_path, m=f'"""{_LONG}\\ud800"""\n'))
    assert [d.id for d in documents] == ["m.py"]
    assert ledger["dropped"]["undecodable"]["documents"] == 1


def test_file_of_another_language_version_is_a_document_without_docstrings(tmp_path):
    documents, _ = _read(_tree(tmp_path, old="print 'hello'\n"))
    assert [d.id for d in documents] == ["old.py"]


def test_library_without_sources_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no Python sources; install Python with"):
        _read(tmp_path)


def test_this_interpreters_library_gives_megabytes_of_unique_documents():
    ledger = Ledger()
    documents = list(read_stdlib(StdlibConfig(), ledger))
    ids = [document.id for document in documents]
    assert len(set(ids)) == len(ids)
    assert {"argparse.py", "json/decoder.py"} <= set(ids)
    assert any(i.startswith("json/decoder.py#") for i in ids)
    # 9 to 12 MB in CPython 3.11 to 3.13 as shipped by python.org and by Debian.
    assert 6e6 < sum(document.num_bytes for document in documents) < 2e7, sys.version
