import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from tests.data.naive_answers import make_groups


@pytest.mark.parametrize(
    ("masks", "settings", "message"),
    [
        ([[0, 0, 1, 1]], {"packing": "concat"}, "packing='concat' they would see each other"),
        ([[0, 0, 1, 1]], {"seq_len": 3}, r"would cut 1 of 1 \(the longest has 4 tokens\)"),
        ([[1, 0, 0, 0]], {}, "0 of 4 tokens trained"),
        ([[0, 0, 1, 1]], {"objective": "masked_lm"}, "'masked_lm' would not heed it"),
    ],
)
def test_conversations_are_served_whole_alone_and_with_something_trained(
    make_store, masks, settings, message
):
    path = make_store([[256, 1, 2, 3]], masks=masks)
    config = DataConfig(
        sources={"chat": SourceConfig(path)},
        eval_sources={"held": SourceConfig(path)},
        **({"seq_len": 8, "packing": "best_fit"} | settings),
    )
    with pytest.raises(ValueError, match=message) as error:
        Loader(config, 0)
    assert str(error.value).startswith("config.data.sources.chat.path=")
    with pytest.raises(ValueError, match=message):
        open_heldout(config, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"packing": "concat"}, "packing='concat' those that belong together would be cut apart"),
        ({"packing": "concat_isolated"}, "would be cut apart; set best_fit"),
        ({"objective": "masked_lm"}, "'masked_lm' would not heed it"),
        ({"weighting": "document"}, r"weighting='document' means nothing here: set token"),
        (
            {"seq_len": 8},
            r"2 of 3 groups are longer than a row of config\.data\.seq_len=8 \(the longest has 12 "
            r"tokens, from 'doc-4' at 'file\.jsonl:4'\); raise it, or make the store with",
        ),
    ],
)
def test_answers_are_served_in_whole_groups_only(write_answers, tmp_path, settings, message):
    groups = make_groups("pairs", [(4, 4), (5, 4), (6, 6)])
    source = SourceConfig(write_answers(tmp_path / "store", "pairs", groups))
    config = DataConfig(
        sources={"prefs": source},
        eval_sources={"held": source},
        **({"seq_len": 12, "packing": "best_fit"} | settings),
    )
    with pytest.raises(ValueError, match=message) as error:
        Loader(config, 0)
    assert str(error.value).startswith("config.data.sources.prefs.path=")
    assert "holds answers of kind 'pairs'" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        open_heldout(config, 0)


def test_a_few_short_answers_are_filled_up(write_answers, tmp_path):
    path = write_answers(tmp_path / "store", "pairs", make_groups("pairs", [(2, 2)]))
    config = DataConfig({"a": SourceConfig(path)}, seq_len=64, packing="best_fit", batch_size=1)
    assert (Loader(config, 0).batch(0).tokens.segment_ids > 0).sum() == 4
