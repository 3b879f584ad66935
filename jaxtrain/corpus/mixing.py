"""A bijection of 64-bit integers in which every input bit moves every output bit."""

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """The 64-bit finalizer of MurmurHash3 (Appleby, public domain), a new uint64 array."""
    mixed = values ^ (values >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed
