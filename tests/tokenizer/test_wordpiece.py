import os
import subprocess
import sys

import pytest

from jaxtrain.tokenizer import wordpiece

TEXT = "the red fox runs by the old oak and the owl reads\n" * 3


def test_words_are_the_longest_tokens_from_the_left():
    tokenizer = wordpiece.train([TEXT], 544)
    vocab = {tokenizer.token(n) for n in range(tokenizer.vocab_size)}
    for word in ("reds", "oaken", "runs"):
        rest, tokens = "Ġ" + word, []
        while rest:  # the definition, on the vocabulary as it was learned
            mark = wordpiece.CONTINUATION if tokens else ""
            tokens.append(
                next(mark + rest[:n] for n in range(len(rest), 0, -1) if mark + rest[:n] in vocab)
            )
            rest = rest[len(tokens[-1]) - len(mark) :]
        assert [tokenizer.token(n) for n in tokenizer.encode(" " + word)] == tokens


def test_no_word_is_too_long_to_be_known():
    tokenizer = wordpiece.train([TEXT], 544)
    for text in ("x" * 10_000, "🦊" * 500, "字" * 500):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_size_is_exact_and_bounds_are_named():
    assert wordpiece.train([TEXT], 540).vocab_size == 540
    with pytest.raises(ValueError, match="vocab_size=500 must be at least 516"):
        wordpiece.train([TEXT], 500)
    with pytest.raises(ValueError, match="vocab_size=9000 must be at most") as error:
        wordpiece.train([TEXT], 9000)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    assert wordpiece.train([TEXT], largest).vocab_size == largest


_TRAIN = """
import sys
from jaxtrain.tokenizer import wordpiece
texts = [open(name, encoding="utf-8").read() for name in sys.argv[1:]]
print(wordpiece.train(texts, 1000).sha256)
"""


def test_file_is_identical_across_processes_threads_and_hash_seeds(root_dir):
    """TOK-04"""
    names = sorted(map(str, root_dir.glob("jaxtrain/tokenizer/*.py")))
    trained = {
        subprocess.run(
            [sys.executable, "-c", _TRAIN, *names],
            cwd=root_dir,
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for threads in ("1", "8")
    }
    assert len(trained) == 1


def test_order_of_the_texts_does_not_change_the_file():
    texts = [f"{word} {TEXT}" for word in ("owl", "fox", "oak", "reed")]
    assert wordpiece.train(texts, 540).sha256 == wordpiece.train(texts[::-1], 540).sha256


def test_vocabulary_of_somebody_else_marks_continuations_its_own_way(tmp_path):
    """TOK-06, another one."""
    vocab = {"[UNK]": 0, "oak": 1, "++en": 2, "red": 3}
    tokenizer = wordpiece.from_vocab(vocab, "++")
    tokenizer.save(tmp_path)
    assert tokenizer.encode("oaken red owl").tolist() == [1, 2, 3, 0]
    assert tokenizer.decode([1, 2, 3]) == "oaken red"
