"""Transfers: what moves from where to where (`plan`), how it travels (`path`), and doing it (`execute`)."""

from __future__ import annotations
