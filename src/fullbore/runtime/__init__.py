"""Runs a schedule on real modules and tensors. This is where torch begins."""
