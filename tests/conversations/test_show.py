"""What is shown of an example is its ids, decoded, with what is trained marked."""

from jaxtrain.chat.source import chat_template, teach
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import read
from jaxtrain.conversations.show import legend, shown
from tests.chats import base_tokenizer, exchange


def test_trained_tokens_stand_between_marks_and_in_the_colour_of_their_role():
    tokenizer, source = teach(base_tokenizer(), "seed")
    example = Maker(tokenizer, chat_template(source, tokenizer)).example(read(exchange("hé", "日")))
    text = shown(example, tokenizer, "row")
    assert text.plain == (
        "row: 4 of 11 tokens trained\n<|bos|><|user|>hé<|end|><|assistant|>⟦日<|end|>⟧\n"
    )
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles["日"] == "green reverse"
    assert styles["h"] == "cyan"
    assert "⟦trained⟧" in legend().plain
