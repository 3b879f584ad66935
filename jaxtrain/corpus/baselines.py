"""What general-purpose compressors reach on a text: the floor that a language model should beat.

bits per byte = 8 · compressed bytes / bytes. A compressor sees the held-out bytes alone, as one
stream, and learns from them as it goes; a model has learnt from the training set instead. Either
figure is the number of bits for which a reader who has the decoder gets a byte of this text.
"""

import lzma
import zlib
from collections.abc import Iterable

# As much as is compressed: about 20 s of lzma, and its figure has settled long before.
MAX_BYTES = 20_000_000


def compressor_bits_per_byte(texts: Iterable[str]) -> tuple[dict[str, float], int]:
    """Bits per byte of zlib (level 9, 32 KiB window) and lzma (preset 9 extreme), one stream each.

    Returns:
      the two figures, none where there is no text; and how many bytes were compressed, which are
      the first 20 MB of the text.
    """
    held = bytearray()
    for text in texts:
        held += text.encode()
        if len(held) >= MAX_BYTES:
            break
    data = bytes(held[:MAX_BYTES])
    if not data:
        return {}, 0
    # A window as large as the data sees as much as the preset's 64 MiB, in a tenth of the memory.
    window = max(4096, len(data))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": window}]
    sizes = {
        "zlib": len(zlib.compress(data, 9)),
        "lzma": len(lzma.compress(data, filters=filters)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}, len(data)
