"""Proof of order: every access of memory is ordered with every conflicting one by waits that were executed."""
