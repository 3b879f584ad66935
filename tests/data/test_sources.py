import logging
import pathlib
from dataclasses import replace

import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.sources import Source, check, open_eval_stores, open_stores
from jaxtrain.data.store import Store
from tests.data.naive_answers import make_groups


def test_check_passes_for_stores_that_fit(make_config, make_store):
    held = SourceConfig(make_store([[1, 2]]))
    config = make_config({"a": [[1, 2]], "b": [[3]]}, seq_len=2, eval_sources={"held": held})
    check(config, vocab_size=300)


@pytest.mark.parametrize("refuse", [lambda c: check(c, 300), lambda c: Loader(c, 0)])
def test_one_changed_bit_in_a_small_store_is_an_error(make_config, refuse):
    config = make_config({"web": [[1, 2, 3]]}, seq_len=2)
    (file,) = pathlib.Path(config.sources["web"].path).glob("parts/*.tokens")
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(
        ValueError, match=r"config\.data\.sources\.web\.path=.*has changed"
    ) as error:
        refuse(config)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("vocab_size", [299, 301])
def test_vocabulary_of_another_size_is_an_error(make_config, vocab_size):
    config = make_config({"web": [[1, 2]]})
    with pytest.raises(ValueError, match=f"config.model.vocab_size={vocab_size}") as error:
        check(config, vocab_size)
    assert "config.data.sources.web.path" in str(error.value)
    assert "a vocabulary of 300" in str(error.value)


def test_vocabulary_of_an_imported_model_may_have_padding(make_config):
    config = make_config({"web": [[1, 2]]})
    check(config, 301, may_be_padded=True)
    with pytest.raises(ValueError, match="a vocabulary of 300"):
        check(config, 299, may_be_padded=True)


def test_store_made_with_another_tokenizer_is_an_error(make_config, make_store, tokenization):
    other = replace(tokenization, tokenizer_sha256="b" * 64)
    config = make_config({"a": [[1]], "b": SourceConfig(make_store([[2]], tokenization=other))})
    message = r"sources\.b\.path=.*another tokenizer .bbbbbbbbbbbb, not aaaaaaaaaaaa"
    with pytest.raises(ValueError, match=message):
        check(config, 300)


def test_held_out_store_made_with_another_tokenizer_is_an_error(
    make_config, make_store, tokenization
):
    other = replace(tokenization, tokenizer_sha256="b" * 64)
    held = {"held": SourceConfig(make_store([[2]], tokenization=other))}
    with pytest.raises(ValueError, match=r"eval_sources\.held\.path=.*another tokenizer"):
        check(make_config({"a": [[1]]}, eval_sources=held), 300)


def test_masked_lm_without_a_mask_token_is_an_error(make_config, make_store, tokenization):
    bare = SourceConfig(make_store([[1, 2]], tokenization=replace(tokenization, special_ids={})))
    config = make_config({"a": bare}, objective="masked_lm")
    with pytest.raises(ValueError, match=r"has no mask token, which config\.data\.objective"):
        check(config, 300)


def test_error_of_a_store_names_the_config_key_and_the_file(tmp_path):
    config = DataConfig(sources={"web": SourceConfig(str(tmp_path / "gone"))})
    with pytest.raises(
        ValueError, match=r"config\.data\.sources\.web\.path=.*no token store"
    ) as error:
        check(config, 300)
    assert "\n" not in str(error.value)


def test_store_without_a_path_is_an_error_that_says_so():
    config = DataConfig(eval_sources={"held": SourceConfig("")})
    with pytest.raises(ValueError, match=r"config\.data\.eval_sources\.held\.path is empty; name"):
        open_eval_stores(config)


def test_config_without_sources_is_an_error():
    with pytest.raises(ValueError, match=r"config\.data\.sources is empty"):
        open_stores(DataConfig())


