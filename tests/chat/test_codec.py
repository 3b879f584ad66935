"""Every kind of tokenizer is cut where rendering asks, and gives the text back."""

import numpy as np
import pytest

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.render import render, render_prompt
from jaxtrain.chat.source import chat_template, teach
from jaxtrain.tokenizer.training import KINDS, Training

TEXTS = (
    "def red_fox(runs):\n    return runs by an old oak\n",
    "  The user asks, the assistant says yes: the old oak stands by the red fox.\n\n",
    "naïve café — 日本語のテキスト 数字 ２０２６ 👩‍🚀\u2028 system user assistant\nyes",
)
SIZES = {"bpe": 300, "wordpiece": 560, "sentencepiece_unigram": 315, "sentencepiece_bpe": 330}
TALK = [
    {"role": "system", "content": "the user"},
    {"role": "user", "content": "  asks\n<|im_end|>"},
    {"role": "assistant", "content": "\nyes"},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": "the assistant says"},
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return Training(request.param, SIZES[request.param], num_reserved=0).train(TEXTS * 3)


@pytest.mark.parametrize("name", BUILTIN)
def test_a_rendered_conversation_decodes_to_its_text(tokenizer, name):
    taught, source = teach(tokenizer, name)
    result = render(TALK, chat_template(source, taught), TokenizerCodec(taught))
    if taught.kind != "WordPiece":  # which takes spaces away, as its page says
        assert taught.decode(result.ids) == result.text
    assert set(result.turns.tolist()) == {-1, 2, 4}


@pytest.mark.parametrize("name", BUILTIN)
def test_a_prompt_is_a_prefix_id_by_id(tokenizer, name):
    taught, source = teach(tokenizer, name)
    template, codec = chat_template(source, taught), TokenizerCodec(taught)
    whole = render(TALK, template, codec)
    prompt = render_prompt(TALK[:2], template, codec)
    np.testing.assert_array_equal(whole.ids[: len(prompt.ids)], prompt.ids)
    assert whole.turns[len(prompt.ids)] == 2


def test_pieces_in_the_middle_get_no_space_of_their_own(tokenizer):
    codec = TokenizerCodec(tokenizer)
    pieces = codec.encode_pieces(["the user", " says", "yes"])
    assert len(pieces) == 3
    if tokenizer.kind != "WordPiece":
        assert tokenizer.decode(np.concatenate(pieces)) == "the user saysyes"
    assert codec.encode_pieces([]) == []


@pytest.mark.reference
def test_ids_are_those_of_transformers_where_no_control_token_is_typed(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    taught, source = teach(tokenizer, "chatml")
    for name, content in taught.transformers_files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    talk = [dict(m, content=m["content"].replace("<|im_end|>", "").strip()) for m in TALK]
    expected = theirs.apply_chat_template(
        talk, chat_template=source, tokenize=True, return_dict=False
    )
    ours = render(talk, chat_template(source, taught), TokenizerCodec(taught))
    assert taught.decode(ours.ids) == taught.decode(expected)
    assert ours.ids.tolist() == expected
