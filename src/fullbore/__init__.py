"""Compile, check, cost, plan, draw and run pipeline-parallel schedules for PyTorch."""

__version__ = "0.1.0"
