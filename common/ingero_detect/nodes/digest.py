"""The digest of everything judged so far: a chain of hashes over the parameters and the inputs of every tick."""

import hashlib
import json
from typing import Any

import numpy as np

from ingero_detect.nodes.observation import Observation


class DigestChain:
    """Adds one tick after another. `digest`: 16 octets."""

    def __init__(self, about: str) -> None:
        self.digest = hashlib.blake2b(about.encode(), digest_size=16).digest()
        self._hashed: tuple[Any, ...] = ()

    def hex(self) -> str:
        """The digest as text, as in verdicts."""
        return self.digest.hex()

    def restore(self, digest: bytes) -> None:
        """Continue from the digest of a snapshot."""
        self.digest, self._hashed = digest, ()

    def fold_text(self, text: str) -> None:
        """Add something other than a tick, such as new parameters."""
        self.digest = hashlib.blake2b(self.digest + text.encode(), digest_size=16).digest()

    def fold(self, now: float, seen: Observation) -> None:
        """Add the inputs of a tick."""
        chain = hashlib.blake2b(self.digest, digest_size=16)
        chain.update(np.float64(now).tobytes())
        chain.update(self._who(seen))
        chain.update(np.ascontiguousarray(seen.value, np.float64).tobytes())
        chain.update(np.ascontiguousarray(seen.state, np.uint8).tobytes())
        if seen.echo:
            chain.update(json.dumps(sorted(seen.echo.items())).encode())
        self.digest = chain.digest()

    def _who(self, seen: Observation) -> bytes:
        """Hash of names and cohorts, cached while they stay the same; the numbering of cohorts does not matter."""
        known = self._hashed
        if (
            not known
            or known[0] != seen.names
            or known[1] != seen.cohorts
            or not np.array_equal(known[2], seen.cohort)
        ):
            present, first, back = np.unique(seen.cohort, return_index=True, return_inverse=True)
            order = np.argsort(first)
            keys = [list(seen.cohorts[number]) for number in present[order].tolist()]
            about = hashlib.blake2b(digest_size=16)
            about.update("\0".join(part for name in seen.names for part in name).encode())
            about.update(json.dumps(keys, separators=(",", ":")).encode())
            about.update(np.argsort(order)[back].astype(np.int64).tobytes())
            self._hashed = (seen.names, list(seen.cohorts), seen.cohort.copy(), about.digest())
        found: bytes = self._hashed[3]
        return found