def test_empty_source_is_a_warning_and_an_empty_held_out_set_an_error(
    make_config, make_store, caplog
):
    config = make_config({"full": [[1, 2]], "void": []}, seq_len=2)
    with caplog.at_level(logging.WARNING):
        check(config, 300)
    assert "config.data.sources.void has no tokens" in caplog.text
    held = {"held": SourceConfig(make_store([[]]))}
    with pytest.raises(ValueError, match=r"eval_sources\.held\.path=.*holds no tokens"):
        check(replace(config, eval_sources=held), 300)


def test_plan_that_loses_a_token_is_caught(make_store, monkeypatch):
    source = Source("web", Store(make_store([[1, 2, 3]])), DataConfig(seq_len=2), seed=0)
    assert source.ledger.tokens_out == 3
    lossy = Source("web", source.store, DataConfig(seq_len=2), seed=0)
    counted = replace(source.ledger, tokens_out=2)
    monkeypatch.setattr(lossy.plan, "ledger", lambda: counted)
    with pytest.raises(AssertionError, match="web: packing lost or repeated tokens"):
        _ = lossy.ledger


def test_report_counts_what_the_masks_train(make_store):
    path = make_store([[1, 2, 3], [4, 5]], masks=[[0, 1, 1], [1, 1]])
    config = DataConfig(sources={"chat": SourceConfig(path)}, seq_len=8, packing="best_fit")
    assert "5 tokens in = 5 out + 0 dropped" in str(Loader(config, 0).report(1))
    assert "3 trained" in str(Loader(config, 0).report(1))


def test_each_document_can_count_once_in_training(make_store):
    path = make_store([[1, 2, 3], [4, 5]], masks=[[0, 1, 1], [0, 1]])
    config = DataConfig(
        {"a": SourceConfig(path)}, batch_size=1, seq_len=5, packing="best_fit", weighting="document"
    )
    assert Loader(config, 0).batch(0).loss_weights.tolist() == [[0.5, 0.5, 0, 1, 0]]
    with pytest.raises(ValueError, match="weighting='document' needs rows that keep documents"):
        replace(config, packing="concat")


@pytest.mark.parametrize("kinds", [("pairs", "ranks"), ("pairs", None), (None, "labels")])
def test_answers_of_two_kinds_or_beside_text_are_an_error(
    make_store, write_answers, tmp_path, kinds
):
    """In training sources and in held-out ones; an empty source is of no kind."""
    stores = []
    for number, kind in enumerate(kinds):
        groups = make_groups(kind, [(2, 2)] if kind != "labels" else [(2,)]) if kind else None
        path = tmp_path / str(number)
        stores.append(write_answers(path, kind, groups) if kind else make_store([[1] * 8]))
    one, other = (SourceConfig(path) for path in stores)
    settings = {"seq_len": 8, "packing": "best_fit"}
    both = DataConfig({"a": one, "b": other}, **settings)
    beside = DataConfig({"a": one}, eval_sources={"held": other}, **settings)
    said = [kind or "no answers" for kind in kinds]
    message = rf"sources\.a\.path holds {said[0]}, config\.data\.sources\.b\.path holds {said[1]}"
    for refuse in (lambda: check(both, 300), lambda: Loader(both, 0)):
        with pytest.raises(ValueError, match=message):
            refuse()
    with pytest.raises(ValueError, match=rf"eval_sources\.held\.path holds {said[1]}"):
        check(beside, 300)
    Loader(beside, 0)


def test_an_empty_source_beside_answers_is_left_out(make_store, write_answers, tmp_path):
    path = write_answers(tmp_path / "store", "pairs", make_groups("pairs", [(2, 3)]))
    sources = {"full": SourceConfig(path), "void": SourceConfig(make_store([]))}
    config = DataConfig(sources, seq_len=8, packing="best_fit", batch_size=1)
    check(config, 300)
    assert Loader(config, 0).batch(0).group_ids.tolist() == [[1, 1]]
