"""Sees CUDA and NCCL calls of unmodified processes: eBPF counts them, SQLite keeps the counts."""
