"""Pictures of schedules."""

from fullbore.view.around import render_around
from fullbore.view.grid import render_grid, render_html

__all__ = ["render_around", "render_grid", "render_html"]
