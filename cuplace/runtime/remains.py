"""Remains: what destructors hand over, and when it may be used again.

A garbage collection calls the destructors of all objects of a cycle before it frees the first of them (PEP 442). So a
destructor of the user's may use an array whose own destructor was called already, and may keep it for good. What a
destructor of ours hands over is therefore ours only when nothing else refers to it: then its owner is gone. And what we
hold meanwhile must not hold that owner in turn, or it would never go. The callback of a weak reference tells nothing:
collections call it before the destructors, or, where the reference is younger than the collection, not at all.
"""

from __future__ import annotations

from sys import getrefcount


def _count_of_a_variable() -> int:
    value = object()
    return getrefcount(value)


ALONE = _count_of_a_variable()
"""What ``sys.getrefcount`` tells of an object that a local variable alone refers to."""
