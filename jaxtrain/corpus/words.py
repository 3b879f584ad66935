r"""What a word, a line and the end of a sentence are, in any script.

Scripts with spaces: a word is what stands between white space, with its punctuation, as the
published rules count. Scripts without (Han, Hiragana, Katakana, Thai, Lao, Tibetan, Myanmar,
Khmer; their letters here are *unspaced*): every letter is a word, together with the marks and the
punctuation that stand with it, so that no rule takes a whole Chinese line for one word. A text may
mix the two: 使用 Python 编程 has five words. Korean is written with spaces.

A line ends at \n and nowhere else.
"""

import re
from typing import NamedTuple

# Letters of scripts that are written without spaces, from the names of Unicode 14's characters.
# Han, then Kana (half-width too), Thai, Lao, Tibetan, Myanmar, Khmer.
_UNSPACED_RANGES = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9"
    "\U00020000-\U0003134a"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46"
    "\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd\u0ec0-\u0ec6\u0edc-\u0edf"
    "\u0f00\u0f40-\u0f6c\u0f88-\u0f8c"
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081"
    "\u108e\ua9e0-\ua9e4\ua9e6-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa76\uaa7a\uaa7e\uaa7f"
    "\u1780-\u17b3\u17d7\u17dc"
)
# Han and Kana say in one character what an alphabet says in about three: the Universal Declaration
# of Human Rights has 3.7 times as many characters in English as in Chinese, 2.6 as in Japanese.
_DENSE_RANGES = "\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0003134a"
LETTERS_PER_DENSE_CHARACTER = 3
# How many letters stand for a word of English where no spaces show the words, by the same text: 1.5
# in Chinese, 2.2 in Japanese, 4.2 in Thai. Rules on passages of n words measure them with these.
LETTERS_PER_WORD_DENSE = 2  # Han and Kana
LETTERS_PER_WORD_OTHER = 4
_THAI_AND_LAO = "\u0e01-\u0e4e\u0e81-\u0edf"

UNSPACED_LETTERS = re.compile(f"[{_UNSPACED_RANGES}]+")
WORD_CHARACTERS = re.compile(r"\w+")  # what clings to unspaced letters is neither this nor the next
WHITE_SPACE = re.compile(r"\s+")
DENSE_CHARACTERS = re.compile(f"[{_DENSE_RANGES}]+")
_DENSE = re.compile(f"[{_DENSE_RANGES}]")
_UNMARKED = re.compile(f"[{_THAI_AND_LAO}]")
_LETTER_OR_MARK = re.compile(rf"[^\W\d_]|[{_THAI_AND_LAO}]")
_CLINGING = rf"[^\w\s{_UNSPACED_RANGES}]"
# Possessive, and never begun inside a run of marks: a long run costs its length, not its square.
_LEADING = rf"(?<!{_CLINGING}){_CLINGING}++"
_WORD = re.compile(
    rf"[{_UNSPACED_RANGES}]{_CLINGING}*+|{_LEADING}[{_UNSPACED_RANGES}]{_CLINGING}*+"
    rf"|[^\s{_UNSPACED_RANGES}]+"
)
_UNSPACED_WORDS = re.compile(  # a run of them
    rf"(?:{_LEADING})?+[{_UNSPACED_RANGES}](?:[{_UNSPACED_RANGES}]+|{_CLINGING}+)*+"
)

# What ends a sentence. CJK and full-width, Arabic and Urdu, Devanagari, Armenian, Ethiopic,
# Tibetan, Myanmar, Khmer marks end one wherever they stand; Latin ones before white space only, so
# that 3.14 and www.example.org end none.
LATIN_ENDS = ".!?…"
OTHER_ENDS = "。！？．｡؟۔।॥։።፧།༎။។៕"
CLOSING_MARKS = "\"'”’»›）)】」』》〉］]"  # what may stand after it
_LINE_ENDS = (*LATIN_ENDS, *OTHER_ENDS, *'"”’」』')
_SENTENCE_END = re.compile(
    rf"(?<![{LATIN_ENDS}])[{LATIN_ENDS}]++[{re.escape(CLOSING_MARKS)}]*+(?=\s|$)"
    rf"|[{OTHER_ENDS}]+"
)
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
ELLIPSIS = re.compile(r"\.{3,}|…+|。{3,}")


class WordCounts(NamedTuple):
    """The words of a text: those of scripts with spaces, and how many letters of the others."""

    spaced: list[str]
    num_unspaced: int

    @property
    def total(self) -> int:
        """As many as `split_words` gives."""
        return len(self.spaced) + self.num_unspaced

    @property
    def mostly_unspaced(self) -> bool:
        """Whether more than half of the words are letters of scripts without spaces."""
        return self.num_unspaced > len(self.spaced)


def split_words(text: str) -> list[str]:
    """The words of a text in order; all of it but white space."""
    if text.isascii() or not UNSPACED_LETTERS.search(text):
        return text.split()
    return _WORD.findall(text)


def count_words(text: str) -> WordCounts:
    """The words of a text, told apart by script; quicker than to split it."""
    if text.isascii() or not UNSPACED_LETTERS.search(text):
        return WordCounts(text.split(), 0)
    num_unspaced = sum(map(len, UNSPACED_LETTERS.findall(text)))
    return WordCounts(_UNSPACED_WORDS.sub(" ", text).split(), num_unspaced)


def filled_lines(text: str) -> list[str]:
    """The lines that hold more than white space, without the white space around them."""
    return [line for line in map(str.strip, text.split("\n")) if line]


def paragraphs(text: str) -> list[str]:
    """What blank lines part, without the white space around it."""
    return [part for part in map(str.strip, _BLANK_LINES.split(text)) if part]


def length_in_letters(line: str) -> int:
    """Length of a line, a Chinese or Japanese character counting as three letters."""
    if line.isascii():
        return len(line)
    return len(line) + (LETTERS_PER_DENSE_CHARACTER - 1) * len(_DENSE.findall(line))


def ends_sentence(line: str) -> bool:
    """Whether a stripped line ends in a mark that ends sentences or closes a quotation."""
    return line.endswith(_LINE_ENDS) or line.rstrip(CLOSING_MARKS).endswith(_LINE_ENDS)


def marks_sentences(text: str) -> bool:
    """False where most letters are Thai or Lao, which mark the end of a sentence by a space."""
    if text.isascii():
        return True
    unmarked = len(_UNMARKED.findall(text))
    return unmarked == 0 or unmarked <= len(_LETTER_OR_MARK.findall(text)) / 2


def count_sentences(line: str) -> int:
    """How many sentences a line holds by its end marks; a line without any is one sentence."""
    return max(1, len(_SENTENCE_END.findall(line)))
