"""Bytes of device memory: which tensors live at the same time, and what a process takes at its peak."""
