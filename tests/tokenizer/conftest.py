import pytest

from jaxtrain.tokenizer import bpe

TEXTS = (
    "def red_fox(runs):\n    return runs by an old oak\n",
    "  The red fox runs by an old oak, and the old oak stands by the red fox.\n\n",
    "naïve café — 日本語のテキスト 数字 ２０２６ 👩‍🚀\u2028",
)


@pytest.fixture(scope="session")
def tokenizer() -> bpe.Tokenizer:
    return bpe.train(TEXTS * 3, 300)
