import numpy as np
import pytest

from jaxtrain.tokenizer import bpe, encode


@pytest.mark.parametrize("batch_chars", [1, 20, 10**6])
def test_ids_come_in_order_between_one_bos_and_one_eos_whatever_the_batching(
    tokenizer, monkeypatch, batch_chars
):
    monkeypatch.setattr(encode, "_BATCH_CHARS", batch_chars)
    texts = ["red fox", "", "old oak " * 9, "<|eos|>", "日本"]
    encoded = list(encode.encode_texts(iter(texts), tokenizer))
    for place, name in ((0, bpe.BOS), (-1, bpe.EOS)):
        control = tokenizer.control_id(name)
        assert [ids[place] for ids in encoded] == [control] * len(texts)
        assert [np.count_nonzero(ids == control) for ids in encoded] == [1] * len(texts)
    assert [tokenizer.decode(ids[1:-1]) for ids in encoded] == texts


def test_texts_are_read_a_batch_at_a_time(tokenizer, monkeypatch):
    monkeypatch.setattr(encode, "_BATCH_CHARS", 10)
    num_read = 0

    def texts():
        nonlocal num_read
        for _ in range(1000):
            num_read += 1
            yield "12345"

    next(encode.encode_texts(texts(), tokenizer))
    assert num_read == 2
