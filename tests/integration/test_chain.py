"""The commands of the quickstart one after the other, on a model of a few thousand parameters."""

import json
import math
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from jaxtrain import files
from jaxtrain.data.store import Store

pytestmark = pytest.mark.slow

VOCAB_SIZE = 512
SMALL = {
    "model.vocab_size": VOCAB_SIZE,
    "model.num_layers": 2,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "model.d_ff": 64,
    "data.batch_size": 8,
    "data.seq_len": 128,
    "optim.warmup_steps": 1,
    "loop.num_steps": 8,
    "loop.log_every": 1,
    "loop.eval_every": 8,
    "checkpoint.save_every": 8,
}


@pytest.fixture(scope="module")
def chain(tmp_path_factory, root_dir):
    """Runs all commands once; returns a function that runs one, and the folder of the results."""
    folder = tmp_path_factory.mktemp("quickstart")

    def run(command, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", f"jaxtrain.{command}", *map(str, arguments)],
            cwd=root_dir,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pretrain():
        overrides = [f"--config.{key}={value}" for key, value in SMALL.items()]
        stores = [
            f"--config.data.sources.stdlib.path={folder / 'store' / 'train'}",
            f"--config.data.eval_sources.heldout.path={folder / 'store' / 'heldout'}",
        ]
        given = ("--config=configs/pretrain/tiny.py", f"--workdir={folder / 'pretrain'}")
        return run("pretrain", *given, *overrides, *stores)

    corpus, tokenizer = folder / "corpus", folder / "tokenizer"
    run("prepare", "--config=configs/corpus/code.py", f"--workdir={corpus}")
    given = ("--vocab_size", VOCAB_SIZE, "--out", tokenizer)
    run("tokenize", "train", "--input", corpus / "heldout" / "*.parquet", *given)
    for name in ("train", "heldout"):
        given = ("--tokenizer", tokenizer, "--out", folder / "store" / name)
        run("tokenize", "encode", "--input", corpus / name / "*.parquet", *given)
    pretrain()
    return pretrain, folder


def _metrics(folder):
    lines = (folder / "pretrain" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_training_begins_near_the_uniform_loss_and_falls(chain):
    losses = [line["loss"] for line in _metrics(chain[1]) if "loss" in line]
    assert len(losses) == SMALL["loop.num_steps"]
    # Logits of unit variance cost half a nat more than equal ones: E ln Σ exp = ln V + 1/2.
    assert math.log(VOCAB_SIZE) < losses[0] < math.log(VOCAB_SIZE) + 0.75
    assert losses[-1] < losses[0] - 0.1


def test_bits_per_byte_are_of_the_held_out_text_itself(chain):
    _, folder = chain
    (line,) = [line for line in _metrics(folder) if "eval/loss" in line]
    shards = (folder / "corpus" / "heldout").glob("*.parquet")
    documents = [text for shard in shards for text in pq.read_table(shard)["text"].to_pylist()]
    nats = line["eval/loss"] * line["eval/target_weight"]
    num_bytes = sum(len(text.encode()) for text in documents)
    assert line["eval/bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)


def test_tokenizer_and_card_of_the_corpus_reach_the_run(chain):
    _, folder = chain
    for name in ("tokenizer.json", "tokenizer_config.json"):
        ours, theirs = folder / "pretrain" / name, folder / "tokenizer" / name
        assert ours.read_bytes() == theirs.read_bytes()
    card = json.loads((folder / "pretrain" / "card.json").read_bytes())
    ((sha256, counted),) = card.pop("tokens").items()
    assert card == json.loads((folder / "corpus" / "card.json").read_bytes())
    assert sha256 == files.sha256(folder / "tokenizer" / "tokenizer.json")
    assert counted["train"]["total"] == Store(str(folder / "store" / "train")).num_tokens


def test_second_start_of_a_finished_run_adds_nothing(chain):
    pretrain, folder = chain
    before = _metrics(folder)
    pretrain()
    assert _metrics(folder) == before
