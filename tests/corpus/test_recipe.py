import json

import pytest

from jaxtrain.corpus import sources
from jaxtrain.corpus.recipe import recipe
from tests.corpora import make_config, write_lines


def _recipe(inputs, **values):
    config = make_config(inputs, **values)
    units = sources.plan(config)
    names = [file.name for file in sources.input_files(units)]
    return recipe(config, units, dict.fromkeys(names, "hash"))


@pytest.fixture
def lines(tmp_path):
    return write_lines(tmp_path / "a.jsonl", [{"text": "x"}])


def test_recipe_is_json_and_names_no_path_of_this_machine(lines, tmp_path):
    made = _recipe([f"web={lines}"], steps=("normalize",))
    assert json.loads(json.dumps(made)) == made
    assert str(tmp_path) not in json.dumps(made)
    assert made["inputs"] == {
        "a.jsonl": {"sha256": "hash", "source": "web", "format": "json_lines"}
    }


@pytest.mark.parametrize("values", [{"num_workers": 7}, {"executor": "ray"}])
def test_how_the_work_is_done_is_no_part_of_it(lines, values):
    assert _recipe([lines]) == _recipe([lines], **values)


@pytest.mark.parametrize(
    "values",
    [
        {"heldout_frac": 0.1},
        {"rejected": "all"},
        {"chunk_bytes": 5},
        {"reading__malformed": "count"},
    ],
)
def test_what_decides_the_result_is_part_of_it(lines, values):
    assert _recipe([lines]) != _recipe([lines], **values)


def test_settings_of_a_step_count_only_where_it_is_used(lines):
    nfkc = {"normalize__form": "NFKC"}
    assert _recipe([lines]) == _recipe([lines], **nfkc)
    used = {"steps": ("normalize",)}
    assert _recipe([lines], **used) != _recipe([lines], **used, **nfkc)


def test_file_that_a_step_reads_counts_by_its_content(lines, tmp_path):
    def with_words(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return _recipe([lines], steps=("c4",), c4__bad_words=str(path))

    one = with_words("here/words.txt", "bad\n")
    assert one == with_words("there/words.txt", "bad\n")
    assert one != with_words("there/words.txt", "worse\n")


def test_file_behind_a_name_counts_by_its_content(lines, tmp_path):
    def with_benchmark(folder, content):
        path = write_lines(tmp_path / folder / "b.jsonl", [{"q": content}])
        given = (f"gsm8k={path}:q",)
        return _recipe([lines], steps=("decontaminate",), decontaminate__benchmarks=given)

    one = with_benchmark("here", "a question")
    assert one == with_benchmark("there", "a question")
    assert one != with_benchmark("there", "another")


def test_place_of_an_output_decides_nothing(lines, tmp_path):
    used = {"steps": ("drop_near_duplicates",)}
    one = _recipe([lines], **used, drop_near_duplicates__save_index=str(tmp_path))
    assert one == _recipe([lines], **used)


def test_files_of_a_glob_count_by_their_content(lines, tmp_path):
    def with_positives(folder, *contents):
        for i, content in enumerate(contents):
            write_lines(tmp_path / folder / f"{i}.jsonl", [{"text": content}])
        given = (f"good={tmp_path / folder}/*.jsonl",)
        return _recipe([lines], steps=("classify_quality",), classify_quality__positives=given)

    one = with_positives("here", "a", "b")
    assert one == with_positives("there", "a", "b")
    assert one != with_positives("there", "a", "c")
    assert str(tmp_path) not in json.dumps(one)


def test_word_that_happens_to_be_the_name_of_a_file_is_a_word(lines, tmp_path, monkeypatch):
    values = {"steps": ("detect_language",), "detect_language__keep": ("en", "zh")}
    one = _recipe([lines], **values)
    (tmp_path / "en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _recipe([lines], **values) == one
