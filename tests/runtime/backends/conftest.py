"""The cuda platform for its own tests: on fake GPUs, in the schedule that a test asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuplace.runtime import context
from cuplace.runtime.platform import Platform, activated
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
    opened = fakegpus.open_fake(getattr(request, "param", fakegpus.Case("eager")))
    context.reset()
    try:
        with activated(opened):
            yield opened
            opened.scheduler.release_latches()
    finally:
        opened.close()
    fakegpus.assert_no_reports()
