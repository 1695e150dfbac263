"""The eBPF programs, headers that replace the kernel's, and the table of probed functions."""
