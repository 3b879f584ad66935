import pytest

from jaxtrain.tokenizer import bpe
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import KINDS, Training

TEXTS = (
    "def red_fox(runs):\n    return runs by an old oak\n",
    "  The red fox runs by an old oak, and the old oak stands by the red fox.\n\n",
    "naïve café — 日本語のテキスト 数字 ２０２６ 👩‍🚀\u2028",
)
SIZES = {"bpe": 300, "wordpiece": 560, "sentencepiece_unigram": 315, "sentencepiece_bpe": 330}


@pytest.fixture(scope="session")
def tokenizer() -> bpe.Tokenizer:
    return bpe.train(TEXTS * 3, 300)


@pytest.fixture(scope="session")
def all_kinds() -> dict[str, Tokenizer]:
    """A small tokenizer of each kind that can be trained."""
    return {kind: Training(kind, SIZES[kind], num_reserved=2).train(TEXTS * 3) for kind in KINDS}


@pytest.fixture(params=KINDS)
def any_kind(request, all_kinds) -> Tokenizer:
    return all_kinds[request.param]
