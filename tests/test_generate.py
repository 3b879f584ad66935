"""The command: one prompt to the terminal, a file of prompts to a file of answers."""

import json
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program, generate
from jaxtrain.chat.source import TEMPLATE_FILE, teach
from jaxtrain.models.parameters import split
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints


@pytest.fixture(scope="module")
def tokenizer():
    learnt = Training("bpe", 270, num_reserved=0).train(["red fox runs by an old oak " * 5] * 3)
    return teach(learnt, "seed")[0]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tokenizer, tiny_config):
    """An untrained model with a tokenizer and a template, as a run leaves it."""
    modules = {"model.num_mtp_layers": 1}
    path = save_model(tmp_path_factory.mktemp("run"), tokenizer, tiny_config, modules)
    (path / TEMPLATE_FILE).write_text(teach(tokenizer, "seed")[1])
    return path


def save_model(path, tokenizer, tiny_config, changes):
    config = tiny_config({"model.vocab_size": tokenizer.vocab_size, **changes})
    params = split(config_program.model_maker(config)(jax.random.key(0))).params
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(3, {"params": params}, {"config": config_lib.to_plain(config)})
    tokenizer.save(path)
    return path


@pytest.fixture
def run(monkeypatch, capsys, workdir):
    """Runs the command on the workdir; returns what it printed."""

    def command(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", ["generate", f"--workdir={workdir}", *flags])
        generate.main()
        return capsys.readouterr().out

    return command


def test_greedy_text_is_the_most_likely_continuation(run, tokenizer, tiny_config):
    found = json.loads(run("--prompt=red", "--temperature=0", "--max_new_tokens=5", "--json"))
    config = tiny_config({"model.vocab_size": tokenizer.vocab_size})
    model = config_program.model_maker(config)(jax.random.key(0))
    ids = [tokenizer.control_id("bos"), *tokenizer.encode("red").tolist()]
    start = len(ids)
    for _ in range(5):
        row = jnp.asarray([ids], jnp.int32)
        logits = model(row, jnp.arange(len(ids), dtype=jnp.int32)[None])
        ids.append(int(jnp.argmax(logits[0, -1])))
    assert found["answers"] == [{"text": tokenizer.decode(ids[start:]), "finish": "length"}]


def test_samples_have_seeds_of_their_own(run):
    flags = ("--prompt=red", "--max_new_tokens=9", "--temperature=2", "--json")
    texts = [a["text"] for a in json.loads(run(*flags, "--num_samples=3"))["answers"]]
    assert len(set(texts)) == 3
    alone = [json.loads(run(*flags, f"--seed={n}"))["answers"][0]["text"] for n in (0, 2)]
    assert alone == [texts[0], texts[2]]


def test_the_terminal_shows_prompt_and_answer(run):
    flags = ("--prompt=red", "--max_new_tokens=6", "--temperature=0")
    answer = json.loads(run(*flags, "--json"))["answers"][0]["text"]
    assert run(*flags) == f"red{answer}\n"
    conversation = run(*flags, "--chat")
    assert not conversation.startswith("red")


@pytest.fixture(scope="module")
def smaller(tmp_path_factory, tokenizer, tiny_config):
    """A draft: another model of the same tokenizer."""
    path = tmp_path_factory.mktemp("smaller")
    return save_model(path, tokenizer, tiny_config, {"model.num_layers": 1, "model.d_ff": 16})


def test_a_draft_changes_no_answer(run, smaller):
    """A smaller model, and the model's own module, also where it goes on from what it gave."""
    flags = ("--prompt=red", "--max_new_tokens=9", "--num_samples=2", "--json")
    plain = json.loads(run(*flags))
    for draft in (smaller, "mtp"):
        assert json.loads(run(*flags, f"--draft={draft}", "--num_drafted=2")) == plain


def test_the_model_as_its_own_draft_is_right(workdir, monkeypatch, capsys):
    flags = [f"--workdir={workdir}", f"--draft={workdir}", "--num_drafted=3", "--temperature=0"]
    monkeypatch.setattr(sys, "argv", ["generate", *flags, "--prompt=red", "--max_new_tokens=8"])
    generate.main()
    assert "draft: 6 of 6 proposed tokens accepted (100%)" in capsys.readouterr().err


def test_a_model_without_modules_is_no_draft_of_its_own(smaller, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["generate", f"--workdir={smaller}", "--draft=mtp"])
    with pytest.raises(
        ValueError, match=r"--draft=mtp: .*smaller.* step 3 has no modules of multi"
    ):
        generate.main()


def test_a_draft_of_another_tokenizer_is_refused(run, tmp_path, tiny_config):
    learnt = Training("bpe", 270, num_reserved=0).train(["the quick brown cat sat down " * 5] * 3)
    other = save_model(tmp_path, teach(learnt, "seed")[0], tiny_config, {})
    with pytest.raises(ValueError, match=r"--draft=.* has another tokenizer than .*: id \d+ is"):
        run("--prompt=red", f"--draft={other}")


def test_a_file_of_prompts_becomes_a_file_of_answers(run, tmp_path):
    rows = [
        {"prompt": "red", "id": "x"},
        {"messages": [{"role": "user", "content": "fox"}]},
        {"prompt": "an old oak"},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--max_new_tokens=5", "--num_samples=2", f"--input={source}")
    run(*flags, f"--output={tmp_path / 'a.jsonl'}")
    found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in row.items() if k in rows[n]} for n, row in enumerate(found)] == rows
    assert all(len(row["answers"]) == 2 for row in found)
    assert found[0]["sampling"]["temperature"] == 0.8
    assert found[0]["sampling"]["max_new_tokens"] == 5
    for row in found:
        for answer in row["answers"]:
            assert answer["logprob_sum"] < 0
            assert 1 <= answer["num_tokens"] <= 5
    run(*flags, f"--output={tmp_path / 'b.jsonl'}", "--num_slots=1")
    again = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [[a["text"] for a in row["answers"]] for row in again] == [
        [a["text"] for a in row["answers"]] for row in found
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=a.jsonl"], "--input and --output belong together"),
        (["--input=a", "--output=b", "--prompt=c"], "--prompt and --input exclude each other"),
        (["--temperature=-0.1"], "temperature=-0.1 must be from 0"),
        (["--temperature=nan"], "temperature=nan must be from 0"),
        (["--top_k=99999999999"], "top_k=99999999999 must be from 1"),
        (["--prompt=\udcff"], "surrogate"),
        (["--prompt=\udcff", "--chat"], "surrogate"),
        (["--top_p=0"], "top_p=0.0 must be above 0"),
        (["--max_len=2", "--prompt=red fox"], "the prompt has .* --max_len=2"),
        (["--stop="], "must be a string of at least one character"),
        (["--num_drafted=2"], "--num_drafted=2 is of a --draft; name one"),
        (["--step=4"], "step 4 .* does not exist; whole ones are 3"),
    ],
)
def test_impossible_flags_are_refused(run, flags, message):
    with pytest.raises(ValueError, match=message):
        run(*flags)


