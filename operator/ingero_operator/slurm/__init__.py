"""Drains stragglers in Slurm within the limits of `taints.policy`.

`nodes` reads what `scontrol` prints, and turns it into the facts that the policy checks see. `controller` decides and
writes. A drain takes the place of a taint: the reason on the node has the evidence.
"""
