"""The form of answers."""

from jaxtrain.serving.answers import Piece
from jaxtrain.serving.responses import Form, usage


def test_pieces_of_an_answer_carry_offsets_on(text_model):
    form = Form(text_model, "fox", is_chat=False, gives_logprobs=True)
    ids = text_model.tokenizer.encode("red fox").tolist()
    offsets = []
    for token in ids:
        piece = Piece("", [token], [-1.0], [[(token, -1.0)]], None)
        offsets += form.piece(0, piece)["choices"][0]["logprobs"]["text_offset"]
    texts = [text_model.tokenizer.decode([token]) for token in ids]
    assert offsets == [sum(map(len, texts[:place])) for place in range(len(ids))]


def test_a_whole_answer_joins_its_pieces(text_model):
    form = Form(text_model, "fox", is_chat=True, gives_logprobs=False)
    pieces = [Piece("a", [1], [-1.0], [], None), Piece("b", [2], [-2.0], [], "stop")]
    body = form.whole([pieces], 3)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == usage(3, 2)
    assert usage(3, 2)["total_tokens"] == 5
