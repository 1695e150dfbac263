"""The eBPF programs, the headers that they need instead of a kernel's, and the table of what they attach to."""
