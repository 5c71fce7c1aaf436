"""Figures of the paper, computed anew and drawn for print: `elliptica figure`."""

from elliptica.lab.demo.figures.idea import draw_idea as draw_idea
from elliptica.lab.demo.figures.moons import draw_boundary_losses as draw_boundary_losses
from elliptica.lab.demo.figures.moons import draw_surfaces as draw_surfaces
from elliptica.lab.demo.figures.style import save_figure as save_figure
from elliptica.lab.demo.figures.uncertainty import draw_uncertainty as draw_uncertainty
