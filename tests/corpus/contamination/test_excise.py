from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.contamination.excise import Margins, pieces
from jaxtrain.corpus.contamination.plain_words import Span


def test_hit_and_its_window_are_gone_and_short_pieces_too():
    text = "a" * 500 + "HIT" + "b" * 300
    assert pieces(text, [Span(500, 503)], Margins(200, 200)) == ["a" * 300]
    assert pieces(text, [Span(500, 503)], Margins(200, 100)) == ["a" * 300, "b" * 100]


def test_windows_that_meet_leave_no_piece_between():
    text = "x" * 1000
    assert pieces(text, [Span(400, 410), Span(500, 510)], Margins(100, 1)) == [
        "x" * 300,
        "x" * 390,
    ]


def test_cut_moves_outwards_to_the_end_of_a_word():
    text = "alpha beta gamma HIT delta epsilon zeta"
    start = text.index("HIT")
    assert pieces(text, [Span(start, start + 3)], Margins(3, 1)) == ["alpha beta", "epsilon zeta"]


@given(
    st.text("ab \n", min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, 299), st.integers(1, 20))),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_no_character_of_a_window_stays_and_pieces_are_parts_of_the_text(text, hits, window, least):
    text = text[:300]
    spans = [Span(min(a, len(text) - 1), min(a + n, len(text))) for a, n in hits]
    marked = list(text)
    for span in spans:
        for at in range(max(span.start - window, 0), min(span.stop + window, len(text))):
            marked[at] = "#"
    left = pieces("".join(marked), spans, Margins(window, least))
    assert not any("#" in piece for piece in left)
    assert all(piece in text and len(piece) >= least for piece in left)
