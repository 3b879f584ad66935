import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.corpus.word_arrays import LONGEST, word_arrays
from jaxtrain.corpus.words import split_words

TEXTS = st.lists(
    st.text(st.sampled_from("abA9é.,，。“”（ \n\t\u3000\x1c\x85你好ひกา์한😀\u200d"), max_size=25)
    | st.text(max_size=10),
    max_size=5,
)


@given(TEXTS)
@example([])
@example(["", "a", ""])
@example(["。你", "“a“你"])
def test_words_are_those_of_split_words(texts):
    found = word_arrays(texts)
    split = [split_words(text) for text in texts]
    assert found.bounds.tolist() == np.cumsum([0, *map(len, split)]).tolist()
    assert found.num_chars.tolist() == [len(word) for text in split for word in text]
    every = [word for text in split for word in text]
    key_of = dict(zip(every, found.keys.tolist(), strict=True))
    assert [key_of[word] for word in every] == found.keys.tolist()  # equal words, equal keys
    assert len(set(key_of.values())) == len(key_of)  # different words, different keys


def test_keys_of_many_words_differ_and_hold_the_length():
    every = [f"{number:x}" for number in range(100_000)] + ["a" * 5000, "b" * 5000]
    found = word_arrays([" ".join(every)])
    keys, num_chars = found.keys, found.num_chars
    assert len(set(keys.tolist())) == len(every)
    lengths = keys & np.uint64(LONGEST)
    assert lengths[:-2].tolist() == num_chars[:-2].tolist() == [len(w) for w in every[:-2]]
    assert lengths[-2:].tolist() == [LONGEST, LONGEST]


def test_letters_per_word_are_those_of_the_script_that_most_words_are_in():
    texts = ["English", "中文", "ひらがな", "ไทย", "中文 in English words", "中文字 in English", "",
             "中文ไทยไทย", "한국어 문장", "中 a"]  # fmt: skip
    assert word_arrays(texts).letters_per_word.tolist() == [1, 2, 2, 4, 1, 2, 1, 4, 1, 1]


def test_keys_do_not_depend_on_the_other_texts():
    alone = word_arrays(["some words"]).keys
    together = word_arrays(["x " * 5000, "some words"]).keys
    assert alone.tolist() == together[-2:].tolist()
