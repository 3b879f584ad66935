"""Public fault reports of supervised fine-tuning, each as a trial with its right values."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from jaxtrain import chat_store, row_store
from jaxtrain.chat.render import render_prompt
from jaxtrain.conversations.forms import Dropped, read
from jaxtrain.conversations.rows import RowFiles
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Store

pytestmark = pytest.mark.shared

BOS, END, THINK, END_THINK = 256, 261, 262, 263


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
def make_source(inputs, tokenizer):
    def make(case, template="SFT-00.template.jinja", **settings):
        path = template if isinstance(template, pathlib.Path) else inputs / template
        given = [str(inputs / f"{case}.jsonl")]
        return chat_store.Source(given, tokenizer, str(path), chat_store.Settings(**settings))

    return make


@pytest.fixture
def only_example(make_source):
    """The one example of a case's first row: (ids, whether each is trained)."""

    def make(case, *arguments, **settings):
        source = make_source(case, *arguments, **settings)
        row = next(iter(source.rows))
        example = source.maker.example(read(row.record))
        return example.ids.tolist(), example.mask.tolist()

    return make


@pytest.fixture
def make_store(make_source, tmp_path):
    def make(case, **settings):
        out = str(tmp_path / "store")
        row_store.encode(make_source(case, **settings), 0.0, out)
        return out

    return make


def loader(path, seq_len, batch_size=1):
    sources = {"chat": SourceConfig(path)}
    return Loader(
        DataConfig(sources, seq_len=seq_len, batch_size=batch_size, packing="best_fit"), 0
    )


def trained(ids, mask):
    return [number for number, train in zip(ids, mask, strict=True) if train]


@pytest.mark.parametrize("template", ["SFT-00.template.jinja", "SFT-01.template.jinja"])
def test_a_template_without_markers_trains_the_same_as_one_with_them(only_example, template):
    """SFT-01."""
    ids, mask = only_example("SFT-01", template)
    assert len(ids) == 24
    assert trained(ids, mask) == [*b"yo", END, *b"bye", END]


def test_an_end_token_that_is_the_padding_too_is_trained(inputs, tokenizer, make_store):
    """SFT-02: what is trained is said by the mask, whatever a token's value."""
    named = {"pad_token": "<|end|>", "bos_token": "<bos>", "eos_token": "<eos>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(named))
    store = make_store("SFT-01")
    assert Store(store).tokenization.special_ids["pad"] == END
    batch = loader(store, seq_len=40).batch(0)
    targets = batch.targets[batch.loss_weights > 0]
    assert targets.tolist() == [*b"yo", END, *b"bye", END]
    assert not batch.loss_weights[batch.segment_ids == 0].any()
    assert (batch.segment_ids == 0).sum() == 40 - 24


def test_bos_is_there_once_though_tokenizer_and_template_both_put_it(
    inputs, tokenizer, make_source, only_example
):
    """SFT-04: in training, and in what a model is asked."""
    file = tokenizer / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
    }
    file.write_text(json.dumps(content))
    ids, _ = only_example("SFT-01")
    assert [at for at, number in enumerate(ids) if number == BOS] == [0]
    maker = make_source("SFT-01").maker
    messages = read(next(iter(make_source("SFT-01").rows)).record).messages
    for turn in (1, 3):
        prompt = render_prompt(messages[:turn], maker.template, maker.codec).ids.tolist()
        assert ids[: len(prompt)] == prompt


def test_a_cut_takes_ids_and_mask_alike(only_example):
    """SFT-06."""
    ids, mask = only_example("SFT-06")
    assert (len(ids), sum(mask)) == (37, 31)
    right, left = (only_example("SFT-06", max_len=20, too_long=side) for side in ("right", "left"))
    assert right == (ids[:20], [False] * 6 + [True] * 14)
    assert left == (ids[-20:], [True] * 20)
    assert END not in right[0][6:]


def test_last_turn_alone_trains_no_earlier_end_token(only_example):
    """SFT-08."""
    assert trained(*only_example("SFT-01", train="last")) == [*b"bye", END]


