"""Pictures of schedules."""

from fullbore.view.around import render_around
from fullbore.view.figure import render_figure
from fullbore.view.files import save_picture
from fullbore.view.frontier import (
    Front,
    Spot,
    render_frontier,
    render_frontier_page,
    save_frontier,
)
from fullbore.view.grid import render_grid, render_html
from fullbore.view.page import render_page
from fullbore.view.panel import Panel, simulated
from fullbore.view.trace import render_trace

__all__ = [
    "Front",
    "Panel",
    "Spot",
    "render_around",
    "render_figure",
    "render_frontier",
    "render_frontier_page",
    "render_grid",
    "render_html",
    "render_page",
    "render_trace",
    "save_frontier",
    "save_picture",
    "simulated",
]
