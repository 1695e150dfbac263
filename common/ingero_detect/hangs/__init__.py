"""Which rank or process makes a job hang, from the counts of NCCL's RAS service."""
