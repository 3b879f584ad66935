"""What stages refuse before anything is touched, each in one line."""

import dataclasses
import pathlib
import shutil

import pytest

from jaxtrain import stage_checks
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from jaxtrain.run_config import InitConfig
from jaxtrain.tokenizer.training import Training
from tests.chat_runs import make_store
from tests.chats import VOCAB_SIZE


@pytest.fixture
def open_stores(stages):
    """(training batches, held-out sets) of kinds of stores by the names of sources."""

    def make(sources, heldout=()):
        config = DataConfig(
            {name: SourceConfig(stages.store(data)) for name, data in sources.items()},
            {name: SourceConfig(stages.store(data)) for name, data in dict(heldout).items()},
            seq_len=64,
            packing="best_fit",
        )
        return Loader(config, 0), open_heldout(config, 0)

    return make


def refusal(check, *arguments):
    """The message of a refusal, which is one line."""
    with pytest.raises(ValueError, match="config") as error:
        check(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_stage_after_pretraining_starts_from_the_parameters_of_a_model(tiny_config):
    config = dataclasses.replace(tiny_config(), init=InitConfig("base", "params"))
    stage_checks.check_starts_from_model(config)
    for init, told in (
        (InitConfig(None, "params"), "config.init.from is not set; this stage starts from a model"),
        (InitConfig("base", "state"), "config.init.load=state would go on with the schedule"),
    ):
        other = dataclasses.replace(config, init=init)
        assert refusal(stage_checks.check_starts_from_model, other).startswith(told)


def test_what_a_stage_starts_from_gives_its_parameters_alone_if_it_starts_from_anything(
    tiny_config,
):
    config = dataclasses.replace(tiny_config(), init=InitConfig(None, "state"))
    stage_checks.check_takes_parameters(config)
    other = dataclasses.replace(config, init=InitConfig("base", "state"))
    told = refusal(stage_checks.check_takes_parameters, other)
    assert told.startswith("config.init.load=state would go on with the schedule")


def test_conversations_are_stores_with_a_mask(open_stores):
    stage_checks.check_conversations(*open_stores({"chat": "chat"}))
    stage_checks.check_conversations(*open_stores({"chat": "chat", "text": "chat"}))
    told = refusal(stage_checks.check_conversations, *open_stores({"text": "text"}))
    assert "config.data.sources holds no conversations, only plain text; make a store" in told


@pytest.mark.parametrize("data", ["pairs", "labels"])
def test_answers_are_no_documents(open_stores, data):
    stage_checks.check_documents(*open_stores({"a": "chat"}, {"b": "chat"}))
    for check, arguments in (
        (stage_checks.check_conversations, open_stores({"a": data})),
        (stage_checks.check_documents, open_stores({"a": data})),
    ):
        told = f"config.data.sources.a holds answers to compare ({data}), which this stage does not"
        assert refusal(check, *arguments).startswith(told)
    told = refusal(stage_checks.check_documents, *open_stores({"a": "chat"}, {"b": data}))
    assert told.startswith(f"config.data.eval_sources.b holds answers to compare ({data})")


@pytest.mark.parametrize(
    ("sources", "heldout", "found"),
    [
        ({"a": "chat"}, {}, "sources.a holds no answers to compare, but"),
        ({"a": "labels"}, {}, "sources.a holds labels, but"),
        ({"a": "pairs"}, {"b": "chat"}, "eval_sources.b holds no answers to compare, but"),
        ({"a": "pairs"}, {"b": "labels"}, "eval_sources.b holds labels, but"),
    ],
)
def test_answers_of_another_kind_are_refused_wherever_they_are(
    open_stores, sources, heldout, found
):
    given = open_stores({"a": "pairs"}, {"b": "pairs"})
    stage_checks.check_answers(*given, kinds=("pairs",), needed_by="it")
    given = open_stores(sources, heldout)
    told = refusal(stage_checks.check_answers, *given, ("pairs",), "config.loss.kind=dpo")
    assert told == (
        f"config.data.{found} config.loss.kind=dpo learns from pairs; make a store of them with "
        "python -m jaxtrain.tokenize answers"
    )


def test_where_several_kinds_will_do_they_are_listed_or_that_of_the_training_data(open_stores):
    check, kinds = stage_checks.check_answers, ("pairs", "labels")
    assert "learns from pairs or labels;" in refusal(check, *open_stores({"a": "chat"}), kinds, "x")
    told = refusal(check, *open_stores({"a": "pairs"}, {"b": "labels"}), kinds, "x")
    assert "eval_sources.b holds labels, but x learns from pairs;" in told


def test_stores_of_two_templates_are_refused_together(stages, tmp_path):
    source = "{% for m in messages %}<|bos|>{{ m.role }}{{ m.content }}<|eos|>{% endfor %}"
    (tmp_path / "template.jinja").write_text(source)
    other = make_store(tmp_path, template=str(tmp_path / "template.jinja"))
    sources = {"a": SourceConfig(stages.store("chat")), "b": SourceConfig(other)}
    config = DataConfig(sources, seq_len=64, packing="best_fit")
    loader = Loader(config, 0)
    for check in (stage_checks.check_one_template, stage_checks.check_conversations):
        assert "stores of different chat templates (sources.a " in refusal(check, loader, {})
    alone = dataclasses.replace(config, sources={"b": sources["b"]})
    stage_checks.check_one_template(Loader(alone, 0), {})
    beside = dataclasses.replace(alone, eval_sources={"held": sources["a"]})
    heldout = open_heldout(beside, 0)
    told = refusal(stage_checks.check_one_template, Loader(alone, 0), heldout)
    assert "(sources.b " in told
    assert ", eval_sources.held " in told


# ------------------------------------------------------------------------ teachers' tokenizers


def test_a_teacher_has_the_tokenizer_of_the_data_but_for_its_control_tokens(open_stores, stages):
    """The store's has the template's control tokens, the model's has them reserved."""
    source, _ = open_stores({"a": "chat"})
    for where in (str(stages.teacher), f"{stages.teacher}@1"):
        assert stage_checks.check_teacher_tokenizer(source, where) == VOCAB_SIZE


def test_a_teacher_with_another_tokenizer_is_refused_by_the_first_token_that_differs(
    open_stores, tmp_path
):
    """DST-06: one merge more."""
    Training("bpe", VOCAB_SIZE + 1, 8).train(["abab abab"]).save(tmp_path)
    source, _ = open_stores({"a": "chat"})
    told = refusal(stage_checks.check_teacher_tokenizer, source, str(tmp_path))
    assert told.startswith(
        f"config.teacher.from={str(tmp_path)!r} has another tokenizer than the data: id 256 is "
        "'<|bos|>' in one, 'ab' in the other; "
    )
    assert "Let it write text instead (python -m jaxtrain.distill_text)" in told


def test_a_teacher_or_data_without_a_tokenizer_is_refused(open_stores, stages, tmp_path):
    source, _ = open_stores({"a": "chat"})
    told = refusal(stage_checks.check_teacher_tokenizer, source, str(tmp_path))
    assert told.startswith(f"config.teacher.from={str(tmp_path)!r} has no tokenizer, so that")
    assert told.endswith("put its files there")
    shutil.copytree(stages.store("chat"), tmp_path / "bare")
    for file in pathlib.Path(tmp_path / "bare").glob("tokenizer*"):
        file.unlink()
    config = DataConfig({"a": SourceConfig(str(tmp_path / "bare"))}, seq_len=64, packing="best_fit")
    with pytest.raises(ValueError, match="bare has no tokenizer, so that nothing says"):
        stage_checks.check_teacher_tokenizer(Loader(config, 0), str(stages.teacher))


def test_a_model_that_is_not_there_is_named_with_its_key(open_stores):
    source, _ = open_stores({"a": "chat"})
    told = refusal(stage_checks.check_teacher_tokenizer, source, "nowhere@3")
    assert told.startswith("config.teacher.from: nowhere@3 is neither the directory of a Hugging")


def test_a_reference_has_the_tokenizer_of_the_data(open_stores, stages, tmp_path):
    source, _ = open_stores({"a": "pairs"})
    stage_checks.check_reference_tokenizer(source, str(stages.base))
    Training("bpe", VOCAB_SIZE + 1, 8).train(["abab abab"]).save(tmp_path)
    told = refusal(stage_checks.check_reference_tokenizer, source, str(tmp_path))
    assert told.startswith(
        f"config.reference.from={str(tmp_path)!r} has another tokenizer than the data: id 256 is "
    )
    assert told.endswith(
        "; to it these ids are other text. Name a model with the tokenizer of the data"
    )


def test_no_more_ids_of_a_teacher_are_kept_than_the_tokenizer_has():
    stage_checks.check_listed(9, 9)
    told = refusal(stage_checks.check_listed, 10, 9)
    assert told.startswith("config.loss.top_k=10 must be at most 9, the ids of the tokenizer")
