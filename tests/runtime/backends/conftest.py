"""The cuda platform for its own tests: on fake GPUs, in the schedule that a test asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuplace.runtime.platform import Platform
from cuplace.testing.setting import fresh
from tests import fakecuda, fakegpus


@pytest.fixture
def fake_gpus() -> Iterator[None]:
    """Fresh fake GPUs, eager; whatever the test does to them is undone."""
    reason = fakegpus.missing()
    if reason is not None:
        pytest.skip(reason)
    fakecuda.reset()
    fakecuda.set_mode("eager")
    fakecuda.take_reports()
    yield
    fakecuda.set_mode("eager")
    fakecuda.reset()


@pytest.fixture
def cuda(request: pytest.FixtureRequest, fake_gpus: None, restored_config: None) -> Iterator[Platform]:
    """The cuda platform of eight devices, in the `fakegpus.Case` that the test names; nothing may be reported."""
    with fresh(lambda: fakegpus.open_fake(getattr(request, "param", fakegpus.Case("eager")))) as opened:
        yield opened
    fakegpus.assert_no_reports()
