"""What is known of how copies travel, in the caches of plans and programs."""

from __future__ import annotations

from cuplace.transfer.execute import move_program, staged_together
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import spread_program


def forget_paths() -> None:
    """Find out anew how copies travel, the next time that a plan is made or executed."""
    for cached in (plan_move, move_program, spread_program, staged_together):
        cached.cache_clear()
