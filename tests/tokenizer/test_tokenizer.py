import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.tokenizer import bpe, special_tokens, wordpiece
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import KINDS

_text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("kind", KINDS)
@given(text=_text)
@example(text="")
@example(text="a  b\n\tc ")  # TOK-09
@example(text="a\nb")  # TOK-10
@example(text="\u0000\r\n\u2028\u0085\ufeff\ufffd\u2585")
@example(text="ﬁ ２ … e\u0301 é \u3000 👩‍🚀")  # TOK-12
@example(text="<|eos|> my reds and oaks<|pad|> < unk > <0x41>")
@example(text="##a @@b ‿c Ġd " + "x" * 300)
def test_any_text_round_trips_exactly(all_kinds, kind, text):
    if kind.startswith("sentencepiece"):
        text = text.replace("▁", "_")  # the mark of a space, see sentencepiece_model.py
    tokenizer = all_kinds[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids.tolist()) & set(tokenizer.special_token_ids)


@pytest.mark.parametrize("num_spaces", range(4))
def test_leading_spaces_survive_alone_and_after_a_special_token(any_kind, num_spaces):
    """TOK-13"""
    text = " " * num_spaces + "hello"
    ids = any_kind.encode(text)
    assert any_kind.decode(ids) == text
    assert any_kind.decode([any_kind.control_id("eos"), *ids]) == bpe.EOS + text


def test_special_ids_are_the_last_and_named_by_role_or_text(any_kind):
    size = any_kind.vocab_size
    ids = [any_kind.control_id(role) for role in ("bos", "eos", "pad", "mask")]
    assert ids == list(range(size - 6, size - 2))
    assert ids == [any_kind.control_id(name) for name in special_tokens.CONTROL_TOKENS]
    assert any_kind.reserved_ids == [size - 2, size - 1]


def test_unknown_special_token_is_refused_with_those_there_are(tokenizer):
    with pytest.raises(ValueError, match=r"'the' is no special token; it has bos, eos, mask, pad"):
        tokenizer.control_id("the")


def test_batch_gives_the_ids_of_each_text_alone_by_either_engine(any_kind):
    texts = ["", " red", "old oak\n\n", "日本", "x" * 999]
    batch = any_kind.encode_batch(texts)
    assert all(ids.dtype == np.uint32 for ids in batch)
    expected = [any_kind.encode(text).tolist() for text in texts]
    assert [ids.tolist() for ids in batch] == expected
    assert [ids.tolist() for ids in any_kind.encode_by_reference(texts)] == expected
    assert any_kind.encode_batch([]) == []


def test_lone_surrogate_is_refused_by_name(any_kind):
    with pytest.raises(ValueError, match=r"lone surrogate U\+DC80 at character 2"):
        any_kind.encode("ab\udc80")


def test_id_outside_the_vocabulary_is_refused(any_kind):
    size = any_kind.vocab_size
    for bad in (size, -1):
        with pytest.raises(ValueError, match=f"id {bad} is not below the vocabulary's {size}"):
            any_kind.decode([1, bad])


def test_saved_files_are_read_back_as_the_same_tokenizer(any_kind, tmp_path):
    any_kind.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    (main,) = [tmp_path / name for name in any_kind.files if name != special_tokens.CONFIG_FILE]
    assert loaded.sha256 == any_kind.sha256 == hashlib.sha256(main.read_bytes()).hexdigest()
    assert loaded.special_ids == any_kind.special_ids == Tokenizer.load(main).special_ids
    assert loaded.files == any_kind.files
    assert loaded.encode("red <|eos|>").tolist() == any_kind.encode("red <|eos|>").tolist()


def test_pickled_tokenizer_is_the_same(any_kind):
    copy = pickle.loads(pickle.dumps(any_kind))
    assert copy.special_ids == any_kind.special_ids
    assert copy.encode("red fox").tolist() == any_kind.encode("red fox").tolist()


