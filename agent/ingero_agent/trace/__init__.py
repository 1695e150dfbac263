"""Traces CUDA and NCCL calls of unmodified processes: eBPF counts them, SQLite stores the counts."""
