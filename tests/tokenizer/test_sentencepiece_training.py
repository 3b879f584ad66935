import os
import subprocess
import sys

import pytest

from jaxtrain.tokenizer import sentencepiece_training
from jaxtrain.tokenizer.sentencepiece_training import BPE, UNIGRAM

TYPES = pytest.mark.parametrize("model_type", [UNIGRAM, BPE])
TEXT = "The red fox runs by an old oak.\n    An owl 2026 sees it, ２０ times.\n\n" * 4


def _train(texts, size=None, **options):
    """Trains a vocabulary of a size, or of as many ids as the text supports."""
    texts = list(texts)
    if size is None:
        with pytest.raises(ValueError, match="must be at most") as error:
            sentencepiece_training.train(texts, 100_000, **options)
        size = int(str(error.value).split("at most ")[1].split()[0])
    return sentencepiece_training.train(texts, size, **options)


def _tokens(tokenizer, text):
    return [tokenizer.token(each) for each in tokenizer.encode(text)]


@TYPES
def test_long_line_is_learned_from_like_any_other(model_type):
    """TOK-08: a line beyond the library's limit holds the only q."""
    texts = ["the cat sat on the mat\n" * 50 + "qqzz" * 1500 + "\n"]
    tokenizer = _train(texts, model_type=model_type)
    assert "q" in "".join(_tokens(tokenizer, "q"))
    assert any("qq" in tokenizer.token(n) for n in range(tokenizer.vocab_size))
    assert 0 not in tokenizer.encode("q ж\n").tolist()


@TYPES
def test_line_breaks_tabs_and_runs_of_spaces_are_learned_and_kept(model_type):
    """TOK-09, TOK-10"""
    tokenizer = _train([TEXT], model_type=model_type)
    tokens = [tokenizer.token(n) for n in range(257, tokenizer.vocab_size)]
    assert any(token.startswith("\n") for token in tokens)
    assert not any("\n" in token[1:] for token in tokens)
    assert any(token.startswith("▁▁") for token in tokens)
    for text in ("a  b\n\tc ", "a\nb", "\n\n", " \r\n"):
        ids = tokenizer.encode(text).tolist()
        assert 0 not in ids
        assert tokenizer.decode(ids) == text


@TYPES
def test_digits_are_single(model_type):
    tokenizer = _train([TEXT * 10], model_type=model_type)
    tokens = [tokenizer.token(n) for n in range(257, tokenizer.vocab_size)]
    assert not [token for token in tokens if sum(c.isdigit() for c in token) and len(token) > 1
                and token.strip("▁") not in "0123456789２０"]  # fmt: skip


@TYPES
def test_size_beyond_what_the_text_supports_names_the_largest_which_works(model_type):
    """TOK-11"""
    with pytest.raises(ValueError, match="vocab_size=5000 must be at most") as error:
        _train([TEXT], 5000, model_type=model_type)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    assert _train([TEXT], largest, model_type=model_type).vocab_size == largest


@TYPES
def test_size_below_the_frequent_characters_names_the_smallest_which_works(model_type):
    with pytest.raises(ValueError, match="vocab_size=262 must be at least") as error:
        _train([TEXT], 262, model_type=model_type)
    smallest = int(str(error.value).split("at least ")[1].split()[0])
    assert _train([TEXT], smallest, model_type=model_type).vocab_size == smallest


@TYPES
def test_nfkc_folds_and_is_part_of_the_file(model_type):
    """TOK-12, with normalization."""
    texts = [TEXT + "fi 2 ... ﬁ ２ …\n"]
    folding = _train(texts, model_type=model_type, normalization="nfkc")
    assert folding.decode(folding.encode("ﬁ ２ …")) == "fi 2 ..."
    assert folding.normalization == "nfkc"
    assert folding.sha256 != _train(texts, model_type=model_type).sha256


@TYPES
def test_order_of_the_texts_does_not_change_the_file(model_type):
    texts = [f"{word} {TEXT}" for word in ("owl", "fox", "oak", "red")]
    assert (
        _train(texts, model_type=model_type).sha256
        == _train(texts[::-1], model_type=model_type).sha256
    )


_TRAIN = """
import os, sys
if int(sys.argv[1]) == 1:
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from jaxtrain.tokenizer import sentencepiece_training
texts = [open(name, encoding="utf-8").read() for name in sys.argv[2:]]
print(sentencepiece_training.train(texts, 600).sha256)
"""


def test_file_is_identical_across_processes_and_numbers_of_cores(root_dir):
    names = sorted(map(str, root_dir.glob("jaxtrain/tokenizer/*.py")))
    trained = {
        subprocess.run(
            [sys.executable, "-c", _TRAIN, cores, *names],
            cwd=root_dir,
            env=os.environ | {"PYTHONHASHSEED": cores},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for cores in ("1", "2")
    }
    assert len(trained) == 1


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="there is no text to train on"):
        _train([], 300)


@pytest.mark.shared
@TYPES
def test_file_with_one_long_line_loses_none_of_its_characters(shared_dir, model_type):
    """TOK-08, TOK-11 on the file of the reports."""
    text = (shared_dir / "cases/inputs/TOK-08.txt").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="vocab_size=5000 must be at most"):
        _train([text], 5000, model_type=model_type)
    tokenizer = _train([text], model_type=model_type)
    assert 0 not in tokenizer.encode("ж q\n").tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text
