import pytest
import regex
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.tokenizer import byte_level

_split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(byte_level.PATTERN), "isolated")


def _pieces(text: str) -> list[str]:
    return [piece for piece, _ in _split.pre_tokenize_str(text)]


def test_alphabet_is_that_of_the_library_and_spells_every_byte_once():
    assert set(byte_level.BYTE_OF) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_level.BYTE_OF.values()) == list(range(256))
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("".join(map(chr, range(1, 0x200))), "日本 👩‍🚀"):
        ((token, _),) = level.pre_tokenize_str(text)
        assert byte_level.to_bytes(token) == text.encode()
    assert byte_level.to_bytes("日") is None


# Characters that Python knows: the newest ones are letters to some engines and nothing to others.
@given(st.text(st.characters(exclude_categories=["Cs", "Cn"])))
def test_pieces_are_the_text_and_cut_alike_by_another_engine(text):
    assert "".join(_pieces(text)) == text
    assert _pieces(text) == regex.findall(byte_level.PATTERN, text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("don't I'LL", ["don", "'t", " I", "'LL"]),
        ("x = 1234,5", ["x", " =", " ", "1", "2", "3", "4", ",", "5"]),
        ("２０ ½Ⅷ", ["２", "０", " ", "½", "Ⅷ"]),
        ("e\u0301te\u0301 न\u0940ति", ["e\u0301te\u0301", " न\u0940ति"]),
        ("if x:\n        return  y", ["if", " x", ":\n        ", "return", "  ", "y"]),
        ("a\n\n    b\tc", ["a", "\n\n    ", "b", "\tc"]),
        ("中文，\u3000\u3000段落", ["中文", "，", "\u3000\u3000", "段落"]),
        ("f(x)  # é", ["f", "(x", ")", "  ", "#", " é"]),
    ],
)
def test_text_is_cut_as_the_module_says(text, pieces):
    assert _pieces(text) == pieces
