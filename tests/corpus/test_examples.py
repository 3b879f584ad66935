from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.examples import EXAMPLES_PER_RULE, make_example, smallest, text_sha256
from jaxtrain.corpus.step import Outcome

_rows = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)))


@given(_rows, st.integers(0, 40), st.randoms())
def test_smallest_do_not_depend_on_order_or_cut(rows, cut, random):
    whole = smallest(rows, 3)
    shuffled = random.sample(rows, len(rows))
    parts = smallest(shuffled[:cut], 3) + smallest(shuffled[cut:], 3)
    assert smallest(parts, 3) == whole


def test_smallest_takes_one_of_each_text():
    rows = [("b", 1), ("a", 2), ("a", 1), ("c", 0)]
    assert smallest(rows, 2) == [("a", 1), ("b", 1)]


def test_example_of_a_removed_document_shows_its_beginning_and_the_reason():
    document = Document("d", "x" * 300, "web", {"origin": "f:7"})
    example = make_example(document, Outcome(document, "too long", "300 > 200"))
    assert example == (text_sha256("x" * 300), "d", "web", "f:7", "300 > 200", "x" * 200, "")


def test_example_of_a_change_shows_the_place_of_the_first_one():
    before = Document("d", "a" * 500 + "mail me@x.org now", "web", {})
    after = before._replace(text="a" * 500 + "mail <EMAIL> now")
    example = make_example(before, Outcome(after, edits={"e-mail": 1}))
    assert example.text == "a" * 35 + "mail me@x.org now"
    assert example.changed_to == "a" * 35 + "mail <EMAIL> now"


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_example_shows_the_first_difference(before, after):
    prefix = "p" * 100
    document = Document("d", prefix + before, "web", {})
    changed = document._replace(text=prefix + after)
    example = make_example(document, Outcome(changed, edits={"rule": 1}))
    if before != after:
        assert example.text != example.changed_to
    assert (prefix + before).endswith(example.text)


def test_few_examples_are_kept():
    assert EXAMPLES_PER_RULE == 3