def test_a_run_that_was_stopped_goes_on_to_the_same_answers(run, tmp_path, monkeypatch):
    source = tmp_path / "in.jsonl"
    prompts = ["red", "fox " * 9, "an old oak", "runs", "by", "red fox runs"]
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    flags = ("--max_new_tokens=9", f"--input={source}", "--num_slots=2")
    run(*flags, f"--output={tmp_path / 'whole.jsonl'}")
    cut = tmp_path / "cut.jsonl"
    part = tmp_path / "cut.jsonl.part"
    whole_answers = generate._whole_answers

    def stopped(*arguments):
        for number, answer in enumerate(whole_answers(*arguments)):
            if number == 3:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(generate, "_whole_answers", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(*flags, f"--output={cut}")
    monkeypatch.setattr(generate, "_whole_answers", whole_answers)
    part.write_bytes(part.read_bytes() + b'{"row": 5, "answ')
    with pytest.raises(ValueError, match="was made from other prompts or settings"):
        run(*flags, f"--output={cut}", "--chat")
    run(*flags, f"--output={cut}")
    assert cut.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_variables_reach_the_chat_template(run, workdir, tmp_path):
    template = workdir / TEMPLATE_FILE
    source = template.read_text()
    template.write_text(source + "{{ mood }}")
    try:
        flags = ("--prompt=red", "--chat", "--max_new_tokens=6", "--temperature=0")
        plain, happy = run(*flags), run(*flags, '--chat_template_kwargs={"mood": "red fox"}')
        assert plain != happy
        rows = tmp_path / "in.jsonl"
        row = {"messages": [{"role": "user", "content": "red"}]}
        rows.write_text(json.dumps(row | {"chat_template_kwargs": {"mood": "red fox"}}))
        run(*flags[2:], f"--input={rows}", f"--output={tmp_path / 'out.jsonl'}")
        answer = json.loads((tmp_path / "out.jsonl").read_text())["answers"][0]["text"]
        assert answer + "\n" == happy
    finally:
        template.write_text(source)
    with pytest.raises(SystemExit):
        run("--chat", "--chat_template_kwargs=3")


def test_a_bad_row_is_named_before_anything_is_drawn(run, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "red"}\n{"messages": [{"role": "boss", "content": "x"}]}\n')
    with pytest.raises(ValueError, match=r"in\.jsonl, prompt 2: messages\[0\]\.role='boss'"):
        run(f"--input={source}", f"--output={tmp_path / 'out.jsonl'}")
    assert list(tmp_path.iterdir()) == [source]
