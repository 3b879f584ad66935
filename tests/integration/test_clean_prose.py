"""What the rules of the web preset keep of clean prose: the table of docs/corpora.md."""

import gzip
import json
import pathlib

import pytest

from jaxtrain import config
from jaxtrain.corpus.config import STEP_MODULES, CorpusConfig
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from tests.runs import ROOT

RULES = ("normalize", "detect_language", "gopher_repetition", "gopher_quality", "c4", "fineweb")


@pytest.fixture(scope="module")
def steps():
    """The preset's steps that judge a document by itself, in its order."""
    flags = config.load(CorpusConfig, str(ROOT / "configs" / "corpus" / "web.py"))
    preset = config.resolve(CorpusConfig, flags)
    assert [name for name in preset.steps if name in RULES] == list(RULES)
    workspace = Workspace(pathlib.Path("unused"))
    return [STEP_MODULES[name].make(getattr(preset, name), workspace) for name in RULES]


def kept_frac(steps, texts):
    """The share of the texts that every step keeps."""
    documents = [Document(str(i), text, "prose", {}) for i, text in enumerate(texts)]
    for step in steps:
        outcomes = step(documents)
        documents = [outcome.document for outcome in outcomes if outcome.dropped is None]
    return len(documents) / len(texts)


def lines_of(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


def rows(*paths):
    return [json.loads(line) for path in paths for line in lines_of(path)]


def in_pieces(path, num_chars=3000):
    """A book's lines in pieces of so many characters or a little more; the short rest is left."""
    pieces, piece = [], []
    for line in lines_of(path):
        piece.append(line)
        if sum(map(len, piece)) >= num_chars:
            pieces.append("".join(piece))
            piece = []
    return pieces


@pytest.mark.shared
def test_english_prose_is_kept(steps, shared_dir):
    books = sorted((shared_dir / "data" / "books-en").glob("*.jsonl.gz"))[::3]
    texts = [row["text"] for row in rows(*books)]
    assert len(texts) > 200
    assert kept_frac(steps, texts) >= 0.98


@pytest.mark.shared
@pytest.mark.parametrize("book", ["hongloumeng", "shuihuzhuan", "xiyouji", "sanguoyanyi"])
def test_chinese_prose_is_kept(steps, shared_dir, book):
    texts = in_pieces(shared_dir / "data" / "novels-zh" / f"{book}.txt.gz")
    assert kept_frac(steps, texts[::2]) >= 0.98


@pytest.mark.shared
def test_japanese_prose_is_kept(steps, shared_dir):
    texts = in_pieces(shared_dir / "data" / "ja" / "wagahaiwa_nekodearu.txt.gz")
    assert kept_frac(steps, texts) >= 0.95


@pytest.mark.shared
def test_one_text_is_kept_in_nearly_all_of_forty_languages(steps, shared_dir):
    """All but Indonesian (language at 0.56), Tamil (words of 10.01), Japanese (15.1 % repeated)."""
    texts = {}
    for row in rows(shared_dir / "data" / "udhr" / "udhr.jsonl.gz"):
        texts.setdefault(row["variant"], []).append(row["text"])
    assert kept_frac(steps, ["\n".join(lines) for lines in texts.values()]) >= 0.92
