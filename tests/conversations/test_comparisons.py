"""Every accepted form becomes the same comparison; what is none is refused by a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.conversations import comparisons
from jaxtrain.conversations.comparisons import FORMS, read, read_answer
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.data import answers as stored
from tests.preferences import answer, pair_rows, prompts

USER = {"role": "user", "content": "q"}
PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}


@given(prompt=prompts(), texts=st.permutations(["x", "yé", " 日 "]))
def test_every_form_of_a_pair_is_read_as_the_same_comparison(prompt, texts):
    better, worse = texts[:2]
    for row in pair_rows(prompt, better, worse):
        found = read(row)
        assert found.kind == "pairs"
        assert found.prompt == prompt
        assert found.answers == [answer(better), answer(worse)]
        assert found.values == (0.0, 0.0)


@given(prompt=prompts(), label=st.booleans())
def test_every_form_of_a_label_is_read_as_the_same_comparison(prompt, label):
    rows = [
        {"prompt": prompt, "completion": "a"},
        {"prompt": prompt, "response": answer("a")},
        {"prompt": prompt, "completion": [*prompt, *answer("a")]},
        {"messages": [*prompt, *answer("a")]},
        {
            "conversations": [
                {"from": message["role"], "value": message["content"]}
                for message in [*prompt, *answer("a")]
            ]
        },
    ]
    for row in rows:
        found = read({**row, "label": label})
        assert (found.kind, found.prompt, found.answers) == ("labels", prompt, [answer("a")])
        assert found.values == (1.0 if label else -1.0,)
        alone = read_answer(row)
        assert (alone.prompt, alone.answers) == (prompt, [answer("a")])


def test_kinds_are_those_of_stores():
    kinds = (comparisons.PAIRS, comparisons.RANKS, comparisons.LABELS, comparisons.STEPS)
    assert kinds == stored.KINDS


# --- pairs ---


def test_what_both_conversations_begin_with_is_the_prompt_up_to_the_last_answers():
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "look", "arguments": {}}}],
    }
    begin = [USER, call, {"role": "tool", "content": "blue"}]
    found = read({"chosen": [*begin, *answer("a")], "rejected": [*begin, *answer("b")]})
    assert found.prompt == begin
    assert found.answers == [answer("a"), answer("b")]
    shorter = read({"chosen": [*begin, *answer("a")], "rejected": [USER, *answer("b")]})
    assert shorter.prompt == [USER]
    assert shorter.answers == [begin[1:] + answer("a"), answer("b")]


def test_a_prompt_that_the_answers_repeat_is_there_once():
    system = {"role": "system", "content": "s"}
    row = {
        "prompt": "q",
        "prompt_id": "1",
        "messages": [USER, *answer("a")],
        "chosen": [system, USER, *answer("a")],
        "rejected": [system, USER, *answer("b")],
        "score_chosen": 8.5,
        "score_rejected": 6,
    }
    found = read(row)
    assert found.prompt == [system, USER]
    assert found.values == (2.5, 0.0)
    with pytest.raises(BadRow, match="conversations with another one") as error:
        read({**row, "prompt": "other"})
    assert error.value.reason == "two prompts"


def test_a_transcripts_turns_may_have_blank_lines_and_colons_in_them():
    text = "\n\nHuman: one\n\ntwo: 2\n\nAssistant: three\n\nHuman: four\n\nAssistant:"
    found = read({"chosen": f"{text} a", "rejected": f"{text} Human: b"})
    assert [message["content"] for message in found.prompt] == ["one\n\ntwo: 2", "three", "four"]
    assert found.answers == [answer("a"), answer("Human: b")]
    apart = read({"prompt": text, "chosen": "a", "rejected": "b"})
    assert apart.prompt == found.prompt


def test_alpaca_and_system_and_tools_are_before_the_answers():
    row = {"instruction": "Add.", "input": "1 2", "system": "s", "chosen": "3", "rejected": "4"}
    assert read(row).prompt == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Add.\n\n1 2"},
    ]
    assert read({**PAIR, "system": "s"}).prompt[0] == {"role": "system", "content": "s"}
    tools = read({**PAIR, "tools": json.dumps([{"name": "look"}])}).tools
    assert tools == [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize(
    ("more", "margin"),
    [
        ({"margin": 0.5}, 0.5),
        ({"margin": 0}, 0.0),
        ({"score_chosen": 3, "score_rejected": -1.5}, 4.5),
        ({"margin": 1, "score_chosen": 3, "score_rejected": 1}, 1.0),
        ({"margin": None}, 0.0),
    ],
)
def test_a_margin_is_given_or_the_difference_of_scores(more, margin):
    assert read({**PAIR, **more}).values == (margin, 0.0)


# --- ranked lists ---


def test_a_list_is_in_the_order_given_or_that_of_scores_or_ranks():
    row = {"prompt": "q", "responses": ["a", "b", "c"]}
    best_first = read(row)
    assert best_first.kind == "ranks"
    assert best_first.answers == [answer("a"), answer("b"), answer("c")]
    assert (best_first.values, best_first.places) == ((0.0, 0.0, 0.0), (0, 1, 2))
    scored = read({**row, "scores": [1, 3.5, 1]})
    assert scored.answers == [answer("b"), answer("a"), answer("c")]
    assert (scored.values, scored.places) == ((3.5, 1.0, 1.0), (0, 1, 1))
    ranked = read({"prompt": "q", "answers": ["a", "b", "c"], "ranks": [3, 1, 2]})
    assert ranked.answers == [answer("b"), answer("c"), answer("a")]
    assert (ranked.values, ranked.places) == ((0.0, 0.0, 0.0), (0, 1, 2))


# --- steps ---


def test_steps_are_one_answer_and_each_ends_with_its_separator():
    row = {"prompt": "q", "completions": ["one", "two", "三"], "labels": [True, 0, False]}
    found = read(row, separator="\n\n")
    assert found.kind == "steps"
    assert found.answers == [answer("one\n\ntwo\n\n三")]
    assert found.step_ends == (5, 10, 11)
    assert found.step_labels == (True, False, False)


# --- what is none ---

WHOLE = [USER, *answer("a")]


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"a": 1}, "fits no form", "of none of pairs, labels, ranked, steps"),
        ({"chosen": "a"}, "fits no form", "has the keys ['chosen']"),
        ({"completion": "a", "label": True}, "fits no form", "has the keys"),
        ({**PAIR, "completion": "a", "label": True}, "fits several forms", "pairs and labels"),
        ({"chosen": "a", "rejected": "b"}, "no prompt", "nothing before them"),
        ({**PAIR, "prompt": []}, "bad messages", "prompt: messages is empty"),
        ({**PAIR, "prompt": 1}, "bad messages", "must be a list of objects"),
        ({**PAIR, "chosen": 1}, "bad messages", "has a chosen that is no text"),
        ({**PAIR, "rejected": []}, "bad messages", "has a rejected that is no text"),
        (
            {**PAIR, "rejected": {"role": "bot", "content": "x"}},
            "bad messages",
            "rejected: messages[0].role='bot'",
        ),
        ({**PAIR, "chosen": {"role": "user", "content": "x"}}, "no answer", "at its end"),
        ({**PAIR, "chosen": {"role": "tool", "content": "x"}}, "bad answer", "messages by tool"),
        ({**PAIR, "chosen": [*answer("x"), USER]}, "bad answer", "messages by assistant, user"),
        (
            {"chosen": WHOLE, "rejected": [{**USER, "content": "other"}, *answer("b")]},
            "two prompts",
            "two different prompts",
        ),
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a"},
            "no answer",
            "no answer at its end",
        ),
        ({**PAIR, "margin": -1}, "bad score", "margin=-1.0; it must be at least 0"),
        ({**PAIR, "margin": float("nan")}, "bad score", "margin=nan, which is no number"),
        ({**PAIR, "margin": True}, "bad score", "margin=True, which is no number"),
        ({**PAIR, "margin": 1e39}, "bad score", "has a margin beyond ±3.4e+38"),
        ({**PAIR, "margin": 10**400}, "bad score", "has a margin beyond ±3.4e+38"),
        (
            {**PAIR, "score_chosen": 3e38, "score_rejected": -3e38},
            "bad score",
            "has a score_chosen - score_rejected beyond ±3.4e+38",
        ),
        ({**PAIR, "score_chosen": 1}, "bad score", "score_chosen without the other's"),
        ({"messages": WHOLE, "label": "good"}, "bad label", "must be true or false"),
        ({"messages": WHOLE, "label": 1.0}, "bad label", "must be true or false"),
        ({"messages": [USER], "label": True}, "no answer", "no answer at its end"),
        ({"messages": answer("a"), "label": True}, "no prompt", "nothing before them"),
        ({"prompt": "q", "responses": ["a"]}, "too few answers", "two responses or more"),
        ({"prompt": "q", "responses": "ab"}, "too few answers", "two responses or more"),
        ({"responses": ["a", "b"]}, "no prompt", "nothing before them"),
        (
            {"prompt": "q", "responses": ["a", "b"], "scores": [1]},
            "bad score",
            "must have 2 scores, one for each answer",
        ),
        (
            {"prompt": "q", "responses": ["a", "b"], "scores": [1, None]},
            "bad score",
            "scores[1]=None, which is no number",
        ),
        (
            {"prompt": "q", "responses": ["a", "b"], "scores": [1, 2], "ranks": [1, 2]},
            "bad score",
            "both scores and ranks",
        ),
        ({"prompt": "q", "completions": [], "labels": []}, "bad steps", "not a list of texts"),
        ({"prompt": "q", "completions": ["a", " "], "labels": [1, 1]}, "empty answer", "a step"),
        ({"prompt": "q", "completions": ["a"], "labels": [True, True]}, "bad label", "1 steps and"),
        ({"prompt": "q", "completions": ["a"], "labels": [0.5]}, "bad label", "true and false"),
        ({"completions": ["a"], "labels": [True]}, "no prompt", "nothing before them"),
    ],
)
def test_a_row_that_compares_nothing_is_refused_by_a_reason(row, reason, detail):
    with pytest.raises(BadRow) as error:
        read(row)
    assert error.value.reason == reason
    assert detail in str(error.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**PAIR, "score_chosen": 2, "score_rejected": 2}, "tied scores"),
        ({**PAIR, "score_chosen": 1, "score_rejected": 2}, "the rejected answer has the higher"),
        ({"chosen": WHOLE, "rejected": WHOLE}, "equal answers"),
    ],
)
def test_a_pair_that_prefers_nothing_is_left_out(row, reason):
    with pytest.raises(Dropped, match=reason):
        read(row)


def test_a_named_form_decides_where_several_fit_and_is_held_to():
    row = {**PAIR, "completion": "c", "label": True}
    assert read(row, "labels").answers == [answer("c")]
    assert read(row, "pairs").kind == "pairs"
    with pytest.raises(BadRow, match="not those of steps"):
        read(row, "steps")


def test_forms_are_told_apart_by_their_keys():
    rows = {
        "pairs": {"chosen": 1, "rejected": 1},
        "labels": {"messages": 1, "label": 1},
        "ranked": {"prompt": 1, "answers": 1},
        "steps": {"prompt": 1, "completions": 1, "labels": 1},
    }
    assert rows.keys() == FORMS.keys()
    for name, row in rows.items():
        assert [form for form, (fits, _) in FORMS.items() if fits(row)] == [name]
