"""Straggler detection: pure functions over arrays. The caller passes the time; nothing blocks or logs."""
