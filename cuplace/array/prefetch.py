"""prefetch: the items of a loader, put on devices ahead of their use."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from cuplace.array.put import device_put
from cuplace.errors import PrefetchDepthError


class prefetch(Iterator[Any]):
    """An iterator of the items of `iterable`, each a pytree, placed as `device_put(item, sharding)` does.

    While the loop works with one item, the next `depth` ones are on their way already. No thread is needed for that:
    `device_put` reads an item and returns, the copies go on by themselves. What reads slowly (a file behind a
    ``numpy.memmap``) is read when the loop asks for an item, while devices still work on the one before.

    Items come in the order of the iterable, and so does its error, or that of an item that cannot be placed: after
    the items before it. Then, and after `close`, the iterator is at its end. It holds `depth` items, and nothing of
    those that it has given.

    Args:
        iterable: gives pytrees of NumPy arrays, numbers, or arrays.
        sharding: where to, as `device_put` takes it.
        depth: how many items are put ahead of the one that the loop has; at least 1.

    Raises:
        PrefetchDepthError: a ValueError, for a depth below 1.
        TypeError: what is no iterable, or a depth that is no integer.

    >>> import numpy as np, cuplace
    >>> batches = ({"x": np.full(2, i, "float32")} for i in range(3))
    >>> for batch in cuplace.prefetch(batches, cuplace.devices()[0]):
    ...     print(batch["x"], batch["x"].committed)
    [0. 0.] True
    [1. 1.] True
    [2. 2.] True
    """

    def __init__(self, iterable: Iterable[Any], sharding: Any = None, depth: int = 2) -> None:
        self._depth = operator.index(depth)
        if self._depth < 1:
            raise PrefetchDepthError(depth)
        self._items: Iterator[Any] | None = iter(iterable)
        self._sharding = sharding
        self._ahead: deque[Any] = deque()
        self._error: Exception | None = None
        self._fill(self._depth)

    def __next__(self) -> Any:
        self._fill(self._depth + 1)
        if self._ahead:
            return self._ahead.popleft()
        error, self._error = self._error, None
        raise error or StopIteration

    def close(self) -> None:
        """Give up: what is ahead is dropped, and the iterable is closed, if it can be."""
        items, self._items = self._items, None
        self._ahead.clear()
        self._error = None
        close = getattr(items, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, count: int) -> None:
        while self._items is not None and len(self._ahead) < count:
            try:
                self._ahead.append(device_put(next(self._items), self._sharding))
            except StopIteration:
                self._items = None
            except Exception as error:
                self._items, self._error = None, error
