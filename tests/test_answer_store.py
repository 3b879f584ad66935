"""Preferences into a store: its groups and values, what became of every row, one kind alone."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain import answer_store, row_store
from jaxtrain.conversations.comparisons import read
from jaxtrain.data.store import Store
from tests.chats import base_tokenizer, expected, write_rows
from tests.preferences import answer

PAIR = {"prompt": "q", "chosen": "a", "rejected": "bc"}


def user(text):
    return [{"role": "user", "content": text}]


def labelled(number, label=True):
    return {"prompt": f"p{number}", "completion": f"c{number}", "label": label}


@pytest.fixture
def base(tmp_path):
    base_tokenizer().save(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def make_source(tmp_path, base):
    def make(rows, template="seed", **settings):
        given = [rows if isinstance(rows, str) else write_rows(tmp_path / "rows.jsonl", rows)]
        return answer_store.Source(given, base, template, answer_store.Settings(**settings))

    return make


@pytest.fixture
def encode(tmp_path, make_source, capsys):
    """Makes a store; returns it and what was printed."""

    def make(rows, out="store", max_bad_frac=0.0, **settings):
        row_store.encode(make_source(rows, **settings), max_bad_frac, str(tmp_path / out))
        return Store(str(tmp_path / out)), capsys.readouterr().out

    return make


def documents(source):
    """Every document of a source: text judged, value, whether it joins; the ledger beside."""
    ledger = source.new_ledger(0.5)
    return list(source.documents(ledger)), ledger


def groups_of(found):
    """Documents by group."""
    groups = []
    for document in found:
        if not document.joins:
            groups.append([])
        groups[-1].append(document)
    return groups


def told(source, document):
    """Prompt and answer of a document under the template `seed`, and its value."""
    text = source.tokenizer.decode(document.example.ids)
    prompt, said = text.removesuffix("<|end|>").rsplit("<|end|><|assistant|>", 1)
    return prompt.removeprefix("<|bos|><|user|>"), said, document.value


def test_a_store_holds_ids_masks_groups_and_values(encode):
    store, _ = encode([{**PAIR, "margin": 2}, PAIR])
    assert store.answers == "pairs"
    assert store.metadata.version == 3
    assert store.num_documents == 4
    right = [expected("seed", user("q") + answer(text), (False, True)) for text in ("a", "bc") * 2]
    assert store.document_ends.tolist() == np.cumsum([len(each) for each in right]).tolist()
    whole = [np.array([number], np.int64) for number in (0, store.num_tokens, 0)]
    ids, weights = np.empty(store.num_tokens, store.dtype), np.ones(store.num_tokens, np.float32)
    store.read(*whole, ids)
    store.read_weights(*whole, weights)
    found = list(zip(ids.tolist(), weights.astype(bool).tolist(), strict=True))
    assert found == [token for each in right for token in each]
    assert store.values.tolist() == [2, 0, 0, 0]
    assert store.group_ends.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("rows", "settings", "kind"),
    [
        ([PAIR], {}, "pairs"),
        ([{"prompt": "q", "answers": ["a", "b"]}], {}, "ranks"),
        ([{"prompt": "q", "answers": ["a", "b"]}], {"ranked": "pairs"}, "pairs"),
        ([{"prompt": "q", "answers": ["a", "b"]}, PAIR], {"ranked": "best_worst"}, "pairs"),
        ([labelled(0), labelled(1)], {}, "labels"),
        ([{"prompt": "q", "completions": ["a", "b"], "labels": [True, False]}], {}, "steps"),
    ],
)
def test_what_a_store_holds_is_among_its_settings(encode, rows, settings, kind):
    store, _ = encode(rows, **settings)
    assert store.answers == store.tokenization.settings["answers"] == kind


def test_kinds_in_one_file_are_an_error_that_names_both_rows(make_source, tmp_path):
    source = make_source([{"odd": 1}, PAIR, labelled(0)])
    with pytest.raises(ValueError, match=r"rows\.jsonl:11 has pairs, and .*\.jsonl:\d+ has labels"):
        row_store.encode(source, 0.5, str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_every_row_is_counted_once_by_what_became_of_it(encode):
    rows = [
        PAIR,
        {**PAIR, "rejected": "a"},
        {**PAIR, "rejected": ""},
        {**PAIR, "score_chosen": 1, "score_rejected": 1},
        {**PAIR, "prompt": "q" * 90},
        {"odd": 1},
        {"chosen": "a", "rejected": "b"},
    ]
    store, out = encode(rows, max_bad_frac=0.5, max_len=60)
    ledger = row_store.read_ledger(store)
    assert (ledger["rows_in"], ledger["rows_out"]) == (7, 1)
    assert ledger["dropped"] == {
        "empty answer": 1,
        "equal answers": 1,
        "fits no form": 1,
        "no prompt": 1,
        "tied scores": 1,
        "too long": 1,
    }
    assert (ledger["groups"], ledger["answers"], ledger["tokens"]) == (1, 2, store.num_tokens)
    assert ledger["longest_group_tokens"] == store.num_tokens
    assert "7 rows in = 1 out + 6 dropped" in out
    assert f"the longest has {store.num_tokens} tokens, so config.data.seq_len must be" in out
    with pytest.raises(ValueError, match="3 of 7 rows are no comparisons of answers, more than"):
        encode(rows, out="other", max_bad_frac=0.4)


_ROWS = st.one_of(
    st.builds(
        lambda prompt, chosen, rejected: {"prompt": prompt, "chosen": chosen, "rejected": rejected},
        st.sampled_from(["", "q", "q" * 40]),
        st.sampled_from(["a", "b", " ", "c" * 40]),
        st.sampled_from(["a", "b", "d" * 20]),
    ),
    st.builds(
        lambda answers, scores: {"prompt": "q", "answers": answers, "scores": scores},
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        st.lists(st.sampled_from([1, 2]), min_size=2, max_size=3),
    ),
    st.sampled_from([{"odd": 1}, {"prompt": "q", "chosen": 1, "rejected": "b"}]),
)


@settings(max_examples=30)
@given(rows=st.lists(_ROWS, max_size=12), too_long=st.sampled_from(["drop", "left"]))
def test_whatever_the_rows_are_none_is_lost(rows, too_long, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    base_tokenizer().save(folder / "base")
    source = answer_store.Source(
        [write_rows(folder / "rows.jsonl", [PAIR, *rows])],
        folder / "base",
        "seed",
        answer_store.Settings(max_len=30, too_long=too_long, ranked="pairs"),
    )
    ledger = source.new_ledger(1.0)
    found = list(source.documents(ledger))
    assert ledger.rows_in == len(rows) + 1
    assert ledger.rows_in == ledger.rows_out + ledger.bad.total() + ledger.dropped.total()
    assert ledger.rows_out == len({document.row.place for document in found})
    assert ledger.answers == len(found)
    assert ledger.tokens == sum(len(document.example.ids) for document in found)
    assert ledger.trained_tokens == sum(int(document.example.mask.sum()) for document in found)
    assert all(len(group) == 2 for group in groups_of(found))
    for chosen, rejected in groups_of(found):
        pair = (chosen.example, rejected.example)
        (start,) = {int(example.mask.argmax()) for example in pair}
        assert start > 0
        np.testing.assert_array_equal(*(example.ids[:start] for example in pair))
        assert all(len(example.ids) <= 30 for example in pair)


def test_cut_rows_are_counted_and_a_list_says_which_pairs_it_left_out(encode):
    row = {"prompt": "q" * 30, "answers": ["a", "b", "c"], "scores": [3, 1, 1]}
    store, out = encode([row, row], max_len=30, too_long="left", ranked="pairs")
    ledger = row_store.read_ledger(store)
    assert ledger["cut"] == {"tokens": 2}
    assert ledger["pairs_left_out"] == {"tied scores": 2}
    assert ledger["answers"] == store.num_documents == 8
    assert "pairs left out of rows with others: 2 tied scores" in out


def test_only_bad_rows_are_an_error(encode, tmp_path):
    with pytest.raises(ValueError, match="1 of 1 rows are no comparisons of answers"):
        encode([{"odd": 1}])
    with pytest.raises(ValueError, match="nothing is left to train on, of 1 rows: 1 equal answers"):
        encode([{**PAIR, "rejected": "a"}])
    assert not (tmp_path / "store").exists()


def test_other_settings_are_another_store(encode):
    encode([labelled(0), labelled(1)])
    assert "already holds these documents" in encode([labelled(0), labelled(1)])[1]
    with pytest.raises(ValueError, match=r"exists and it has kl_group=4, not 2"):
        encode([labelled(0), labelled(1)], kl_group=2)
    with pytest.raises(ValueError, match=r"exists and it has answers='labels', not 'pairs'"):
        encode([PAIR])


# --- labelled answers and their mismatched ones ---


@settings(max_examples=25)
@given(num_rows=st.integers(2, 14), size=st.integers(2, 5))
def test_each_prompt_meets_the_next_answer_of_its_group_and_none_is_alone(
    num_rows, size, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("labels")
    base_tokenizer().save(folder / "base")
    rows = [labelled(number, number % 3 == 0) for number in range(num_rows)]
    source = answer_store.Source(
        [write_rows(folder / "rows.jsonl", rows)],
        folder / "base",
        "seed",
        answer_store.Settings(kl_group=size),
    )
    found, ledger = documents(source)
    groups = groups_of(found)
    judged = [told(source, each) for group in groups for each in group[: len(group) // 2]]
    assert judged == [
        (f"p{number}", f"c{number}", 1.0 if number % 3 == 0 else -1.0) for number in range(num_rows)
    ]
    sizes = [len(group) // 2 for group in groups]
    assert all(count == size for count in sizes[:-1])
    assert 2 <= sizes[-1] <= size + 1
    for group in groups:
        half = len(group) // 2
        own = [told(source, each) for each in group[:half]]
        for at, document in enumerate(group[half:]):
            assert told(source, document) == (own[at][0], own[(at + 1) % half][1], 0.0)
            assert document.row == group[at].row
    assert ledger.rows_out == num_rows
    assert ledger.answers == 2 * num_rows


def test_without_an_estimate_each_answer_is_a_group(make_source):
    source = make_source([labelled(number) for number in range(3)], kl_group=1)
    found, _ = documents(source)
    assert [told(source, each) for each in found] == [(f"p{n}", f"c{n}", 1.0) for n in range(3)]
    assert not any(each.joins for each in found)


def test_one_labelled_answer_has_no_other_to_be_mismatched_with(make_source):
    with pytest.raises(ValueError, match="1 alone: there is no other answer to estimate the KL"):
        documents(make_source([labelled(0)]))


def test_a_mismatched_answer_that_is_too_long_loses_of_its_prompt(make_source):
    rows = [
        {"prompt": "0123456789", "completion": "a", "label": True},
        {"prompt": "q", "completion": "abcdefghij", "label": False},
    ]
    source = make_source(rows, max_len=16)
    found, ledger = documents(source)
    assert [len(each.example.ids) for each in found] == [16, 16, 16, 7]
    assert source.tokenizer.decode(found[2].example.ids) == (
        "789<|end|><|assistant|>abcdefghij<|end|>"
    )
    assert ledger.mismatched == {"cut by tokens": 1}
    assert not ledger.cut


def test_a_prompt_that_takes_no_other_answer_leaves_its_row_out(make_source, tmp_path):
    template = tmp_path / "picky.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% if messages[0].content == 'p1' and m.content != 'c1' %}{{ raise_exception('no') }}"
        "{% endif %}{% generation %}{{ m.content }}<|eos|>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    source = make_source([labelled(n) for n in range(5)], template=str(template), kl_group=2)
    found, ledger = documents(source)
    assert (ledger.rows_in, ledger.rows_out) == (5, 4)
    assert ledger.bad == {"refused by the template": 1}
    read = [source.tokenizer.decode(each.example.ids).removesuffix("<|eos|>") for each in found]
    assert read == ["p0c0", "p2c2", "p0c2", "p2c0", "p3c3", "p4c4", "p3c4", "p4c3"]


def test_answers_to_one_prompt_side_by_side_are_said(encode):
    rows = [
        {"prompt": "q", "completion": "a", "label": True},
        {"prompt": "q", "completion": "b", "label": False},
    ]
    store, out = encode(rows)
    note = "with an answer to the same prompt; shuffle the rows"
    assert row_store.read_ledger(store)["mismatched"] == {note: 2}
    assert f"2 {note}" in out


# --- the one way to ids ---


def test_an_answer_has_the_same_ids_in_a_store_held_out_and_scored(make_source):
    rows = [
        {"prompt": "q ", "chosen": "a", "rejected": "bc"},
        {"prompt": user("r"), "chosen": answer("d"), "rejected": answer("e")},
    ]
    training, _ = documents(make_source(rows))
    heldout, _ = documents(make_source(list(reversed(rows))))
    assert [each.example.ids.tolist() for each in heldout] == [
        each.example.ids.tolist() for each in training[2:] + training[:2]
    ]
    maker = make_source(rows).maker
    for row, pair in zip(rows, groups_of(training), strict=True):
        comparison = read(row)
        for said, document in zip(comparison.answers, pair, strict=True):
            scored = maker.answer(comparison.prompt, said)
            assert scored.ids.tolist() == document.example.ids.tolist()
    assert maker.answer(user("q "), "a").ids.tolist() == training[0].example.ids.tolist()


def test_rows_can_be_looked_at_before_anything_is_made(make_source, capsys):
    row_store.show_documents(make_source([{**PAIR, "margin": 1.5}, PAIR]), 1, 0.0)
    out = capsys.readouterr().out
    assert "<|bos|><|user|>q<|end|><|assistant|>\nchosen, margin 1.5: " in out
    assert out.count("⟦a<|end|>⟧") == 1


@pytest.mark.parametrize(
    ("rows", "known"),
    [
        ([PAIR], ["chosen: ", "rejected: "]),
        ([{"prompt": "q", "answers": ["a", "b"]}], ["place 1: ", "place 2: "]),
        (
            [{"prompt": "q", "answers": ["a", "b"], "scores": [0, 2]}],
            ["place 1, score 2: ", "place 2, score 0: "],
        ),
        (
            [labelled(0), labelled(1, False)],
            ["desirable: ", "undesirable: ", "mismatched: ", "mismatched: "],
        ),
        ([{"prompt": "q", "completions": ["a"], "labels": [True]}], [""]),
    ],
)
def test_what_is_known_of_each_answer_is_said(make_source, rows, known):
    source = make_source(rows)
    found, _ = documents(source)
    assert source.known_of(found) == known


# --- real rows ---


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "kind", "rows", "dropped", "answers"),
    [
        ("hh-rlhf-harmless-base-test.jsonl.gz", "pairs", 2312, {"empty answer": 4}, 4616),
        ("dpo_en_demo.json.gz", "pairs", 300, {}, 600),
        ("kto_en_demo.json.gz", "labels", 300, {}, 600),
        ("oasst-pairs.jsonl.gz", "pairs", 207, {}, 414),
    ],
)
def test_public_preferences_are_read_whole(
    make_source, shared_dir, file, kind, rows, dropped, answers
):
    source = make_source(str(shared_dir / "data" / "pref" / file))
    ledger = source.new_ledger(0.01)
    counted = collections.Counter(each.value for each in source.documents(ledger))
    assert source.tokenization.settings["answers"] == kind
    assert ledger.rows_in == rows
    assert ledger.plain()["dropped"] == dropped
    assert counted.total() == ledger.answers == answers
    if kind == "labels":
        assert counted == {1.0: 150, -1.0: 150, 0.0: 300}
