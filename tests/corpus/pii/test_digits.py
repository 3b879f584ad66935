from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.pii.digits import digit_runs, digits_of, fold, stands_alone


def test_runs_hold_four_digits_or_more_and_their_separators():
    text = "in 1999 (or 123) call +1 (202) 555-0143, not\n12\n34"
    assert [text[start:end] for start, end in digit_runs(text)] == ["1999", "1 (202) 555-0143"]


def test_full_width_forms_and_typographic_dashes_fold_to_ascii():
    assert fold("１３８–００１３\u3000８０００＠（＋）") == "138-0013 8000@(+)"


@given(st.text())
def test_folding_keeps_the_length_and_ascii(text):
    folded = fold(text)
    assert len(folded) == len(text)
    assert all(new == old for new, old in zip(folded, text, strict=True) if old.isascii())


def test_digits_of_a_text_are_its_ascii_digits():
    assert digits_of("a1²-٣2") == "12"


def test_a_number_in_a_word_or_a_decimal_does_not_stand_alone():
    for text, alone in {
        "x 1234 y": True,
        "是1234个": True,
        "end 1234.": True,
        "(1234)": True,
        "a1234": False,
        "1234_": False,
        "0.1234": False,
        "1234,567": False,
    }.items():
        start = text.index("1234")
        assert stands_alone(text, start, start + 4) is alone, text
