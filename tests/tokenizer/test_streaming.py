import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.tokenizer.streaming import StreamDecoder
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import KINDS

_BYTES = [bytes([value]) for value in range(256)]


def _byte_stream() -> StreamDecoder:
    return StreamDecoder(_BYTES, lambda ids: bytes(ids).decode(errors="replace"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_pieces_join_to_the_text_and_hold_no_replacement_character(text):
    stream = _byte_stream()
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_cut_within_a_character_holds_its_bytes_and_shows_them_once_at_the_end():
    """GEN-04: "ok ", a fox of four bytes of which two came."""
    stream = _byte_stream()
    ids = list("ok 🦊!".encode())
    assert len(ids) == 8
    assert [stream.push(each) for each in ids[:5]] == ["o", "k", " ", "", ""]
    assert stream.finish() == "\ufffd"
    stream = _byte_stream()
    assert [stream.push(each) for each in ids] == ["o", "k", " ", "", "", "", "🦊", "!"]
    assert stream.finish() == ""


@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_any_kind_gives_what_all_ids_give(all_kinds, kind):
    tokenizer = all_kinds[kind]
    text = " the red fox 👩‍🚀 日本\n\n  x é"
    ids = [tokenizer.control_id("bos"), *tokenizer.encode(text).tolist()]
    stream = tokenizer.stream()
    pieces = [stream.push(each) for each in ids]
    assert "".join(pieces) + stream.finish() == "<|bos|>" + text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.shared
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=30))
def test_stream_without_bytes_of_its_own_for_each_token(shared_dir, text):
    """The first token of this model loses its space in decoding, later ones do not."""
    tokenizer = Tokenizer.load(shared_dir / "data/model-stories260k/hf")
    stream = tokenizer.stream()
    ids = tokenizer.encode(text).tolist()
    pieces = [stream.push(each) for each in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.shared
@pytest.mark.parametrize("begun", ["Once upon", "Lily", "日本", "end. "])
@pytest.mark.parametrize("rest", [" a time", "s x", "語", "\n x"])
def test_stream_behind_a_text_gives_the_rest_of_it(shared_dir, begun, rest):
    """What a model goes on with keeps its space: "Once upon" + " a time"."""
    tokenizer = Tokenizer.load(shared_dir / "data/model-stories260k/hf")
    before, whole = (tokenizer.encode(text).tolist() for text in (begun, begun + rest))
    if whole[: len(before)] != before:  # other tokens where the two meet: spell the rest in bytes
        spelled = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
        whole = before + [spelled[f"<0x{byte:02X}>"] for byte in rest.encode()]
    stream = tokenizer.stream(before)
    pieces = [stream.push(each) for each in whole[len(before) :]]
    assert "".join(pieces) + stream.finish() == rest


def test_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="id 256 is not below the vocabulary's 256"):
        _byte_stream().push(256)


@pytest.mark.shared
def test_bytes_that_never_become_a_character_are_not_held_for_ever(shared_dir):
    tokenizer = Tokenizer.load(shared_dir / "data/model-stories260k/hf")
    (continuation,) = [i for i in range(512) if tokenizer.token(i) == "<0x80>"]
    stream = tokenizer.stream()
    pieces = [stream.push(continuation) for _ in range(40)]
    assert "".join(pieces) + stream.finish() == "\ufffd" * 40
    assert sum(map(bool, pieces)) > 1
