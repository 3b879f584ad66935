"""Public fault reports of preference data, each as a trial with its right values."""

import json
import shutil

import numpy as np
import pytest

from jaxtrain import answer_store, chat_store, row_store
from jaxtrain.chat.render import render_prompt
from jaxtrain.conversations.comparisons import read
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Store
from jaxtrain.types import AnswerBatch
from tests.chats import write_rows

pytestmark = pytest.mark.shared

BOS, USER, ASSISTANT, END, THINK, END_THINK = 256, 259, 260, 261, 262, 263
PAIR = {"prompt": "2+2? ", "chosen": "<think>so</think>4", "rejected": "five"}


@pytest.fixture
def inputs(shared_dir):
    return shared_dir / "cases" / "inputs"


@pytest.fixture
def tokenizer(inputs, tmp_path):
    """The folder of the cases' byte tokenizer."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(inputs / "SFT-00.tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.fixture
def adds_bos(tokenizer):
    """The tokenizer puts a BOS before every text, as the template does."""
    file = tokenizer / "tokenizer.json"
    content = json.loads(file.read_text())
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A"}}
    text["Sequence"]["type_id"] = 0
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
    }
    file.write_text(json.dumps(content))


@pytest.fixture
def make_source(inputs, tokenizer, tmp_path):
    def make(rows, **settings):
        given = [write_rows(tmp_path / "rows.jsonl", rows)]
        template = str(inputs / "SFT-00.template.jinja")
        return answer_store.Source(given, tokenizer, template, answer_store.Settings(**settings))

    return make


@pytest.fixture
def make_store(make_source, tmp_path):
    def make(rows, name="store", **settings):
        out = str(tmp_path / name)
        row_store.encode(make_source(rows, **settings), 0.0, out)
        return out

    return make


def documents(store):
    """The ids of every document."""
    ids = np.empty(store.num_tokens, store.dtype)
    store.read(*(np.array([number], np.int64) for number in (0, store.num_tokens, 0)), ids)
    return [document.tolist() for document in np.split(ids, store.document_ends[:-1])]


@pytest.mark.parametrize("text", ["abcd", "abc "])
def test_a_long_pair_loses_of_its_prompt_alone_and_alike(make_store, text):
    """DPO-03: a prompt of 8 ids, answers of 5 and 2, at most 10."""
    row = {"prompt": text, "chosen": "wxyz", "rejected": "w"}
    prompt = [BOS, USER, *text.encode(), END, ASSISTANT]
    whole = documents(Store(make_store([row], name="whole")))
    assert [each[:8] for each in whole] == [prompt, prompt]
    assert [each[8:] for each in whole] == [[*b"wxyz", END], [*b"w", END]]
    path = make_store([row], max_len=10, too_long="left")
    store = Store(path)
    assert documents(store) == [[*prompt[-5:], *b"wxyz", END], [*prompt[-5:], *b"w", END]]
    assert row_store.read_ledger(store)["cut"] == {"tokens": 1}
    sources = {"pairs": SourceConfig(path)}
    batch = Loader(DataConfig(sources, seq_len=18, batch_size=1, packing="best_fit"), 0).batch(0)
    assert isinstance(batch, AnswerBatch)
    for segment, answer in ((1, [*b"wxyz", END]), (2, [*b"w", END])):
        judged = (batch.tokens.segment_ids == segment) & (batch.tokens.loss_weights > 0)
        assert batch.tokens.targets[judged].tolist() == answer
    assert len(set(batch.group_ids[0, :2].tolist())) == 1


def test_a_pair_has_one_list_of_ids_in_training_held_out_and_scored(make_source, make_store):
    """RMD-02."""
    training = documents(Store(make_store([PAIR], name="training")))
    heldout = documents(Store(make_store([PAIR, {**PAIR, "prompt": "x"}], name="heldout")))
    maker, comparison = make_source([PAIR]).maker, read(PAIR)
    scored = [maker.answer(comparison.prompt, said).ids.tolist() for said in comparison.answers]
    assert training == heldout[:2] == scored
    assert all(ids[-1] == END for ids in scored)


@pytest.mark.usefixtures("adds_bos")
def test_bos_is_there_once_in_every_answer(make_source, make_store):
    """SFT-04: of a pair, in what is scored, and before what is generated."""
    for ids in documents(Store(make_store([PAIR]))):
        assert [at for at, number in enumerate(ids) if number == BOS] == [0]
    maker, comparison = make_source([PAIR]).maker, read(PAIR)
    asked = render_prompt(comparison.prompt, maker.template, maker.codec).ids.tolist()
    for said in comparison.answers:
        ids = maker.answer(comparison.prompt, said).ids.tolist()
        assert ids[: len(asked)] == asked
        assert ids.count(BOS) == 1


@pytest.mark.usefixtures("adds_bos")
@pytest.mark.parametrize("thinking", ["train", "mask", 9])
def test_bos_is_there_once_whatever_is_trained(inputs, tokenizer, thinking):
    """SFT-04, where rows have weights and thoughts."""
    given = [str(inputs / "SFT-11.jsonl")]
    template = str(inputs / "SFT-00.template.jinja")
    settings = chat_store.Settings(thinking=thinking)
    source = chat_store.Source(given, tokenizer, template, settings)
    (document,) = source.documents(source.new_ledger(0.0))
    ids, mask = document.example.ids.tolist(), document.example.mask.tolist()
    assert [at for at, number in enumerate(ids) if number == BOS] == [0]
    trained = [number for number, flag in zip(ids, mask, strict=True) if flag]
    assert (THINK in trained, END_THINK in trained) == (thinking != "mask",) * 2
    if thinking == "mask":
        assert trained == [*b"4", END, *b"6", END]
