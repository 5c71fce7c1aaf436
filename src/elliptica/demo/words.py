"""How the demo was set up, in words that the terminal and the page share."""

from __future__ import annotations

from elliptica.demo.settings import DemoSettings

_PAPER_POINTS = 10_000


def notes(settings: DemoSettings) -> list[str]:
    """Say what is the paper's and what is our choice."""
    n_paths = settings.n_boundary // settings.n_times
    other = "two-hidden" if settings.reading == "one-hidden" else "one-hidden"
    in_paper = "" if settings.n_boundary == _PAPER_POINTS else f" (the paper: {_PAPER_POINTS:,})"
    return [
        f'The paper\'s "2-layer, 4-hidden unit" network is read as {settings.architecture} '
        f"(--reading {other} is the other reading).",
        f"As in the paper's section 6.1, ERM and mixup train on {settings.n_boundary:,} boundary points"
        f"{in_paper}, elliptic (path) on {n_paths:,} with {settings.n_times} points on each bridge, so that "
        f"all cost the same. Elliptic (marginal) takes {settings.n_boundary:,} and one point of each "
        "bridge. Partners are drawn with probability inverse to their distance (Algorithm 1), among "
        f"{settings.paths_per_batch} points.",
        "Our choice, as the paper does not say: the moons are tubes of radius 0.2 around two half circles; "
        f"activation {settings.activation}; sigma {settings.sigma:g}; Adam for {settings.n_steps:,} steps "
        f"of {settings.batch_evaluations:,} evaluations, step size {settings.learning_rate:g} falling as a "
        f"half cosine; mixup with Beta({settings.alpha:g}, {settings.alpha:g}). With so small a network, "
        "drawing bridges takes longer than evaluating them: seconds say nothing about larger ones.",
        "Inside means unseen points of the moons with their labels, as in the paper's Figure 3. Between "
        "means points on straight lines between boundary points with labels mixed alike: the interior of "
        "the space of inputs and labels on which the paper's equation is posed. The loss is cross-entropy "
        "without the entropy of the label, which is zero for pure labels and unavoidable for mixed ones.",
    ]
