"""Preview of a taint policy: replays Echo's record of verdicts through `taints.policy`. Only `command` has I/O.

`history` reads the rows of Echo, `replay` applies the policy to them in simulated time, `report` shows the result.
"""
