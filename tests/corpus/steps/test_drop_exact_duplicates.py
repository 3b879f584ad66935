import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.steps.drop_exact_duplicates import Config, make

TEXTS = st.lists(st.sampled_from(["", " ", "a", "A", "a ", "b", "人"]), max_size=12)


def _documents(texts):
    return [Document(f"d{i}", text, "web", {}) for i, text in enumerate(texts)]


def _judge(judge, *chunks, **options):
    return judge(make(Config(), None), *chunks, **options)


@settings(max_examples=40)
@given(texts=TEXTS, data=st.data())
def test_one_document_of_each_text_stays_the_same_in_any_order_and_cut(judge, texts, data):
    documents = _documents(texts)
    whole = _judge(judge, documents)
    assert sorted(each.text for each in whole.kept) == sorted(set(texts))
    by_text = {each.text: each.id for each in whole.kept}
    assert whole.removed == {
        each.id: f"same text as {by_text[each.text]}"
        for each in documents
        if each.id != by_text[each.text]
    }
    other = data.draw(st.permutations(documents))
    point = data.draw(st.integers(0, len(documents)))
    again = _judge(judge, other[:point], other[point:])
    assert again.removed == whole.removed
    assert again.figures == whole.figures


def test_second_pass_removes_nothing(judge):
    kept = _judge(judge, _documents("abcabca")).kept
    assert _judge(judge, kept).removed == {}


def test_result_does_not_depend_on_workers_or_partitions(judge, monkeypatch):
    documents = _documents([str(i % 37) for i in range(200)])
    whole = _judge(judge, documents)
    executor = LocalExecutor(2)
    try:
        spread = _judge(judge, documents[:20], documents[20:], executor=executor)
    finally:
        executor.close()
    monkeypatch.setattr(shuffle, "PARTITION_BYTES", 100)
    assert spread == whole == _judge(judge, documents[:20], documents[20:])


def test_same_text_stays_whatever_else_is_equal(judge):
    """Not even an id needs to be unique: one of the three stays."""
    documents = [Document("d", "a", "web", {})] * 2 + [Document("d", "a", "web", {"n": 1})]
    assert len(_judge(judge, documents[:1], documents[1:]).kept) == 1


def test_figures_count_clusters_by_size(judge):
    figures = _judge(judge, _documents("aabbbcde"), _documents("e")).figures
    sizes = collections.Counter(collections.Counter("aabbbcdee").values())
    assert figures == {
        "documents": 9,
        "duplicates": 4,
        "cluster_sizes": {"2": sizes[2], "3": sizes[3]},
    }


def test_no_documents_are_no_error(judge):
    assert _judge(judge).figures["documents"] == 0
    assert _judge(judge, []).outcomes == []
