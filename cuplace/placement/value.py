"""What meshes, specs and shardings have in common: they never change, and equal ones are one object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, NoReturn, Self, TypeVar
from weakref import WeakValueDictionary

from cuplace.errors import ImmutableError

T = TypeVar("T")


class Value:
    """An immutable value. Copies, also deep ones, are the value itself."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"cannot assign to field {name!r}\nA {type(self).__name__} never changes; make a new one.")

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(f"cannot delete field {name!r}\nA {type(self).__name__} never changes; make a new one.")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _set(self, **fields: object) -> None:
        """Fill the fields of a new value: the only way around immutability, for constructors."""
        for name, field in fields.items():
            object.__setattr__(self, name, field)


class Interner(Generic[T]):
    """The table that makes equal values one object, so that `==` and `hash` are those of identity.

    It holds its values weakly: a mesh, with the devices it keeps alive, goes when its last user goes.
    """

    __slots__ = ("_live", "_lock")

    def __init__(self) -> None:
        self._live: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        # Reentrant: a garbage collection under the lock may run a destructor that makes another value.
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The living value of this key; without one, `make()`, which may be called needlessly in a race."""
        found = self._live.get(key)
        if found is not None:
            return found
        made = make()
        with self._lock:
            return self._live.setdefault(key, made)
