"""NumPy and PyArrow, loaded with the first records or the first question: an Echo without either needs none of them.

They are more than a quarter of the memory of a process that does nothing.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    from ingero_kit.lazy import lazy_module

    np, pa = lazy_module("numpy"), lazy_module("pyarrow")

__all__: Final = ["np", "pa"]
