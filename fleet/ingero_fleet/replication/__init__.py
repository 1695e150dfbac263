"""Several Fleets that judge the same reports: one ordered log, which every replica applies in its order."""
