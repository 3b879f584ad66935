import io
import json

import numpy as np
import pytest
import sentencepiece

from jaxtrain.tokenizer.sentencepiece_model import SentencePieceModel, new_proto
from jaxtrain.tokenizer.tokenizer import Tokenizer

LINES = ["the red fox runs by an old oak", "  an old oak  stands", "日本語 ﬁ ２", "a\tb"] * 20


def _usual(**options) -> SentencePieceModel:
    """A model as the library makes it unless told otherwise."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return SentencePieceModel(model.getvalue())


def test_model_of_the_usual_settings_says_what_it_does_to_a_text():
    model = _usual()
    assert model.kind == "SentencePiece unigram"
    assert model.normalization == (
        "nmt_nfkc, a space put before the text, repeated spaces taken away"
    )
    assert model.roles() == {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    assert model.token_bytes is None
    assert model.decode(model.encode_batch(["  the  red ﬁ"])[0].tolist()) == "the red fi"
    with pytest.raises(ValueError, match="without normalisation"):
        model.to_tokenizer_json()


def test_special_tokens_are_shown_between_texts_and_never_read_from_one():
    model = _usual()
    red = model.encode_batch(["red"])[0].tolist()
    assert model.decode([1, *red, 2]) == "<s>red</s>"
    assert not {1, 2} & set(model.encode_batch(["<s>red</s>"])[0].tolist())


def test_model_whose_pieces_reach_over_line_breaks_is_given_whole_texts():
    model = _usual(
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=["a\nb"],
    )
    assert model.encode_batch(["a\nb"])[0].tolist() == [model.find("a\nb")]


@pytest.mark.parametrize("kind", ["sentencepiece_unigram", "sentencepiece_bpe"])
def test_ids_by_lines_are_those_of_the_whole_text(all_kinds, kind):
    tokenizer = all_kinds[kind]
    text = "\n\nThe red fox\n  runs\tby\n\n\nan old oak\r\n x"
    whole = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.files["tokenizer.model"])
    assert tokenizer.encode(text).tolist() == whole.encode(text)
    assert np.concatenate(tokenizer.encode_batch([text, "", text])).tolist() == 2 * whole.encode(
        text
    )


@pytest.mark.parametrize("kind", ["sentencepiece_unigram", "sentencepiece_bpe"])
def test_mark_of_a_space_in_a_text_comes_back_as_a_space_and_that_is_all(all_kinds, kind):
    tokenizer = all_kinds[kind]
    assert tokenizer.decode(tokenizer.encode("a▁b  ▁")) == "a b   "


def test_form_for_transformers_reads_no_special_token_from_a_text(all_kinds):
    ours = all_kinds["sentencepiece_unigram"]
    theirs = Tokenizer(ours.transformers_files["tokenizer.json"])
    for text in ("<|bos|>", "< unk >", "<|reserved_0|> red"):
        ids = theirs.encode(text).tolist()
        assert not set(ids) & set(ours.special_token_ids)
        assert ids == ours.encode(text).tolist()


def test_special_tokens_that_are_not_the_last_ids_have_no_form_for_transformers(all_kinds):
    proto = new_proto()
    proto.ParseFromString(all_kinds["sentencepiece_unigram"].files["tokenizer.model"])
    proto.pieces.add(piece="late", score=-9.0, type=1)
    with pytest.raises(ValueError, match="its special tokens are not its last ids"):
        SentencePieceModel(proto.SerializeToString()).to_tokenizer_json()


def test_form_for_transformers_numbers_every_piece_alike(all_kinds):
    for kind in ("sentencepiece_unigram", "sentencepiece_bpe"):
        ours = all_kinds[kind]
        theirs = Tokenizer(ours.transformers_files["tokenizer.json"])
        assert theirs.vocab_size == ours.vocab_size
        assert [theirs.token(n) for n in range(ours.vocab_size)] == [
            ours.token(n) for n in range(ours.vocab_size)
        ]
        assert json.loads(theirs.files["tokenizer_config.json"])["eos_token"] == "<|eos|>"
