"""Straggler detection: pure functions over arrays, clock passed in; nothing blocks, logs or reads time."""
