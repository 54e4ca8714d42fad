"""Pictures of schedules."""

from fullbore.view.grid import render_grid, render_html

__all__ = ["render_grid", "render_html"]