def test_further_special_tokens_take_reserved_ids_first_and_move_none(any_kind):
    size = any_kind.vocab_size
    names = ["<|user|>", "<|assistant|>", "<|end|>"]
    extended = any_kind.with_special_tokens(names)
    assert [extended.control_id(name) for name in names] == [size - 2, size - 1, size]
    assert extended.vocab_size == size + 1
    assert extended.reserved_ids == []
    for text in ("my reds and oaks", "<|user|>hi<|end|>"):
        assert extended.encode(text).tolist() == any_kind.encode(text).tolist()
        assert extended.decode(extended.encode(text)) == text
    assert {role: extended.special_ids[role] for role in any_kind.special_ids} == (
        any_kind.special_ids
    )
    assert extended.decode([size - 2, size]) == "<|user|><|end|>"


def test_special_token_that_is_a_plain_word_changes_no_text(any_kind):
    """TOK-02: neither is the word read as the token, nor does a space appear around it."""
    name = "myreds"
    extended = any_kind.with_special_tokens([name])
    for text in ("my reds and oaks", "myreds", " myreds myreds"):
        ids = extended.encode(text).tolist()
        assert extended.control_id(name) not in ids
        assert extended.decode(ids) == text
    assert extended.decode([extended.control_id(name), *extended.encode(" oak")]) == "myreds oak"


@pytest.mark.parametrize("names", [["<|eos|>"], ["<|a|>", "<|a|>"], [""], ["e"]])
def test_special_token_whose_name_is_taken_is_refused(tokenizer, names):
    with pytest.raises(ValueError, match="is empty, given twice, or in the vocabulary already"):
        tokenizer.with_special_tokens(names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"version": "1.0", "trunc', r"tokenizer\.json is not a usable tokenizer: not a tok"),
        (b"{}", r"tokenizer\.json is not a usable tokenizer: not a tokenizer\.json"),
        (b"", r"tokenizer\.json is not a usable tokenizer: not a SentencePiece model"),
        (b"\x0a\x03abc", r"tokenizer\.json is not a usable tokenizer: not a SentencePiece model"),
    ],
)
def test_file_that_is_no_tokenizer_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(path)


def test_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no tokenizer at .*nowhere; give its folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json and no tokenizer\.model"):
        Tokenizer.load(tmp_path)


def test_role_whose_token_is_not_in_the_vocabulary_is_refused(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match=r"the token '</s>' for eos is not in the vocabulary"):
        Tokenizer.load(tmp_path)


@pytest.mark.shared
def test_given_vocabulary_keeps_its_continuation_prefix_across_a_reload(shared_dir, tmp_path):
    """TOK-06"""
    vocab = json.loads((shared_dir / "cases/inputs/TOK-06.vocab.json").read_bytes())
    made = wordpiece.from_vocab(vocab, "@@")
    made.save(tmp_path)
    for each in (made, Tokenizer.load(tmp_path)):
        assert each.encode("forest").tolist() == [3, 4]
        assert each.decode([3, 4]) == "forest"


@pytest.mark.shared
def test_file_of_compatibility_characters_is_unchanged(any_kind, shared_dir):
    """TOK-12, without normalization."""
    text = (shared_dir / "cases/inputs/TOK-12.txt").read_text(encoding="utf-8")
    assert any_kind.decode(any_kind.encode(text)) == text


@pytest.mark.shared
def test_model_of_somebody_else_has_the_roles_of_its_description(shared_dir):
    tokenizer = Tokenizer.load(shared_dir / "data/model-stories260k/hf")
    assert tokenizer.special_ids == {"bos": 1, "eos": 2, "unk": 0}
    assert tokenizer.vocab_size == 512
    assert tokenizer.token_bytes is None  # a space before the text is taken away in decoding
    for text in ("hello", "Once upon a time, ü\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_files_and_gives_the_same_ids(all_kinds, kind, tmp_path):
    """TOK-13, the exported file."""
    transformers = pytest.importorskip("transformers")
    ours = all_kinds[kind]
    for name, content in ours.transformers_files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == tuple(
        ours.special_ids[role] for role in ("bos", "eos", "pad")
    )
    spaced = [" " * n + "hello" for n in range(4)]
    for text in (*spaced, "The red fox — 日本 👩‍🚀\n\n", "a  b\n\tc ", "x\n\n  y"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == ours.encode(text).tolist()
        assert theirs.decode(ids) == text
        ids = theirs(theirs.eos_token + text, add_special_tokens=False)["input_ids"]
        assert ids == [ours.special_ids["eos"], *ours.encode(text).tolist()]
