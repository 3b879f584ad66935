r"""Where the sentences of a text begin and end.

A sentence ends with its line, after a Latin mark (. ! ? …) before white space, or after a mark of
another script wherever that stands. 3.14 and www.example.org end none; an abbreviation does.
"""

import re

from jaxtrain.corpus.words import CLOSING_MARKS, LATIN_ENDS, OTHER_ENDS

_CLOSING = f"[{re.escape(CLOSING_MARKS)}]*"
_SENTENCE = re.compile(
    rf"[^\n]+?(?:[{LATIN_ENDS}]+{_CLOSING}(?=\s)|[{OTHER_ENDS}]+{_CLOSING}|(?=\n)|\Z)"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, in order, without the white space around it."""
    spans = []
    for match in _SENTENCE.finditer(text):
        words = match[0].strip()
        if words:
            start = match.start() + match[0].index(words)
            spans.append((start, start + len(words)))
    return spans
