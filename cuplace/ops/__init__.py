"""Operations: one record each (`op`), their sharding rules (`factors`, `rule`), and the records by family."""

from __future__ import annotations
