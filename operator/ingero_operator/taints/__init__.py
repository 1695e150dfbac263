"""Taints with rails. Law of the room: all but `keeper` is pure; only `keeper` reads and writes nodes.

`nodes` reads Node objects, `memory` holds what must not be forgotten, `rails` decides, `edits` words it as a patch.
"""
