import json

import pytest

from jaxtrain.tokenizer import bpe, report
from jaxtrain.tokenizer.report import Text

TEXTS = [
    Text("web", "en", "the red fox, the oak"),
    Text("web", "", "x " * 50),
    Text("books", "zh", "红色的狐狸 red"),
]


@pytest.fixture
def found(tokenizer):
    plain = bpe.train(["none"], 260)
    return report.measure({"bytes": plain, "small": tokenizer}, TEXTS, 64, 10**6)


def test_ratios_of_a_tokenizer_of_bytes_are_those_of_utf8(found):
    groups = found["tokenizers"]["bytes"]["groups"]
    assert list(groups) == list(found["texts"])
    assert list(groups) == ["all", "source: books", "source: web", "language: en", "language: zh"]
    assert {group["bytes_per_token"] for group in groups.values()} == {1.0}
    zh, en = groups["language: zh"], groups["language: en"]
    # Five characters of three bytes, a space and three letters; 20 characters, five words.
    assert (zh["tokens_per_character"], zh["tokens_per_word"]) == (2.1111, None)
    assert (en["tokens_per_character"], en["tokens_per_word"]) == (1.0, 4.0)
    assert found["texts"]["all"] == {
        **{"documents": 3, "bytes": 139, "characters": 129, "words": 56},
        **{"word_characters": 15 + 50 + 3, "unspaced_characters": 5},
    }


def test_tokens_are_those_of_the_tokenizer(found, tokenizer):
    groups = found["tokenizers"]["small"]["groups"]
    for group, texts in (("all", TEXTS), ("source: web", TEXTS[:2]), ("language: zh", TEXTS[2:])):
        assert groups[group]["tokens"] == sum(len(tokenizer.encode(each.text)) for each in texts)
        assert groups[group]["round_trip_failures"] == 0


def test_unused_and_rare_tokens_are_counted(found):
    figures = found["tokenizers"]["bytes"]
    used = {byte for each in TEXTS for byte in each.text.encode()}
    assert figures["unused_tokens"] == 256 - len(used)
    frequent = [byte for byte in used if "".join(t.text for t in TEXTS).encode().count(byte) > 10]
    assert figures["tokens_used_at_most_10_times"] == len(used) - len(frequent)
    assert figures["special_tokens"] == 4
    assert figures["embedding_parameters"] == 260 * 64


def test_text_without_words_has_no_tokens_per_word(tokenizer):
    found = report.measure({"t": tokenizer}, [Text("zh", "", "红色的狐狸かなไทย")], 64, 10**6)
    assert found["tokenizers"]["t"]["groups"]["all"]["tokens_per_word"] is None
    assert "| – |" in report.markdown(found)


def test_losses_are_counted_by_document():
    folding = bpe.train(["fi 2"] * 3, 261, normalization="nfkc")
    texts = [Text("a", "", "fi"), Text("a", "", "ﬁ"), Text("b", "", "fi")]
    groups = report.measure({"t": folding}, texts, 64, 10**6)["tokenizers"]["t"]["groups"]
    counts = {name: group["round_trip_failures"] for name, group in groups.items()}
    assert counts == {"all": 1, "source: a": 1, "source: b": 0}


def test_of_each_source_no_more_than_asked_is_looked_at(tokenizer):
    texts = [Text("a", "", "12345")] * 10 + [Text("b", "", "12345")] * 2
    found = report.measure({"t": tokenizer}, texts, 64, 12)
    assert found["texts"]["source: a"]["bytes"] == 15  # the document that reaches it is whole
    assert found["texts"]["source: b"]["documents"] == 2


def test_page_shows_every_group_of_every_tokenizer_and_is_the_same_each_time(found):
    page = report.markdown(found)
    assert page == report.markdown(json.loads(json.dumps(found)))
    for name in ("bytes", "small", *found["texts"]):
        assert name in page
    assert "0.0 (tied head), 0.0 (untied)" in page
    assert page.count("| kept |") >= 12
    for line in page.splitlines():
        assert not line.startswith("|") or line.replace("\\|", "").count("|") in (4, 6)


def test_no_text_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="there is no text to report on"):
        report.measure({"t": tokenizer}, [], 64, 10)
