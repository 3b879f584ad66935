"""What general-purpose compressors reach on a text: the floor that a language model should beat.

bits per byte = 8 · compressed bytes / bytes. A compressor sees the held-out bytes alone, as one
stream, and learns from them as it goes; a model has learnt from the training set instead. Either
figure is the number of bits for which a reader who has the decoder gets a byte of this text.
"""

import lzma
import zlib
from collections.abc import Iterable

from jaxtrain.corpus.documents import Document


def compressor_bits_per_byte(documents: Iterable[Document]) -> dict[str, float]:
    """Bits per byte of zlib (level 9, 32 KiB window) and lzma (preset 9 extreme) on the texts.

    Raises:
      ValueError: where there is no text to compress.
    """
    data = "".join(document.text for document in documents).encode()
    if not data:
        raise ValueError("no held-out text to compress; raise corpus.heldout_frac")
    sizes = {
        "zlib": len(zlib.compress(data, 9)),
        "lzma": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}
