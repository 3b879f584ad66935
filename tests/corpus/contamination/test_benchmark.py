import json

import pytest

from jaxtrain.corpus.contamination.benchmark import BenchmarkSpec, read_benchmark, read_benchmarks


def _spec(tmp_path, rows, fields):
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return BenchmarkSpec("b", str(path), fields)


def test_spec_is_name_file_and_fields():
    spec = BenchmarkSpec.parse("gsm8k=s3://bucket/a=b/test.jsonl:question,answer")
    assert spec == ("gsm8k", "s3://bucket/a=b/test.jsonl", ("question", "answer"))


@pytest.mark.parametrize("text", ["gsm8k", "file.jsonl:question", "a=file.jsonl", "a=f.jsonl:"])
def test_spec_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"must have the form name=file:question_field"):
        BenchmarkSpec.parse(text)


def test_items_hold_the_question_first_and_choices_as_text(tmp_path):
    rows = [{"q": "What?", "choices": ["one", "two"], "gold": 1}, {"q": "?", "choices": {"a": []}}]
    rows[1]["gold"] = None
    items = read_benchmark(_spec(tmp_path, rows, ("q", "choices", "gold"))).items
    assert [item.texts for item in items] == [("What?", "one\ntwo", "1"), ("?", "", "")]
    assert items[0].question == "What?"


def test_item_without_a_question_keeps_its_row(tmp_path):
    items = read_benchmark(_spec(tmp_path, [{"q": ""}, {"q": "b"}], ("q",))).items
    assert [item.question for item in items] == ["", "b"]


def test_missing_field_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"bench\.jsonl:2: has no `answer` among its keys"):
        read_benchmark(_spec(tmp_path, [{"q": "a", "answer": 1}, {"q": "b"}], ("q", "answer")))


def test_benchmark_without_items_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no item of b"):
        read_benchmark(_spec(tmp_path, [], ("q",)))


def test_hash_follows_the_content_of_the_file_not_its_name(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"q": "a"}')
    (tmp_path / "y.jsonl").write_text('{"q": "a"}')
    (tmp_path / "z.jsonl").write_text('{"q": "b"}')
    x, y, z = read_benchmarks([f"{name}={tmp_path}/{name}.jsonl:q" for name in "xyz"])
    assert x.sha256 == y.sha256 != z.sha256
