"""Figures of the paper, computed anew and drawn for print: `elliptica figure`."""

from elliptica.figures.idea import draw_idea as draw_idea
from elliptica.figures.moons import draw_boundary_losses as draw_boundary_losses
from elliptica.figures.moons import draw_surfaces as draw_surfaces
from elliptica.figures.style import save_figure as save_figure
from elliptica.figures.uncertainty import draw_uncertainty as draw_uncertainty
