from jaxtrain.tokenizer import bpe
from jaxtrain.tokenizer.pitfalls import TEXTS, check_pitfalls


def test_byte_level_tokenizers_keep_every_text(all_kinds):
    for kind in ("bpe", "wordpiece"):
        checks = check_pitfalls(all_kinds[kind])
        assert len(checks) == len(TEXTS) + 2
        assert [name for name, check in checks.items() if not check["kept"]] == []


def test_sentencepiece_changes_its_own_mark_and_nothing_else(all_kinds):
    for kind in ("sentencepiece_unigram", "sentencepiece_bpe"):
        checks = check_pitfalls(all_kinds[kind])
        lost = {name: check for name, check in checks.items() if not check["kept"]}
        assert list(lost) == ["marks of tokenizers themselves"]
        assert lost["marks of tokenizers themselves"]["came_back"].startswith("a b ")


def test_folding_tokenizer_is_found_out():
    folding = bpe.train(["fi 2"] * 3, 261, normalization="nfkc")
    checks = check_pitfalls(folding)
    lost = {name for name, check in checks.items() if not check["kept"]}
    assert {
        "compatibility characters (NFKC folds them)",
        "full-width letters, digits, marks",
        "U+3000, the ideographic space",
        "variants of Chinese characters",
    } <= lost
    assert "emoji with joiners, tones and flags" not in lost
