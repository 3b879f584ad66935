import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps.flag_toxicity import Config, check, fit, make

CALM, RUDE = "table window garden morning bread", "blorf grunk snarp"


def _documents(texts):
    return [Document(f"d{i}", text, "web", {"n": i}) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "list.txt"
    path.write_text("grunk\nblorf off\n坏话\n", encoding="utf-8")
    return (str(path),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Config and workspace of a step with a classifier."""
    folder = tmp_path_factory.mktemp("toxicity")
    drawn = random.Random(0)

    def write(name, own):
        common = ["the", "a", "is", "it", "and", "of"]
        texts = [" ".join([own, *drawn.choices(common, k=5)]) for _ in range(30)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / name).write_text(lines)
        return (str(folder / name),)

    sections = {"toxic": write("rude.jsonl", RUDE), "harmless": write("calm.jsonl", CALM)}
    fit(Config(**sections), Workspace(folder / "models"))
    return sections, Workspace(folder / "models")


def _step(config):
    return make(config, Workspace(None))


def test_listed_words_are_found_whole_and_chinese_ones_anywhere(words):
    texts = ["A Grunk here.", "grunking", "blorf  off", "blorf off!", "他说坏话了", "bread"]
    outcomes = _step(Config(word_lists=words, action="mark"))(_documents(texts))
    assert [o.document.metadata["toxicity"] for o in outcomes] == [1, 0, 0, 1, 1, 0]
    assert [o.document.text for o in outcomes] == texts


def test_toxic_sentences_are_cut_and_the_rest_stays(words):
    texts = [
        "Good morning. What a grunk! Bread is here.\nGrunk.\n\n  Window. grunk",
        "天气好。都是坏话！我们走吧。",
        "grunk! Blorf off.",
        "All is well.",
    ]
    outcomes = _step(Config(word_lists=words))(_documents(texts))
    assert outcomes[0].document.text == "Good morning. Bread is here.\n\n  Window."
    assert outcomes[0].edits == {"toxic sentence": 3}
    assert outcomes[0].document.metadata == {"n": 0, "toxicity": 0.0}
    assert outcomes[1].document.text == "天气好。我们走吧。"
    assert outcomes[2].dropped == "nothing but toxic sentences"
    assert outcomes[2].because == "toxicity 1.0000 ≥ 0.4"
    assert outcomes[2].document.text == texts[2]
    assert outcomes[3] == (
        _documents(texts)[3]._replace(metadata={"n": 3, "toxicity": 0.0}),
        None,
        "",
        {},
    )


def test_documents_are_dropped_at_the_threshold(trained):
    sections, workspace = trained
    config = Config(**sections, action="drop_document", unit="document")
    calm, rude = make(config, workspace)(_documents([CALM, RUDE]))
    assert calm.dropped is None
    assert calm.document.metadata["toxicity"] < 0.4
    assert rude.dropped == "toxic"
    between = f"{CALM} {RUDE}"
    marked = make(Config(**sections, action="mark", unit="document"), workspace)
    score = marked(_documents([between]))[0].document.metadata["toxicity"]
    for threshold, dropped in ((score, "toxic"), (score + 1e-9, None)):
        config = Config(**sections, action="drop_document", unit="document", threshold=threshold)
        assert make(config, workspace)(_documents([between]))[0].dropped == dropped


def test_worst_sentence_is_the_score_of_a_document(trained):
    sections, workspace = trained
    text = f"{CALM}. {CALM}. {RUDE}."
    by_sentence = make(Config(**sections, action="mark"), workspace)(_documents([text, RUDE, ""]))
    scores = [outcome.document.metadata["toxicity"] for outcome in by_sentence]
    assert scores[0] == scores[1]
    assert scores[2] == 0.0


SENTENCES = ("grunk.", "Bread.", " ", "\n", "坏话。", "好。", "x", "”", "blorf off! ", "3.14 ")


@pytest.mark.parametrize("action", ["drop_document", "drop_sentence", "mark"])
@given(texts=st.lists(st.lists(st.sampled_from(SENTENCES), max_size=9).map("".join), max_size=5))
def test_outcome_depends_on_the_document_alone_and_a_second_run_changes_nothing(
    words, action, texts
):
    step = _step(Config(word_lists=words, action=action))
    documents = _documents(texts)
    outcomes = step(documents)
    assert [step([document])[0] for document in documents] == outcomes
    for outcome in outcomes:
        assert {outcome.dropped, *outcome.edits} - {None} <= set(step.rules)
        if outcome.dropped is None:
            assert step([outcome.document])[0] == (outcome.document, None, "", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, r"^threshold=0\.0 must lie above 0"),
        ({"toxic": ("a",)}, "^toxic and harmless: a classifier needs both"),
        ({"unit": "document"}, "^action=drop_sentence needs unit=sentence"),
        ({"max_documents": 1}, "^max_documents=1 must be at least 2"),
    ],
)
def test_impossible_config_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_missing_lists_and_texts_are_refused_before_anything_is_learnt(words):
    with pytest.raises(ValueError, match=r"^word_lists and toxic are empty"):
        check(Config())
    with pytest.raises(ValueError, match=r"^word_lists: no\.txt: no such file"):
        check(Config(word_lists=("no.txt",)))
    with pytest.raises(ValueError, match=r"^harmless: no\.jsonl matches no file"):
        check(Config(toxic=words, harmless=("no.jsonl",)))


@pytest.mark.shared
@pytest.mark.parametrize("language", ["en", "zh", "ja", "de", "ru"])
def test_every_entry_of_public_lists_is_found_in_a_sentence(shared_dir, language):
    path = shared_dir / "data" / "toxicity" / f"ldnoobw-{language}.txt"
    entries = [
        line.strip() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()
    ]
    step = _step(Config(word_lists=(str(path),), action="mark", unit="document"))
    outcomes = step(_documents([f"x {entry} y" for entry in entries]))
    assert all(outcome.document.metadata["toxicity"] == 1.0 for outcome in outcomes)


@pytest.mark.shared
def test_few_pages_of_c4_hold_a_listed_word(shared_dir):
    """C4 was made without pages that hold a word of the list."""
    path = shared_dir / "data" / "web" / "c4_demo.jsonl.gz"
    texts = [json.loads(line)["text"] for line in gzip.decompress(path.read_bytes()).splitlines()]
    words = (str(shared_dir / "data" / "toxicity" / "ldnoobw-en.txt"),)
    outcomes = _step(Config(word_lists=words, action="drop_document"))(_documents(texts))
    assert sum(outcome.dropped is not None for outcome in outcomes) <= 0.01 * len(texts)
