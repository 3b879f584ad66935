"""Scores of files of answers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain import answer_store, reward_scores, row_store
from jaxtrain.chat.source import chat_template, teach
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.serving.model import TextModel
from tests.chats import VOCAB_SIZE, base_tokenizer, write_rows

PAIR = {"prompt": "1+1?", "chosen": "2, since one and one make two", "rejected": "3"}
ONE = {"id": 7, "prompt": "2+2?", "response": "4"}
MESSAGES = {
    "messages": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
    ]
}


@pytest.fixture(scope="module")
def scorer():
    return text_model(scalar_head=True)


def text_model(*, scalar_head: bool) -> TextModel:
    """A tiny model that was never trained, with tokenizer and template."""
    config = ModelConfig(
        vocab_size=VOCAB_SIZE,
        num_layers=1,
        d_model=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        d_ff=32,
        context_len=80,
        scalar_head=scalar_head,
    )
    parts = split(Decoder(config, rngs=nnx.Rngs(3), recipe=get_recipe("float32")))
    tokenizer, template = teach(base_tokenizer(), "seed")
    return TextModel(
        name="a model",
        config=config,
        recipe="float32",
        structure=parts,
        params=parts.params,
        tokenizer=tokenizer,
        template=chat_template(template, tokenizer),
        end_ids=(),
    )


def scored(model, rows, folder, **options):
    """The rows that come out for rows that go in, texts as they stand."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    out = folder / "out.jsonl"
    counts = reward_scores.score_file(model, str(folder / "in.jsonl"), out, **options)
    return [json.loads(line) for line in out.open()], counts


def score_alone(model, ids) -> float:
    """The score of one sequence, without filler or neighbours."""
    decoder = model.structure.bind(model.params, model.structure.nontrained)
    inputs = jnp.asarray(ids, jnp.int32)[None]
    h_BTD = decoder.hidden(inputs, jnp.arange(inputs.shape[1])[None])
    return float(np.asarray(h_BTD, np.float64)[0, -1] @ np.asarray(decoder.w_score_D[...]))


def test_scores_are_those_of_each_answer_alone(scorer, tmp_path):
    sequences = [np.arange(1, 1 + length) % 200 for length in (3, 64, 65, 70, 1, 64)]
    found = reward_scores.Scorer(scorer).scores(sequences)
    expected = [score_alone(scorer, ids) for ids in sequences]
    assert len({round(score, 3) for score in expected}) > 3
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_come_out_as_they_were_with_their_scores(scorer, tmp_path):
    rows, counts = scored(scorer, [PAIR, ONE, MESSAGES], tmp_path)
    assert counts == (3, 0)
    assert [{k: v for k, v in row.items() if "score" not in k} for row in rows] == [
        PAIR,
        ONE,
        MESSAGES,
    ]
    assert {"score_chosen", "score_rejected"} < rows[0].keys()
    assert "score" not in rows[0]
    assert rows[0]["score_chosen"] != rows[0]["score_rejected"]
    assert rows[1]["score"] == pytest.approx(rows[2]["score"], abs=1e-6)  # one conversation


@pytest.mark.parametrize(
    "known",
    [
        {"score_chosen": 1.0, "score_rejected": 2.0},  # which a store of pairs leaves out
        {"score_chosen": 1.0, "score_rejected": 1.0},
        {"margin": -1.0},
    ],
)
def test_a_pair_is_scored_whatever_scores_it_has_already(scorer, tmp_path, known):
    """So that what was scored can be scored by another model, its mistakes too."""
    ((expected,), _) = scored(scorer, [PAIR], tmp_path)
    (tmp_path / "out.jsonl").unlink()
    ((found,), counts) = scored(scorer, [{**PAIR, **known}], tmp_path)
    assert counts == (1, 0)
    assert found == {**known, **expected}


def test_ids_are_those_of_a_store_of_answers(scorer, tmp_path, monkeypatch):
    base_tokenizer().save(tmp_path / "tokenizer")
    given = [write_rows(tmp_path / "pairs.jsonl", [PAIR])]
    source = answer_store.Source(
        given, tmp_path / "tokenizer", "seed", answer_store.Settings(max_len=80)
    )
    row_store.encode(source, 0.0, str(tmp_path / "store"))
    documents = [document.example.ids for document in source.documents(source.new_ledger(0.0))]
    seen = []

    def record(scorer, sequences):
        seen.extend(sequences)
        return [0.0] * len(sequences)

    monkeypatch.setattr(reward_scores.Scorer, "scores", record)
    scored(scorer, [PAIR], tmp_path)
    assert [ids.tolist() for ids in seen] == [ids.tolist() for ids in documents]


@pytest.mark.parametrize("separator", ["\n", " ; "])
def test_steps_are_scored_where_a_store_of_steps_has_their_labels(scorer, tmp_path, separator):
    row = {"prompt": "1+1+1?", "completions": ["1+1=2", "2+1=4", "so 4"]}
    base_tokenizer().save(tmp_path / "tokenizer")
    given = [write_rows(tmp_path / "steps.jsonl", [{**row, "labels": [True, False, False]}])]
    settings = answer_store.Settings(step_separator=separator)
    source = answer_store.Source(given, tmp_path / "tokenizer", "seed", settings)
    ((_, example, *_),) = source.documents(source.new_ledger(0.0))
    lasts = np.flatnonzero(example.mask)
    assert len(lasts) == 3
    ((found,), counts) = scored(scorer, [row], tmp_path, separator=separator)
    assert counts == (1, 0)
    assert found.pop("scores") == pytest.approx(
        [score_alone(scorer, example.ids[: last + 1]) for last in lasts], abs=1e-5
    )
    assert found == row


def test_a_row_without_a_score_says_why_and_stays(scorer, tmp_path):
    long = {"prompt": "?", "response": "x" * 100}
    rows, counts = scored(scorer, ["{", ONE, long, {"text": "no answer"}], tmp_path)
    assert counts == (4, 3)
    assert rows[1]["score"] is not None
    assert "error" not in rows[1]
    assert [row["score"] for row in rows] == [None, rows[1]["score"], None, None]
    assert "too long: 106 tokens, at most 80 are read" in rows[2]["error"]
    assert {key: rows[2][key] for key in long} == long
    assert all(row["error"] for row in (rows[0], rows[2], rows[3]))


def test_what_cannot_be_scored_is_refused(scorer, tmp_path):
    with pytest.raises(ValueError, match="a model is no reward model: it has no head for a score"):
        scored(text_model(scalar_head=False), [ONE], tmp_path)
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"out\.jsonl exists; give another name, or delete it"):
        scored(scorer, [ONE], tmp_path)
    assert (tmp_path / "out.jsonl").read_text() == "mine"


def test_a_reward_model_writes_no_text(scorer):
    with pytest.raises(ValueError, match="is a reward model, which does not write text; score"):
        scorer.engine(max_len=None, num_slots=1)
    assert jax.tree.leaves(scorer.params)
