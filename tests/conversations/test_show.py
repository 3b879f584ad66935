"""What is shown of an example is its ids, decoded, with what is trained marked."""

import io

from rich.console import Console

from jaxtrain.chat.source import chat_template, teach
from jaxtrain.conversations.comparisons import read as read_comparison
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import read
from jaxtrain.conversations.groups import make_groups
from jaxtrain.conversations.show import Shown, legend, shown, shown_group
from tests.chats import base_tokenizer, exchange

TOKENIZER, SOURCE = teach(base_tokenizer(), "seed")
MAKER = Maker(TOKENIZER, chat_template(SOURCE, TOKENIZER))


def test_trained_tokens_stand_between_marks_and_in_the_colour_of_their_role():
    text = shown(MAKER.example(read(exchange("hé", "日"))), TOKENIZER, "row")
    assert text.plain == (
        "row: 4 of 11 tokens trained\n<|bos|><|user|>hé<|end|><|assistant|>⟦日<|end|>⟧\n"
    )
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles["日"] == "green reverse"
    assert styles["h"] == "cyan"
    assert "⟦trained⟧" in legend().plain


def in_columns(*answers, width=80):
    written = io.StringIO()
    console = Console(width=width, file=written, color_system=None)
    console.print(shown_group(answers, TOKENIZER))
    return written.getvalue()


def answered(prompt, said, title):
    return Shown(MAKER.answer([{"role": "user", "content": prompt}], said), title)


def test_answers_to_one_prompt_stand_side_by_side_below_it():
    found = in_columns(answered("hi", "yes", "better"), answered("hi", "no", "worse"))
    lines = [line.rstrip() for line in found.splitlines()]
    assert lines[0] == "<|bos|><|user|>hi<|end|><|assistant|>"
    assert lines[1].startswith("better: 4 of 10")
    assert "worse: 3 of 9" in lines[1]
    assert any("⟦yes<|end|>⟧" in line and "⟦no<|end|>⟧" in line for line in lines)


def test_answers_to_several_prompts_stand_below_each_other():
    found = in_columns(answered("hi", "yes", "row 1"), answered("ho", "no", "row 2"))
    for number, said in (("1", "hi<|end|><|assistant|>⟦yes"), ("2", "ho<|end|><|assistant|>⟦no")):
        head, body = found.split(f"row {number}: ")[1].splitlines()[:2]
        assert head.endswith("tokens trained")
        assert body.startswith(f"<|bos|><|user|>{said}")


def test_a_step_is_followed_by_its_label():
    row = {"prompt": "q", "completions": ["ab", "cd"], "labels": [True, False]}
    ((answer,),), _ = make_groups(read_comparison(row), MAKER)
    found = in_columns(Shown(answer.example, "row", answer.labels))
    assert "<|assistant|>ab⟦\n✓⟧c⟦d✗⟧<|end|>" in found


def test_a_weight_other_than_one_is_said():
    said = exchange("hi", "yes")["messages"]
    said[1]["weight"] = 0.25
    text = shown(MAKER.example(read({"messages": said})), TOKENIZER, "row")
    assert "⟦×0.25 yes<|end|>⟧" in text.plain
