import hashlib

import pytest

from jaxtrain.corpus import sources
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.inputs import Part, ReadingConfig, Unit, stdlib
from jaxtrain.corpus.step import Fields
from tests.corpora import make_config, write_lines


def test_library_comes_last_and_may_have_a_name(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", [{"text": "x"}])
    units = sources.plan(make_config(["python=stdlib:", lines]))
    assert [unit.parts[0].name for unit in units] == ["a.jsonl", stdlib.INPUT]
    assert units[1].parts[0].source == "python"


def test_no_input_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"config\.inputs is empty; name what to read: --config\."):
        sources.plan(make_config([]))


def test_input_that_is_not_there_is_refused_with_its_path():
    with pytest.raises(ValueError, match=r"config\.inputs: .*nowhere"):
        sources.plan(make_config(["nowhere/*.jsonl"]))


def test_fingerprint_is_the_hash_of_each_file_once(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.jsonl", [{"text": str(i) * 100}] * 300) for i in range(3)]
    units = sources.plan(make_config(paths))
    found = sources.input_files(units)
    assert [file.path for file in found] == [str(path) for path in paths]
    assert list(sources.fingerprints(found, LocalExecutor(1))) == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    ]


def _unit(*formats):
    return Unit(tuple(Part("f", "f", each, 0, None, "s") for each in formats), 1)


def test_fields_are_those_that_every_document_has():
    reading = ReadingConfig(fields=("mood",))
    assert sources.fields([_unit("warc")], reading) == {"mood", "mime"}
    assert sources.fields([_unit("warc"), _unit("json_lines")], reading) == {"mood"}
    assert sources.fields([_unit("code")], ReadingConfig()) == {"language"}


def test_pages_as_crawled_need_a_step_that_takes_the_text_out():
    nothing, extracts = Fields((), {}), Fields(("mime",), {})
    page = Unit((Part("w/a.warc.gz", "a.warc.gz", "warc", 0, None, "s"),), 1)
    text = Unit((Part("w/a.warc.wet.gz", "a.warc.wet.gz", "warc", 0, None, "s"),), 1)
    sources.check_pages_become_text([text, _unit("json_lines")], [nothing])
    sources.check_pages_become_text([page], [nothing, extracts])
    with pytest.raises(ValueError, match=r"w/a\.warc\.gz holds pages as HTML, .* extract_html"):
        sources.check_pages_become_text([text, page], [nothing])


def test_url_that_cannot_be_opened_is_an_error_of_the_inputs():
    with pytest.raises(ValueError, match=r"^config\.inputs: nothing://x cannot be opened"):
        sources.plan(make_config(["nothing://x"]))
