"""A file of answers is whole or absent, in order, and goes on where it stopped."""

import json

import pytest

from jaxtrain.serving.prompt_file import AnswerFile, read_rows

ROWS = [{"prompt": "a\u2028b"}, {"messages": [], "id": 7}, {"prompt": ""}]
RECIPE = {"sampling": {"seed": 1}}


def fill(output: AnswerFile, numbers) -> None:
    output.fill(((number, [f"answer {number}"]) for number in numbers), lambda done: None)


def stop_after(output: AnswerFile, numbers) -> None:
    def answers():
        yield from ((number, [f"answer {number}"]) for number in numbers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.fill(answers(), lambda done: None)


def test_answers_are_written_in_the_order_of_the_prompts(tmp_path):
    path = tmp_path / "out.jsonl"
    fill(AnswerFile(path, ROWS, RECIPE), [2, 0, 1])
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert lines == [
        {**row, "answers": [f"answer {number}"], "sampling": {"seed": 1}}
        for number, row in enumerate(ROWS)
    ]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("torn", [b"", b'{"row": 0, "ans', b'{"row": 1}'])
def test_a_second_start_goes_on(tmp_path, torn):
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    stop_after(AnswerFile(path, ROWS, RECIPE), [2])
    assert not path.exists()
    part.write_bytes(part.read_bytes() + torn)  # killed in the middle of a line
    output = AnswerFile(path, ROWS, RECIPE)
    assert (output.num_done, output.waiting) == (1, [0, 1])
    fill(output, [1, 0])
    whole = tmp_path / "whole.jsonl"
    fill(AnswerFile(whole, ROWS, RECIPE), [0, 1, 2])
    assert path.read_bytes() == whole.read_bytes()


def test_other_prompts_or_settings_are_not_taken_up(tmp_path):
    path = tmp_path / "out.jsonl"
    stop_after(AnswerFile(path, ROWS, RECIPE), [0])
    for rows, recipe in ((ROWS[:2], RECIPE), (ROWS, {"sampling": {"seed": 2}})):
        with pytest.raises(ValueError, match="was made from other prompts or settings"):
            AnswerFile(path, rows, recipe)


def test_an_output_that_exists_is_not_replaced(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    with pytest.raises(ValueError, match="exists; give another name"):
        AnswerFile(path, ROWS, RECIPE)


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "out.jsonl"
    first, second = AnswerFile(path, ROWS, RECIPE), AnswerFile(path, ROWS, RECIPE)

    def answers():
        yield 0, ["a"]
        with pytest.raises(ValueError, match="is being written by another run"):
            fill(second, [0, 1, 2])
        yield from ((number, ["a"]) for number in (1, 2))

    first.fill(answers(), lambda done: None)
    assert [json.loads(line)["answers"] for line in path.read_text().split("\n")[:-1]] == [
        ["a"],
        ["a"],
        ["a"],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ('{"prompt": "\\ud800"}', ":1 is not JSON: .*surrogates not allowed"),
        ('{"prompt": "a", "x": NaN}', ":1 is not JSON: .*not JSON compliant"),
        ("[" * 100_000, ":1 is not JSON"),
        ('{"prompt": "a"}\n\n{', ":3 is not JSON"),
        ("[1]", ":1 must be an object with either prompt or messages"),
        ('{"text": "a"}', ":1 must be an object with either prompt or messages"),
        ('{"prompt": "a", "messages": []}', ":1 must be an object with either"),
    ],
)
def test_a_malformed_prompt_file_names_the_line(tmp_path, content, message):
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_rows(path)


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS))
    assert read_rows(path) == ROWS
