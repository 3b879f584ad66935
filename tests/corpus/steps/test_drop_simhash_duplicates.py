import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.steps.drop_simhash_duplicates import Config, make


def _judge(judge, *texts, **options):
    documents = [Document(f"d{i}", text, "web", {}) for i, text in enumerate(texts)]
    return judge(make(Config(**options), None), documents)


def test_unlike_texts_of_one_fingerprint_both_stay(judge):
    """CLN-08: one word nine times decides every bit, but the texts share one word of five."""
    texts = ("echo " * 9 + "north south", "echo " * 9 + "east west")
    step = make(Config(unit="words", shingle_size=1), None)
    observed = step.observe([Document(str(i), text, "web", {}) for i, text in enumerate(texts)])
    assert observed["fingerprints"][0] == observed["fingerprints"][1]
    for size in (1, 3):
        result = _judge(judge, *texts, shingle_size=size)
        assert result.removed == {}
        assert result.figures["comparisons_not_similar"] == 1


def test_texts_without_words_are_duplicates_of_nothing_and_are_counted(judge):
    """CLN-08."""
    result = _judge(judge, "", "   \n\t", "!!! ???", "one two three four", "!!! ???")
    assert result.removed == {}
    assert result.figures["documents_without_shingles"] == 4


def test_text_with_a_word_changed_goes(judge):
    text = " ".join(f"word{i}" for i in range(200))
    result = _judge(judge, text, text.replace("word100", "other"), text.replace("word", "else"))
    assert len(result.removed) == 1
    (because,) = result.removed.values()
    assert because.startswith("similarity 0.970 to d")  # 195 of 201 shingles
    assert result.outcomes[2].dropped is None


def test_rule_is_named_after_the_method(judge):
    assert make(Config(), None).rules == ("near-duplicate by SimHash",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_distance": 8}, "max_distance=8 must lie between 0 and 7; 3 of 64 bits is usual"),
        ({"max_distance": -1}, "max_distance=-1 must lie"),
        ({"threshold": 0.0}, "threshold=0.0 must be above 0 and at most 1"),
        ({"unit": "lines"}, "unit='lines' must be one of words, characters"),
        ({"shingle_size": 0}, "shingle_size=0 must be at least 1"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)
