from jaxtrain.corpus.deduplicate import drop_exact_duplicates
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Ledger


def _documents(*texts):
    return [Document(str(i), text, "s", {}) for i, text in enumerate(texts)]


def test_first_document_of_each_text_stays_and_the_others_are_counted():
    ledger = Ledger()
    kept = list(drop_exact_duplicates(_documents("a", "bé", "a", "a ", "bé", "a"), ledger))
    assert [document.id for document in kept] == ["0", "1", "3"]
    assert ledger.to_plain()["dropped"] == {"exact duplicate": {"documents": 3, "bytes": 5}}


def test_texts_that_only_look_alike_are_no_duplicates():
    composed, decomposed = "é", "e\u0301"
    assert len(list(drop_exact_duplicates(_documents(composed, decomposed), Ledger()))) == 2
