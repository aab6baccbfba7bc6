"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuplace.runtime import context
from cuplace.runtime.config import config


@pytest.fixture
def restored_config() -> Iterator[None]:
    """The options and this thread's context are afterwards what they were before."""
    saved = dict(config.__dict__)
    yield
    config.__dict__.clear()
    config.__dict__.update(saved)
    context.reset()
