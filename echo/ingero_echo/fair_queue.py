"""A queue that serves senders in turns, so that one with many items delays the others by its share only."""

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by sender: first in, first out within a sender, one item of each sender in turn. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: OrderedDict[str, deque[T]] = OrderedDict()
        """The first sender is served next, then moves to the end."""

    def __bool__(self) -> bool:
        return bool(self._senders)

    def put(self, sender: str, item: T) -> None:
        """Add an item after the sender's other items."""
        with self._lock:
            self._senders.setdefault(sender, deque()).append(item)

    def pop(self) -> T:
        """The next item; raises `IndexError` when there is none."""
        with self._lock:
            if not self._senders:
                raise IndexError("the queue is empty")
            sender, items = next(iter(self._senders.items()))
            item = items.popleft()
            if items:
                self._senders.move_to_end(sender)
            else:
                del self._senders[sender]
            return item
