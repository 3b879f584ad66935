import json

import pytest

from jaxtrain.chat.source import teach
from jaxtrain.tokenizer.compare import difference
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import Training

TEXTS = ["abab abab cdcd cdcd efef efef"]


@pytest.fixture(scope="module")
def one():
    return Training("bpe", 256 + 4 + 8 + 3, 8).train(TEXTS)


def changed(tokenizer, change):
    """The tokenizer of a tokenizer.json that `change` has had."""
    content = json.loads(tokenizer.files["tokenizer.json"])
    change(content)
    return Tokenizer(json.dumps(content).encode())


def test_a_tokenizer_is_as_itself_saved_and_loaded(one, tmp_path):
    one.save(tmp_path)
    assert difference(one, Tokenizer.load(tmp_path)) is None


def test_control_tokens_in_reserved_ids_make_no_difference(one):
    taught, _ = teach(one, "chatml")
    assert taught.sha256 != one.sha256
    assert difference(one, taught) is difference(taught, one) is None


def test_the_first_token_that_differs_is_named(one):
    """One more merge moves all that follows."""
    other = Training("bpe", 256 + 4 + 8 + 4, 8).train(TEXTS)
    first = 256 + 3
    names = one.token(first), other.token(first)
    assert names[0] != names[1]
    told = difference(one, other)
    assert told == f"id {first} is {names[0]!r} in one, {names[1]!r} in the other"


def test_an_id_of_one_alone_is_a_difference(one):
    longer = Training("bpe", 256 + 4 + 9 + 3, 9).train(TEXTS)
    name = longer.token(one.vocab_size)
    expected = f"id {one.vocab_size}, {name!r}, is in one of them only"
    assert difference(one, longer) == difference(longer, one) == expected


def test_kinds_are_compared_before_their_tokens(one):
    other = Training("wordpiece", 530, 8).train(TEXTS)
    assert difference(one, other) == f"one is {one.kind}, the other {other.kind}"


def reverse_merges(content):
    content["model"]["merges"].reverse()


def lowercase(content):
    content["normalizer"] = {"type": "Lowercase"}


@pytest.mark.parametrize(("change", "part"), [(reverse_merges, "model"), (lowercase, "normalizer")])
def test_the_same_tokens_may_split_texts_otherwise(one, change, part):
    told = difference(one, changed(one, change))
    assert told == f"their tokens are the same, but texts are split otherwise ({part})"


def test_what_decides_no_id_is_no_difference(one):
    def describe(content):
        content["truncation"] = None
        content["version"] = content["version"]

    other = changed(one, describe)
    assert difference(one, other) is None
