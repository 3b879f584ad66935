import pytest

from jaxtrain.tokenizer import training
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import KINDS, Training, check_transformers_form

TEXT = "The red fox runs by an old oak, and an owl reads 2026 pages.\n" * 4


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_is_padded_with_ids_that_no_text_has(kind):
    wanted = Training(kind, 530 if kind == "wordpiece" else 290, 3, 16)
    tokenizer = wanted.train([TEXT])
    assert tokenizer.vocab_size == wanted.num_ids == (544 if kind == "wordpiece" else 304)
    assert tokenizer.reserved_ids == list(range(tokenizer.vocab_size - 17, tokenizer.vocab_size))
    ids = tokenizer.encode(TEXT + "<|reserved_0|> <|reserved_16|>").tolist()
    assert not set(ids) & set(tokenizer.special_token_ids)


def test_recipe_names_all_that_decides_the_result():
    wanted = Training("bpe", 300, 1, 8, "nfkc")
    assert wanted.recipe({"inputs": [["", "f" * 64]]}) == {
        "format": 2,
        "kind": "bpe",
        "vocab_size": 300,
        "num_reserved": 1,
        "pad_to_multiple": 8,
        "normalization": "nfkc",
        "inputs": [["", "f" * 64]],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "words"}, "kind='words' must be one of bpe, wordpiece, sentencepiece_unigram"),
        ({"normalization": "nfd"}, "normalization='nfd' must be one of identity, nfkc"),
        ({"num_reserved": -1}, "num_reserved=-1 must be at least 0"),
        ({"pad_to_multiple": 0}, "pad_to_multiple=0 must be at least 1"),
    ],
)
def test_wrong_setting_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Training(**{"kind": "bpe", "vocab_size": 300, **options})


def test_form_for_transformers_is_compared_with_ours(all_kinds, monkeypatch):
    tokenizer = all_kinds["sentencepiece_unigram"]
    check_transformers_form(tokenizer, [TEXT, "", "日本"])
    other = {"tokenizer.json": all_kinds["bpe"].files["tokenizer.json"]}
    monkeypatch.setattr(training.Tokenizer, "transformers_files", property(lambda _: other))
    with pytest.raises(ValueError, match=r"as a tokenizer\.json it gives other ids for 'The red"):
        check_transformers_form(tokenizer, [TEXT])


def test_size_below_what_the_kind_needs_is_refused_before_any_text_is_read():
    def unread():
        raise AssertionError("read")
        yield

    for kind in KINDS:
        with pytest.raises(ValueError, match="vocab_size=100 must be at least"):
            Training(kind, 100).train(unread())
    assert isinstance(Training("bpe", 260).train(["x"]), Tokenizer)
