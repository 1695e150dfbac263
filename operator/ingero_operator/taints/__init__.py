"""Tainting stragglers within limits. All modules but `controller` are pure; only `controller` reads and writes nodes.

`nodes` extracts the facts of a Node, `state` is what must survive a restart, `tracking` carries it from one decision
to the next, `policy` decides by way of `additions` and `removals`, `patches` turns a step into a JSON patch.
"""