@pytest.mark.parametrize("seq_len", [22, 64])
def test_packing_keeps_what_is_trained_and_what_it_sees(make_store, seq_len):
    """SFT-09: rows of one conversation, and of several."""
    batches = loader(make_store("SFT-09"), seq_len)
    (source,) = batches.sources
    found = []
    for step in range(source.num_rows):
        batch = batches.batch(step)
        for at in np.flatnonzero(batch.loss_weights[0]):
            before = batch.segment_ids[0] == batch.segment_ids[0, at]
            context = batch.inputs[0, : at + 1][before[: at + 1]].tolist()
            found.append((int(batch.targets[0, at]), context))
    expected = []
    for k in range(1, 9):
        context = [BOS, 259, *b"u" * k, END, 260]
        for number in [*b"a" * k, END]:
            expected.append((number, list(context)))
            context.append(number)
    assert len(expected) == 44
    assert sorted(found) == sorted(expected)


def test_ids_are_of_one_rendering_of_the_whole_conversation(
    inputs, only_example, make_source, tmp_path, capsys
):
    """SFT-11: with a template that drops earlier thoughts too, and it is said."""
    ids, mask = only_example("SFT-11")
    assert (len(ids), sum(mask)) == (31, 16)
    source = (inputs / "SFT-00.template.jinja").read_text()
    dropping = tmp_path / "dropping.jinja"
    dropping.write_text(
        source.replace(
            "{{ m['content'] }}<|end|>{% endgeneration",
            "{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}<|end|>"
            "{% endgeneration",
        )
    )
    assert dropping.read_text() != source
    ids, mask = only_example("SFT-11", dropping)
    assert ids.count(THINK) == ids.count(END_THINK) == 1
    assert bytes(n for n in ids if n < 256) == b"2+2?43+3?also6"
    assert trained(ids, mask) == [*b"4", END, THINK, *b"also", END_THINK, *b"6", END]
    row_store.encode(make_source("SFT-11", dropping), 0.0, str(tmp_path / "store"))
    assert "warning: the template writes earlier turns otherwise" in capsys.readouterr().out


def test_a_row_whose_answer_would_be_cut_away_is_dropped_and_counted(make_store):
    """SFT-12."""
    store = Store(make_store("SFT-12", max_len=64, too_long="right"))
    ledger = row_store.read_ledger(store)
    assert (ledger["rows_in"], ledger["rows_out"]) == (2, 1)
    assert ledger["dropped"] == {"too long: nothing trained would be left": 1}
    assert store.num_targets == 4


def test_a_cut_on_the_left_keeps_all_of_a_short_answer(only_example):
    """SFT-12, the other way."""
    ids, mask = only_example("SFT-12", max_len=64, too_long="left")
    assert len(ids) == 64
    assert trained(ids, mask) == [*b"yes", END]


def test_dropping_is_what_happens_unless_told_otherwise(only_example):
    with pytest.raises(Dropped, match="too long"):
        only_example("SFT-12", max_len=64)


def test_real_trained_and_all_positions_are_counted_apart(inputs, make_source, tmp_path):
    """MET-02: row 1 twice, in rows of 64."""
    line = (inputs / "SFT-12.jsonl").read_text().splitlines()[1]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{line}\n{line}\n")
    source = make_source("SFT-12")
    source.rows = RowFiles([str(rows)])
    row_store.encode(source, 0.0, str(tmp_path / "store"))
    (batch,) = loader(str(tmp_path / "store"), 64, 1).iterate(0, 1)
    assert int((batch.segment_ids > 0).sum()) == 18
    assert batch.loss_weights.sum() == 8
    unpacked = loader(str(tmp_path / "store"), 9, 2).batch(0)
    assert (unpacked.segment_ids > 0).sum() == 18
    assert unpacked.loss_weights.sum() == 8


def test_line_separators_inside_a_text_split_no_row(inputs, tokenizer, tmp_path):
    """CLN-13."""
    source = chat_store.Source(
        [str(inputs / "CLN-13.jsonl")], tokenizer, None, chat_store.Settings()
    )
    row_store.encode(source, 0.0, str(tmp_path / "store"))
    store = Store(str(tmp_path / "store"))
    assert [store.document_name(number)[0] for number in range(3)] == ["0", "1", "2"]
    text = np.empty(int(store.document_ends[0]), store.dtype)
    store.read(*(np.array([n], np.int64) for n in (0, len(text), 0)), text)
    assert bytes(text.tolist()).decode() == "before\u2028after"
