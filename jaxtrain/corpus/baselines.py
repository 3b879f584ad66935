"""What general-purpose compressors reach on a text: the floor that a language model should beat.

bits per byte = 8 · compressed bytes / bytes. A compressor sees the held-out bytes alone, as one
stream, and learns from them as it goes; a model has learnt from the training set instead. Either
figure is the number of bits for which a reader who has the decoder gets a byte of this text.
"""

import lzma
import zlib
from collections.abc import Iterable
from typing import Any

# As much as is compressed: about 20 s of lzma, and its figure has settled long before.
MAX_BYTES = 20_000_000


def compressor_bits_per_byte(texts: Iterable[str]) -> dict[str, Any]:
    """Bits per byte of zlib (level 9, 32 KiB window) and lzma (preset 9 extreme), one stream each.

    Returns:
      the two figures and `of_bytes`, how much of the text was compressed: its first 20 MB. Empty
      where there is no text.
    """
    held = bytearray()
    for text in texts:
        held += text.encode()
        if len(held) >= MAX_BYTES:
            break
    data = bytes(held[:MAX_BYTES])
    if not data:
        return {}
    sizes = {
        "zlib": len(zlib.compress(data, 9)),
        "lzma": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()} | {"of_bytes": len(data)}
