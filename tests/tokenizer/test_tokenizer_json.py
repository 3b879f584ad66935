import json
import os

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jaxtrain.tokenizer.tokenizer_json import TokenizerJson


def _engine(engine: tokenizers.Tokenizer) -> TokenizerJson:
    return TokenizerJson(engine.to_str().encode())


def _words(*words) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return engine


def test_truncation_padding_and_a_template_of_the_file_touch_no_text():
    engine = _words("[U]", "[B]", "red", "fox")
    engine.enable_truncation(2)
    engine.enable_padding(length=8)
    engine.post_processor = processors.TemplateProcessing("[B] $A", special_tokens=[("[B]", 1)])
    ours = _engine(engine)
    (ids,) = ours.encode_batch(["red fox red fox red"])
    assert ids.tolist() == [2, 3, 2, 3, 2]


def test_number_of_ids_reaches_over_holes():
    content = json.loads(_words("[U]", "red").to_str())
    content["model"]["vocab"]["fox"] = 9
    ours = TokenizerJson(json.dumps(content).encode())
    assert ours.num_ids == 10
    assert ours.encode_batch(["fox"])[0].tolist() == [9]


def test_special_tokens_are_text_and_other_added_tokens_are_as_the_file_says():
    engine = _words("[U]", "<a>x", "<b>", "x")
    engine.add_special_tokens(["<a>"])
    engine.add_tokens(["<b>"])
    ours = _engine(engine)
    assert ours.special_names == {"<a>": 4}
    assert ours.encode_batch(["<a>x"])[0].tolist() == [1]
    assert ours.encode_batch(["<b>x"])[0].tolist() == [2, 3]


def test_bytes_of_a_vocabulary_with_byte_fallback_are_known():
    vocab = {"<unk>": 0, "<0xE6>": 1, "<0x97>": 2, "<0xA5>": 3, "▁red": 4}
    engine = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    ours = _engine(engine)
    assert ours.token_bytes == [b"<unk>", b"\xe6", b"\x97", b"\xa5", b" red"]
    assert ours.encode_batch(["日"])[0].tolist() == [1, 2, 3]
    assert ours.decode([4, 1, 2, 3]) == " red日"


def test_bytes_are_not_known_where_they_depend_on_the_neighbours():
    engine = _words("[U]", "red", "fox")
    engine.decoder = decoders.WordPiece(prefix="##")
    ours = _engine(engine)
    assert ours.token_bytes is None
    assert ours.decode([1, 2]) == "red fox"


def test_normalization_is_told_in_the_words_of_the_file():
    engine = _words("[U]", "red")
    assert _engine(engine).normalization == "identity"
    engine.normalizer = normalizers.Lowercase()
    assert _engine(engine).normalization == '{"type": "Lowercase"}'


def test_forked_process_encodes_batches_too(tokenizer):
    tokenizer.encode_batch(["red", "fox"])  # the threads exist now, in this process only
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ids = [each.tolist() for each in tokenizer.encode_batch(["red", "fox"])]
        os.write(writer, json.dumps(ids).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert answer == [tokenizer.encode(text).tolist() for text in ("red", "fox")]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"model": 1}', b"\xff"])
def test_what_is_no_tokenizer_is_refused(content):
    with pytest.raises(ValueError, match=r"not a tokenizer\.json of this version"):
        TokenizerJson(content)
